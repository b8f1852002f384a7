"""Where built parts and images are kept: whole or not at all, each under the hash of what it was made from.

Another clone of this project, or another daemon of this user, finds them there. The directory is private: who
could write to it would choose what runs in every sandbox.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coatcheck.images.problem import ImageError
from coatcheck.images.programs import NoSpace, no_space_hint
from coatcheck.platform.private_files import open_private_directory

DEFAULT = "default"
"""The image that a sandbox is made of when nobody names one; `make setup` builds it."""
FILES = ("vmlinuz", "initrd", "root.ext4", "manifest.json")
"""What an image's directory holds. vmlinuz is an ELF where that could be had: it boots sooner."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ID = re.compile(r"[0-9a-f]{8,16}")
_UNFINISHED = ".unfinished-"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Cache:
    """The directory `images` of the cache: kernels, roots, complete images, and names for these."""

    def __init__(self, cache: Path) -> None:
        self.where = cache / "images"
        self._complete, self._names = self.where / "complete", self.where / "names"
        for directory in (self.where, self._complete, self._names):
            open_private_directory(directory)

    @contextmanager
    def building(self, tell: Callable[[str], None]) -> Iterator[None]:
        """One build at a time: the second process waits, and finds what the first one made."""
        with (self.where / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell("waiting for another build to end")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def make(self, kind: str, key: str, build: Callable[[Path], None]) -> Path:
        """The directory `<kind>/<key>`, filled by `build` under another name if it is not there yet.

        Only while `building`. What fails, or is interrupted, leaves nothing; after a kill -9 the next build
        clears up.
        """
        directory = self.where / kind
        open_private_directory(directory)
        made = directory / key
        if made.is_dir():
            return made
        for left in directory.glob(f"{_UNFINISHED}*"):
            remove(left)
        unfinished = directory / f"{_UNFINISHED}{key}"
        try:
            unfinished.mkdir(mode=0o755)
            build(unfinished)
            _sync(unfinished)
            os.rename(unfinished, made)
        except OSError as error:
            if error.errno in _FULL:
                raise NoSpace("no space is left where images are built", no_space_hint()) from error
            raise
        finally:
            remove(unfinished)
        return made

    def name(self, name: str, image: Path) -> None:
        """Let `name` mean `image`, at once for everybody."""
        check_name(name)
        temporary = self._names / f".{name}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(Path("../complete") / image.name)
        os.replace(temporary, self._names / name)

    def names(self) -> dict[str, Path]:
        """Every name with its image's directory."""
        found = {}
        for path in sorted(self._names.iterdir()):
            if _NAME.fullmatch(path.name) and path.is_symlink():
                found[path.name] = self._complete / Path(os.readlink(path)).name
        return found

    def find(self, name: str = DEFAULT) -> Path:
        """The directory of the image with this name or id. ImageError when it is not there or not whole."""
        image = self.names().get(name)
        if image is None and _ID.fullmatch(name):
            found = [path for path in self._complete.iterdir() if path.name.startswith(name)]
            image = found[0] if len(found) == 1 else None
        if image is None:
            have = ", ".join(self.names())
            raise ImageError(
                f"there is no image `{name}` in {self.where}",
                _how(name) + (f"; there are: {have}" if have else ""),
            )
        missing = [file for file in FILES if not (image / file).is_file()]
        if missing:
            raise ImageError(
                f"the image `{name}` in {image} lacks {', '.join(missing)}",
                f"{_how(name)}, with --force",
            )
        return image

    def unname(self, name: str) -> None:
        if name not in self.names():
            raise ImageError(f"there is no image named `{name}`", "see what there is: coatcheck image list")
        (self._names / name).unlink(missing_ok=True)

    def forget(self, kind: str, key: str) -> None:
        """Remove one part, or one image. Sandboxes that run from it go on: their QEMU has it open."""
        # Out of sight first, so that nobody finds half of it.
        gone = self.where / kind / f"{_UNFINISHED}{key}"
        remove(gone)
        if (self.where / kind / key).is_dir():
            os.rename(self.where / kind / key, gone)
            remove(gone)

    def keys(self, kind: str) -> set[str]:
        directory = self.where / kind
        return (
            {path.name for path in directory.iterdir() if path.name[0] != "."}
            if directory.is_dir()
            else set()
        )


def find(cache: Path, name: str = DEFAULT) -> Path:
    """The directory of the image `name`; see Cache.find."""
    return Cache(cache).find(name)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ImageError(
            f"{name!r} cannot be an image's name", "use up to 63 lower-case letters, digits and . _ -"
        )


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)  # the name must not survive a power cut that the bytes do not
            finally:
                os.close(descriptor)


def _how(name: str) -> str:
    if name == DEFAULT:
        return "build it: coatcheck image build"
    return f"build it: coatcheck image build --name {name} --package … (or --from-…)"
