"""Directories on disks of their own, of 512 KiB, in a mount namespace: full when a test says so."""

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import debian

_MOUNT = """
for directory; do
    mkdir -p -m 700 "$directory"
    mount -t tmpfs -o size=512k,mode=700 none "$directory" || exit 1
done
echo mounted
exec cat
"""


@dataclass
class SmallDisks:
    """The namespace lives as long as the block of `small_disks`."""

    holder: int

    @property
    def wrapper(self) -> tuple[str, ...]:
        """What a program is started with to see them."""
        nsenter = debian.find("nsenter") or "nsenter"
        return (nsenter, "--user", "--mount", "--preserve-credentials", f"--target={self.holder}")

    def inside(self, path: Path) -> Path:
        """The same path, as it is in there."""
        return Path(f"/proc/{self.holder}/root", *path.absolute().parts[1:])

    def fill(self, directory: Path) -> None:
        """To the last byte that the kernel gives."""
        filler = os.open(self.inside(directory) / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while True:
                os.write(filler, bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(filler)

    def free(self, directory: Path) -> None:
        (self.inside(directory) / "filler").unlink()


@contextmanager
def small_disks(directories: Sequence[Path]) -> Iterator[SmallDisks]:
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, "sh"]
    with subprocess.Popen(
        [*command, *map(str, directories)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n"
        yield SmallDisks(holder.pid)
