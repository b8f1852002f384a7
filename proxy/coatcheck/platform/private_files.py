"""Files and directories that only this daemon's user may read: made so, and checked each time.

Keys at rest: a directory is 0700, a key 0600, both owned by us. What an earlier `chmod -R`
or a restore from backup loosened is refused at the next start: a key that others could read is burnt.
"""

import fcntl
import os
import secrets
import stat
import time
from pathlib import Path

from coatcheck.platform.errors import CoatcheckError

MAX_PRIVATE_FILE = 64 * 1024
"""Bytes. Keys and certificates are below 4 KiB: anything larger is the wrong file, not a bigger key."""


class PrivateFileError(CoatcheckError):
    """A file or directory is missing, unsafe or in the way. `hint` says what to do next."""


def open_private_directory(path: Path) -> None:
    """Make `path` with mode 0700 if it is missing, then check it as `check_private_directory` does."""
    try:
        for parent in reversed(path.absolute().parents):
            if not parent.exists():
                parent.mkdir(mode=0o755, exist_ok=True)  # not 0777, which an empty umask would give
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PrivateFileError(
            f"cannot make the directory {path}: {error.strerror}",
            "check that the parent directory exists and that this user may write in it",
        ) from error
    check_private_directory(path)


def check_private_directory(path: Path) -> None:
    """Refuse a directory that is not ours, not 0700, a symbolic link, or replaceable by anyone."""
    try:
        # The descriptor pins what we check; O_NOFOLLOW: a link could be pointed elsewhere afterwards.
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise PrivateFileError(
            f"the directory {path} does not exist", f"make it: mkdir -m 0700 {path}"
        ) from error
    except OSError as error:
        raise PrivateFileError(
            f"{path} is not a directory that may be used here: {error.strerror}",
            "give the real directory, not a symbolic link to it or a file",
        ) from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    _check_owner(path, status)
    if status.st_mode & 0o077:
        raise PrivateFileError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}, wanted 0700)",
            f"check who read or changed what is in it, then: chmod 0700 {path}",
        )
    parent = path.absolute().parent
    parent_mode = parent.stat().st_mode
    # A user who may rename entries of the parent can put another directory in this one's place.
    if parent_mode & stat.S_IWOTH and not parent_mode & stat.S_ISVTX:
        raise PrivateFileError(
            f"{parent}, which holds {path.name}, can be written by every user",
            f"chmod o-w {parent}, or choose another place",
        )


def lock_directory(path: Path, seconds: float) -> int:
    """Lock `path` against other callers of this, waiting up to `seconds` for them.

    Returns a descriptor: close it to unlock; the kernel does so for a process that dies.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise PrivateFileError(
                    f"another process has been writing in {path} for {seconds:g} s",
                    "find and end it, then run the same again",
                ) from error
            time.sleep(0.02)


def read_private(path: Path) -> bytes:
    """The bytes of a file that only we can read. Raises PrivateFileError for any other file."""
    return _read(path, forbidden=0o077, wanted="0600")


def read_public(path: Path) -> bytes:
    """The bytes of a file that anyone may read and only we can write, such as a CA certificate."""
    return _read(path, forbidden=0o022, wanted="0644")


def _read(path: Path, forbidden: int, wanted: str) -> bytes:
    try:
        # O_NONBLOCK: opening a FIFO put here would wait for ever; the type check below then refuses it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise PrivateFileError(f"{path} does not exist", "check the path, or create it again") from error
    except OSError as error:
        raise PrivateFileError(
            f"cannot open {path}: {error.strerror}",
            "it must be a plain file of this user, not a symbolic link",
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PrivateFileError(f"{path} is not a plain file", "put the real file there")
        _check_owner(path, status)
        if status.st_mode & forbidden:
            raise PrivateFileError(
                f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}, wanted {wanted})",
                f"if it is a key, replace it: others may hold a copy; otherwise chmod {wanted} {path}",
            )
        content = file.read(MAX_PRIVATE_FILE + 1)
    if len(content) > MAX_PRIVATE_FILE:
        raise PrivateFileError(f"{path} is larger than {MAX_PRIVATE_FILE} bytes", "it is the wrong file")
    return content


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise PrivateFileError(
            f"{path} belongs to uid {status.st_uid}, and this process runs as uid {os.geteuid()}",
            "run as the user who owns it, or replace it with a key of this user",
        )


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600, overwrite: bool = False) -> None:
    """Put `content` at `path` whole or not at all, on disk before this returns.

    Without `overwrite` an existing `path` raises FileExistsError and is untouched. The mode is set on
    the empty file, so that the content never stands under a wider one.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            os.link(temporary, path, follow_symlinks=False)  # unlike rename, it fails where something stands
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)  # the new name too must survive a power cut
    finally:
        os.close(directory)
