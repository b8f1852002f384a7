"""In the supervisor: makes what a microVM stores bytes in: memory, a temporary disk, named disks that
persist.

All are files, opened here; nothing is mounted.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import stat
from pathlib import Path

from coatcheck.platform.private_files import (
    PrivateFileError,
    check_private_directory,
    lock_directory,
    open_private_directory,
)
from coatcheck.sandbox.machine import MachineError, Volume

MIB = 1024 * 1024
SMALLEST_MIB = 16
LARGEST_MIB = 1024 * 1024
"""ext4 could have more; a number beyond it is a mistake in the unit."""
SPARE_MIB = 64
"""What must stay free on the host's disk for it to go on working."""
_FORMAT_SECONDS = 120.0
_LOCK_SECONDS = 120.0
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# prezeroed: the file is sparse, so tables of inodes need be written neither here nor by the guest later.
_MKE2FS = (
    "-q",
    "-F",
    "-t",
    "ext4",
    "-b",
    "4096",
    "-m",
    "0",
    "-E",
    "root_owner=0:0,assume_storage_prezeroed=1",
)


async def make_overlay(path: Path, size_mib: int) -> int:
    """A new sparse ext4 at `path`, opened. MachineError when there is no room, or no mke2fs."""
    _check_room(path.parent, SPARE_MIB)
    # No journal: after a crash nobody reads it again.
    await _format(path, size_mib, "-O", "^has_journal")
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


async def open_volume(volume: Volume) -> int:
    """The volume's disk, made if it is new, locked for us as long as the descriptor or a copy is open.

    MachineError when another sandbox has it, its name is none, or it is larger than `size_mib`.
    """
    path = volume_file(volume)
    try:
        check_private_directory(volume.store)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        check_private_directory(path.parent)
        # Blocks until others are done making theirs: not in the event loop.
        turn = await asyncio.to_thread(lock_directory, path.parent, _LOCK_SECONDS)
    except PrivateFileError as error:
        raise MachineError(f"the volume {volume.name} cannot be used: {error}", error.hint) from error
    try:
        if not path.exists():
            _check_room(path.parent, SPARE_MIB)
            made = path.with_name(f".{path.name}.new")
            try:
                await _format(made, volume.size_mib)
                made.rename(path)  # a volume is whole, or is not there
            finally:
                made.unlink(missing_ok=True)
        return _lock(path, volume)
    finally:
        os.close(turn)


async def make_volume(volume: Volume, content: Path) -> None:
    """A new volume with what the directory `content` holds, before a sandbox asks for it: gigabytes that all
    runs need come in at a disk's speed. MachineError when it already exists, or cannot be made."""
    path = volume_file(volume)
    if path.exists():
        raise MachineError(f"the volume {volume.name} already exists", "remove it first, or use another name")
    open_private_directory(volume.store)
    open_private_directory(path.parent)
    _check_room(path.parent, volume.size_mib)
    made = path.with_name(f".{path.name}.new")
    try:
        await _format(made, volume.size_mib, "-d", str(content))
        made.rename(path)
    finally:
        made.unlink(missing_ok=True)


def open_part(image: Path, name: str) -> int:
    """One file of an image's directory, which QEMU's user can read, opened. MachineError otherwise."""
    try:
        descriptor = os.open(image / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(
            f"the image's {name} cannot be opened: {image / name}: {error.strerror}",
            "build it: coatcheck image build",
        ) from error
    if os.geteuid() == 0 and not os.fstat(descriptor).st_mode & 0o004:
        os.close(descriptor)
        raise MachineError(
            f"{image / name} is closed to QEMU's user",
            f"nothing in an image is secret: chmod 644 {image / name}",
        )
    return descriptor


def volume_file(volume: Volume) -> Path:
    """Where it is. A tenant's name may be any text: its digest cannot be a path, nor be another's."""
    if not _NAME.fullmatch(volume.name):
        raise MachineError(
            f"{volume.name[:80]!r} is not a volume name",
            "up to 64 of a-z, 0-9, dot, dash and underscore, the first a letter or a digit",
        )
    tenant = hashlib.sha256(volume.tenant.encode()).hexdigest()[:32]
    return volume.store / tenant / f"{volume.name}.ext4"


def _lock(path: Path, volume: Volume) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(f"the volume {volume.name} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MachineError(
                f"the volume {volume.name} is not a regular file", "move the existing file away"
            )
        if status.st_size > volume.size_mib * MIB:
            raise MachineError(
                f"the volume {volume.name} has {status.st_size // MIB} MiB, more than the {volume.size_mib}"
                " that this sandbox may have",
                "ask for its size, or have the operator raise the ceiling",
            )
        # On the open file, so a copy of the descriptor in QEMU holds it as well, however we end.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise MachineError(
            f"the volume {volume.name} is in use by another sandbox",
            "end that one first, or use another name",
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_memory(size_mib: int, owner: int | None, needed_mib: int) -> int:
    """A file for a guest's memory, opened; it has no name and goes with the last that has it open.

    In memory: on a disk's filesystem each page that a guest touches is a block to find, a fifth more CPU to
    boot (ext4, measured). `owner` may open it anew. MachineError when the machine has not `needed_mib` left,
    which is less than all of it where it grows later.
    """
    available = _available_mib()
    if available < needed_mib + SPARE_MIB:
        raise MachineError(
            f"this machine has {available} MiB of memory left, and {needed_mib} are needed",
            "end another sandbox, or give this one less: --memory",
        )
    descriptor = os.memfd_create("guest-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, size_mib * MIB)
    # A QEMU that was taken over can neither grow it nor cut it away under who looks at it.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    if owner is not None:
        os.fchown(descriptor, owner, -1)
    return descriptor


def _available_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    raise MachineError("the kernel does not say how much memory is left (/proc/meminfo)")


def open_new(path: Path, size_mib: int) -> int:
    """A new file of holes at `path`, in place of what was there."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.ftruncate(descriptor, size_mib * MIB)
    return descriptor


def _check_room(directory: Path, mib: int) -> None:
    about = os.statvfs(directory)
    free = about.f_bavail * about.f_frsize // MIB
    if free < mib:
        raise MachineError(
            f"{directory} has {free} MiB free, and {mib} are needed",
            "free some, or set COATCHECK_RUNTIME_DIR or COATCHECK_STATE_DIR to a larger disk",
        )


async def _format(path: Path, size_mib: int, *options: str) -> None:
    if not SMALLEST_MIB <= size_mib <= LARGEST_MIB:
        raise MachineError(
            f"a disk cannot have {size_mib} MiB", f"ask for {SMALLEST_MIB} to {LARGEST_MIB} MiB"
        )
    program = shutil.which("mke2fs", path=f"{os.defpath}:/usr/sbin:/sbin")
    if program is None:
        raise MachineError("mke2fs is missing", "install it: apt-get install e2fsprogs")
    os.close(open_new(path, size_mib))
    process = await asyncio.create_subprocess_exec(
        program,
        *(*_MKE2FS, *options, str(path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={},
    )
    try:
        async with asyncio.timeout(_FORMAT_SECONDS):
            _, said = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        raise MachineError(
            f"the disk {path.name} could not be made: {said.decode(errors='replace').strip()[-300:]}",
            "check the free space of the disk that holds it",
        )
