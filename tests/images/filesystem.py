"""Looking into an ext4 image with e2fsprogs' own eyes."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ENVIRONMENT = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Seen:
    mode: int
    uid: int
    gid: int
    size: int
    kind: str
    links: int


def _debugfs(image: Path, request: str) -> bytes:
    command = ["debugfs", "-R", request, str(image)]
    return subprocess.run(command, env=_ENVIRONMENT, check=True, capture_output=True).stdout


def look(image: Path, path: str) -> Seen | None:
    """What stands at `path`; None when nothing does."""
    said = _debugfs(image, f'stat "{path.replace(chr(34), chr(34) * 2)}"').decode()
    if "Inode:" not in said:
        return None

    def number(pattern: str, base: int = 10) -> int:
        found = re.search(pattern, said)
        assert found is not None, said
        return int(found[1], base)

    kind = re.search(r"Type: (\w+)", said)
    assert kind is not None
    return Seen(
        number(r"Mode: +(\d+)", 8),
        number(r"User: +(\d+)"),
        number(r"Group: +(-?\d+)") % 2**32,  # debugfs shows it signed
        number(r"Size: +(\d+)"),
        kind[1],
        number(r"Links: +(\d+)"),
    )


def content(image: Path, path: str) -> bytes:
    return _debugfs(image, f"cat {path}")


def names(image: Path, path: str) -> set[str]:
    """A directory's entries."""
    lines = _debugfs(image, f"ls -p {path}").decode().splitlines()
    return {fields[5] for line in lines if len(fields := line.split("/")) > 6} - {".", "..", "lost+found"}


def target(image: Path, path: str) -> str:
    found = re.search(r'Fast link dest: "(.*)"', _debugfs(image, f"stat {path}").decode())
    return found[1] if found else ""


def check(image: Path) -> None:
    """e2fsck finds nothing to repair."""
    done = subprocess.run(
        ["e2fsck", "-fn", str(image)], env=_ENVIRONMENT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
