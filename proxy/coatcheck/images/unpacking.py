"""A container image's archive becomes a root in a confined process, whose results are not trusted.

Everything that reads the archive, or what was in it, runs there (`confined`), mkfs.ext4 and debugfs included.
`unpack` starts it, and believes nothing of what it leaves: one plain file, and one small document.
"""

import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coatcheck.images import confined, rootfs
from coatcheck.images.cache import remove
from coatcheck.images.oci import MAX_DOCUMENT, ContainerConfig, read_archive
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import MAX_BYTES, Spool
from coatcheck.images.tree import Tree

LIMITS = confined.Limits(seconds=3600, memory=4 * 1024**3, disk=2 * MAX_BYTES + 1024**3)
"""The files wait in a spool and then stand in the filesystem; a tree of two million takes a gigabyte."""
_START = "start.json"


def unpack(
    archive: Path, directory: Path, tell: Callable[[str], None], limits: confined.Limits = LIMITS
) -> ContainerConfig:
    """The filesystem of the image in `archive`, in `directory`; and how its program is started."""
    work = directory / "confined"
    work.mkdir(mode=0o700)
    failed: list[ImageError] = []

    def line(text: str) -> None:
        kind, words, hint = _message(text)
        if kind == "tell":
            tell(words)
        elif kind == "error":
            failed.append(ImageError(words, hint))

    command, shown = confined.python(__name__, str(archive))
    try:
        confined.run(command, work, limits, shown=[*shown, (archive, archive)], line=line)
        config = _config(_plain(work / _START, MAX_DOCUMENT).read_bytes())
        os.rename(_plain(work / rootfs.NAME, LIMITS.disk), directory / rootfs.NAME)
    except confined.Ended as error:
        raise failed[0] if failed else error from None
    finally:
        remove(work)
    return config


def _message(text: str) -> tuple[str, str, str]:
    try:
        kind, words, hint = json.loads(text)
    except ValueError:
        return "", "", ""
    return str(kind), str(words), str(hint)


def _plain(path: Path, largest: int) -> Path:
    """A link would lead to what only we may touch."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise ImageError(
            f"the archive made no {path.name}: {error.strerror}", "this is a defect: report it"
        ) from error
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > largest:
        raise ImageError(f"{path.name} is not a plain file", "this archive is not to be trusted")
    return path


def _config(content: bytes) -> ContainerConfig:
    try:
        said = json.loads(content)
        environment: Any = said["environment"]
        return ContainerConfig(
            {str(name): str(value) for name, value in environment.items()},
            tuple(str(word) for word in said["command"]),
            str(said["working_directory"]),
            str(said["user"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ImageError(
            "how its program is started cannot be read", "this archive is not to be trusted"
        ) from error


def _main(archive: Path) -> int:
    """In the confined process: a line of JSON for each step, and for what went wrong."""

    def say(kind: str, words: str, hint: str = "") -> None:
        sys.stdout.write(json.dumps([kind, words[:2000], hint[:1000]]) + "\n")
        sys.stdout.flush()

    start: dict[str, Any] = {}

    def read(tree: Tree, spool: Spool) -> None:
        start.update(asdict(read_archive(archive, tree, spool, lambda words: say("tell", words))))

    try:
        rootfs.make(confined.WORK, read, lambda words: say("tell", words))
        (confined.WORK / _START).write_text(json.dumps(start))
    except ImageError as error:
        say("error", str(error), error.hint)
        return 1
    except MemoryError:
        say("error", "it takes more memory than an archive may", "this archive is not to be trusted")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
