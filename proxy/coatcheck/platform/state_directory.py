"""Where the daemon keeps what must survive it: one directory of its own, 0700, all of it checked."""

from dataclasses import dataclass
from pathlib import Path

from coatcheck.platform.private_files import PrivateFileError, open_private_directory


class StateDirectoryError(PrivateFileError):
    """The state directory cannot be trusted. `hint` says what to do next."""


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """A checked state directory. Get one with `StateDirectory.open`.

    Each part has a directory of its own, and the module that keeps it locks it and checks its files: what is
    here only fixes where they are.
    """

    path: Path

    @classmethod
    def open(cls, path: Path) -> "StateDirectory":
        """Make what is missing; check that all directories are ours, 0700 and no symbolic links.

        Raises StateDirectoryError.
        """
        opened = cls(path.absolute())
        try:
            for directory in (opened.path, opened.sessions, opened.audit, opened.ca):
                open_private_directory(directory)
        except PrivateFileError as error:
            raise StateDirectoryError(str(error), error.hint) from error
        return opened

    @property
    def sessions(self) -> Path:
        """For `state`: the sessions' database (ids and hashes, no secret) and the handle-signing keys."""
        return self.path / "sessions"

    @property
    def audit(self) -> Path:
        """For `telemetry`: the audit log, its checkpoints and the key that signs them."""
        return self.path / "audit"

    @property
    def ca(self) -> Path:
        """For `certificates.authority`: the CA."""
        return self.path / "ca"
