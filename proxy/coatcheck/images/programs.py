"""Running the programs that build an image, with errors that a person can act on."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coatcheck.images.problem import ImageError

PACKAGES = {
    "mkfs.ext4": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "lz4": "lz4",
    "objcopy": "binutils",
    "dpkg-deb": "dpkg",
    "dpkg": "dpkg",
    "apt-get": "apt",
    "apt-cache": "apt",
    "ldconfig": "libc-bin",
    "bwrap": "bubblewrap",
    "prlimit": "util-linux",
    "skopeo": "skopeo",
}
"""Which Debian package brings a program."""

_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Not the caller's: a user's PATH lacks /usr/sbin, where mkfs.ext4 and debugfs are."""
_SAID = 1500
"""Characters of a program's complaint that a person is shown: the end, where the reason stands."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """What a program wrote."""

    output: bytes
    said: str
    """On standard error."""

    @property
    def text(self) -> str:
        return self.output.decode(errors="surrogateescape")


class ProgramFailed(ImageError):
    """A program ended with an error. `said`: its own words."""

    def __init__(self, message: str, hint: str, said: str) -> None:
        super().__init__(message, hint)
        self.said = said


class NoSpace(ImageError):
    """The disk is full."""


def find(name: str) -> str:
    found = shutil.which(name, path=_SEARCH)
    if found is None:
        raise ImageError(
            f"{name} is not installed, and an image is made with it",
            f"apt-get install {PACKAGES.get(name, name)}",
        )
    return found


def run(
    command: Sequence[str],
    hint: str,
    *,
    seconds: float,
    where: Path | None = None,
    stdin: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Wrote:
    """Run it to its end. ProgramFailed when it fails; it is killed after `seconds`, or when we are
    interrupted."""
    # env(1), so that the proxies of the caller's environment stay for apt and nobody here reads it.
    setting = [f"{name}={value}" for name, value in {"LC_ALL": "C.UTF-8", **(environment or {})}.items()]
    words = ["/usr/bin/env", *setting, find(command[0]), *command[1:]]
    try:
        done = subprocess.run(
            words,
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            cwd=where,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ImageError(
            f"{command[0]} has taken longer than {seconds:g} s and was ended",
            "try again when this machine is less busy",
        ) from error
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        check_space(said)
        raise ProgramFailed(f"{command[0]} failed: {said.strip()[-_SAID:] or done.returncode}", hint, said)
    return Wrote(done.stdout, said)


def check_space(said: str) -> None:
    """NoSpace when the words of a program are about a full disk."""
    if "No space left on device" in said or "enough free space" in said or "Disk quota exceeded" in said:
        raise NoSpace("no space is left where images are built", no_space_hint())


def no_space_hint() -> str:
    return "free some (a build takes up to 1.2 GB), or set COATCHECK_CACHE_DIR to another disk"
