"""Where the daemon keeps what must survive it: one directory of its own, 0700, one daemon at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coatcheck.private_files import PrivateFileError, open_private_directory


class StateDirectoryError(PrivateFileError):
    """The state directory cannot be trusted or is in use. `hint` says what to do next."""


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """A checked state directory. Open it with `StateDirectory.open`."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> "StateDirectory":
        """Make what is missing, check owner and modes of all of it. Raises StateDirectoryError.

        Only the directories are checked here; each key is checked by who reads it (`read_private`).
        """
        opened = cls(path.absolute())
        try:
            for directory in (opened.path, opened.keys, opened.audit, opened.ca):
                open_private_directory(directory)
        except PrivateFileError as error:
            raise StateDirectoryError(str(error), error.hint) from error
        return opened

    @property
    def keys(self) -> Path:
        """Directory of the handle-signing and audit-signing keys."""
        return self.path / "keys"

    @property
    def sessions(self) -> Path:
        """The sessions' database file: ids and hashes, no handle and no secret."""
        return self.path / "sessions.db"

    @property
    def audit(self) -> Path:
        """Directory of the audit log."""
        return self.path / "audit"

    @property
    def ca(self) -> Path:
        """Directory of the certificate authority (`certificates.authority`)."""
        return self.path / "ca"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory for this process; a second daemon is refused at once, not queued.

        Two writers would fork the audit chain and overwrite each other's revocations. The kernel drops
        the lock with the process, so that nothing is left to clean up after `kill -9`.
        """
        lock = self.path / "lock"
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirectoryError(
                f"cannot open {lock}: {error.strerror}", f"remove {lock} if no daemon runs, then start again"
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
                raise StateDirectoryError(
                    f"{self.path} is in use by another coatcheck daemon (pid {holder})",
                    "stop that one first, or give this one a state directory of its own",
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)
