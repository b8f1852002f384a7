"""How changes reach the disk: what gives is written before it is visible, what takes is written again
and again until it is there."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coatcheck.decision.session import Now
from coatcheck.state.database import Database
from coatcheck.state.errors import Problem, StateError


class Journal:
    """The database, and the writes that it still owes. Used while `State` writes, but for `owe`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        # At most one a session closed and one a handle revoked since the disk last worked. Grows at its end
        # while what stands before is being written: only that is taken out then.
        self._owed: list[Callable[[], None]] = []

    @property
    def in_debt(self) -> bool:
        return bool(self._owed)

    @contextmanager
    def giving(self, now: Now, *, flush: bool = True) -> Iterator[None]:
        """A transaction; StateError(NOT_DURABLE) when nothing came of it."""
        try:
            with self.database.flushed(now) if flush else self.database.unflushed(now):
                yield
        except sqlite3.Error as error:
            raise StateError(
                Problem.NOT_DURABLE,
                f"the state could not be written ({error}), so nothing was changed",
                "Look at the free space and the health of the disk that holds the state directory.",
            ) from error

    def owe(self, write: Callable[[], None]) -> None:
        """Remember a write that must happen whatever comes. It must bear repeating. Waits for nobody."""
        self._owed.append(write)

    def settle(self, now: Now) -> None:
        """Write and flush all that is owed, and the clock. StateError(NOT_DURABLE): it is owed still."""
        owed = tuple(self._owed)
        try:
            with self.database.flushed(now):
                for write in owed:
                    write()
        except sqlite3.Error as error:
            raise StateError(
                Problem.NOT_DURABLE,
                f"done, but it could not be written ({error}): a crash now would undo it",
                "Free the disk that holds the state directory and repeat; until then do not restart.",
            ) from error
        except StateError:
            del self._owed[: len(owed)]  # it is on our disk, which remembers that others must be told
            raise
        del self._owed[: len(owed)]

    def settle_all(self, now: Now) -> None:
        """Also what others must still be told: a caller that is answered now may rely on it, though it was
        taken before, or written with somebody else's change. StateError(NOT_DURABLE): it is owed still."""
        if self._owed:
            self.settle(now)
        self.database.tell_owed(now)
