"""In daemon and supervisor: keeps one snapshot as a directory: written beside its place, and visible once
all of it is on disk.

Blocking; call it in threads. A crash leaves an `.unfinished-…`, which `store.Store.sweep` removes.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from coatcheck.durable.snapshots import manifest, memory_image
from coatcheck.durable.snapshots.manifest import Image, Manifest, Origin, SnapshotError, Surroundings
from coatcheck.platform.private_files import PrivateFileError, check_private_directory
from coatcheck.sandbox.machine import Remain, RemainKind

MEMORY: Final = "memory"
DEVICES: Final = "devices"
OVERLAY: Final = "overlay"
FILES: Final = (MEMORY, DEVICES, OVERLAY)
UNFINISHED: Final = ".unfinished-"
RESERVE_MIB: Final = 64
"""What must stay free on the host's disk for it to go on working, at the least."""
DEVICES_BYTES: Final = 1024 * 1024
"""Room for the devices' state, some 70 KiB."""
_MIB: Final = 1024 * 1024
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Unfinished:
    """A snapshot that is being written. Either `finish` or `discard` it."""

    def __init__(self, directory: Path, need: int, reserve_mib: int = RESERVE_MIB) -> None:
        """`directory`: where it will be; its parent is private. `need`: bytes that it will take, at most.
        `reserve_mib`: how much must be free after that, for what else is on this disk."""
        self.directory = directory
        self._need = need
        self._reserve_mib = reserve_mib
        self._images: dict[str, Image] = {}
        self._where = directory.with_name(f"{UNFINISHED}{directory.name}-{secrets.token_hex(4)}")

    def begin(self) -> None:
        """SnapshotError when its place is taken, or others can read it, or there is no room."""
        parent = self.directory.parent
        try:
            check_private_directory(parent)
        except PrivateFileError as error:
            raise SnapshotError(f"no snapshot can be kept: {error}", error.hint) from error
        if self.directory.exists():
            raise SnapshotError(
                f"there is a snapshot {self.directory.name} already", "remove it, or use another name"
            )
        about = os.statvfs(parent)
        if about.f_bavail * about.f_frsize < self._need + self._reserve_mib * _MIB:
            raise self._no_space()
        with self._told():
            self._where.mkdir(mode=0o700)

    def create(self, name: str) -> int:
        """A new file of it, open for writing only; the caller closes it."""
        with self._told():
            return os.open(self._where / name, _NEW, 0o600)

    def copy(self, name: str, source: int, size: int) -> int:
        """`source` as one of its files. Bytes that took."""
        with self._told():
            target = self.create(name)
            try:
                return memory_image.copy(source, target, size)
            finally:
                os.close(target)

    def amend(self, name: str, change: Callable[[int], object]) -> None:
        """Let `change` write to one of its files, which is there."""
        with self._told():
            target = os.open(self._where / name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                change(target)
            finally:
                os.close(target)

    def resize(self, file: int, size: int) -> None:
        """Give one of its files its length."""
        with self._told():
            os.ftruncate(file, size)

    def write(self, file: int, at: int, content: bytes) -> None:
        """All of `content` into one of its files."""
        with self._told():
            memory_image.write(file, at, memoryview(content))

    def images(self) -> dict[str, Image]:
        """What its files are now, which is what `finish` says of them: they must not change any more."""
        if not self._images:
            with self._told():
                self._images = {name: _digested(self._where / name) for name in FILES}
        return self._images

    def finish(self, origin: Origin, generation: int, surroundings: Surroundings, key: bytes) -> Manifest:
        """Digests, all of it to the disk, the manifest, its name: then it is there. After an error, gone."""
        try:
            with self._told():
                images = self.images()
                made = Manifest(
                    origin, generation, surroundings, images[MEMORY], images[DEVICES], images[OVERLAY]
                )
                manifest.write(self._where, made, key)
                # Of what may have come there meanwhile it replaces nothing but an empty directory.
                os.rename(self._where, self.directory)
                _sync(self.directory.parent)
        except BaseException:
            self.discard()
            raise
        return made

    def discard(self) -> None:
        """Nothing of it is left. Idempotent."""
        shutil.rmtree(self._where, ignore_errors=True)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise self._no_space() from error
            raise SnapshotError(
                f"the snapshot {self.directory.name} cannot be written: {error.strerror}",
                "check the disk that holds the state directory",
            ) from error

    def _no_space(self) -> SnapshotError:
        return SnapshotError(
            f"there is no space for a snapshot in {self.directory.parent}: about {self._need // _MIB} MiB are"
            f" needed beside the {self._reserve_mib} MiB that stay free (COATCHECK_SNAPSHOT_RESERVE)",
            "remove one (coatcheck sandbox snapshots lists them), or give COATCHECK_STATE_DIR a larger disk",
        )


class Snapshot:
    """One that is there, with its manifest read and found genuine."""

    def __init__(self, directory: Path, key: bytes) -> None:
        """SnapshotError when it is not whole, or was altered."""
        self.directory = directory
        self.manifest = manifest.read(directory, key)

    @classmethod
    def open(cls, directory: Path, key_file: Path) -> Self:
        return cls(directory, manifest.open_key(key_file))

    def load(self, name: str, target: int) -> None:
        """One of its files into `target`, every byte checked. SnapshotError when it is not what was written:
        then `target` is worthless."""
        with self._opened(name) as (source, image):
            memory_image.load(source, target, image.size, image.digests)

    def checked(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Places and bytes of what is not zero in one of its files. SnapshotError as with `load`."""
        with self._opened(name) as (source, image):
            yield from memory_image.checked(source, image.size, image.digests)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, Image]]:
        try:
            source = os.open(self.directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                yield source, getattr(self.manifest, name)
            finally:
                os.close(source)
        except memory_image.AlteredImage as error:
            raise SnapshotError(
                f"the {name} of the snapshot {self.directory.name} is damaged: {error}",
                "use another snapshot; check the disk unless someone changed the file",
            ) from error
        except OSError as error:
            raise SnapshotError(
                f"the {name} of the snapshot {self.directory.name} cannot be loaded: {error.strerror}",
                "use another snapshot",
            ) from error

    def load_devices(self) -> int:
        """Into memory, so that what was checked is what is read; the caller closes it."""
        descriptor = os.memfd_create("device-state", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, self.manifest.devices.size)
            self.load(DEVICES, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def template(self) -> int:
        """Its memory for any number of clones, each of which maps it privately: nobody can write to it.

        The caller closes it; the clones' QEMUs keep it alive. It counts as memory once.
        """
        descriptor = os.memfd_create("template", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, self.manifest.memory.size)
            self.load(MEMORY, descriptor)
            # QEMU, as another user each time, opens it for writing before it maps it privately.
            os.fchmod(descriptor, 0o666)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def is_template(descriptor: int, size: int) -> bool:
    """Whether nobody can write to it, and it has `size` bytes."""
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        return sealed and os.fstat(descriptor).st_size == size
    except OSError:
        return False


def kept_in(*directories: Path | None) -> list[Remain]:
    """Every file of every snapshot below them, finished or not, for inspection."""
    found = {path for place in directories if place for path in place.rglob("*") if path.is_file()}
    return [
        # Inspection takes names of 100 letters.
        Remain(f"snapshot {path.parent.name[:70]}: {path.name}", _kind(path.name), path=path)
        for path in sorted(found)
    ]


def _kind(name: str) -> RemainKind:
    kinds = {MEMORY: RemainKind.MEMORY, DEVICES: RemainKind.DEVICE_STATE, OVERLAY: RemainKind.DISK}
    return kinds.get(name, RemainKind.FILE)


def _digested(path: Path) -> Image:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        found = memory_image.digests(file, size)
        os.fsync(file)
    finally:
        os.close(file)
    return Image(size, found)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
