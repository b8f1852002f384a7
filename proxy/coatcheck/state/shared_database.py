"""The database of a daemon that shares its state with others: what is written here is told to them.

It stays a whole copy on our own disk: sessions, revocations, how far the shared state was read. What *gives*
is committed there before it is committed here; what *takes* is committed here together with a note that the
others must be told, which is dropped only when it is committed there (ADR 30).
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, override

from coatcheck.decision.session import Now, Session
from coatcheck.state.change_json import read, written
from coatcheck.state.changes import (
    TAKING,
    Change,
    Closed,
    CredentialsLeft,
    HandleRevoked,
    Minted,
    Opened,
    Rebound,
    Renewed,
)
from coatcheck.state.database import Database, IssuedHandle, Status
from coatcheck.state.errors import Problem, StateError

_TABLES = """
DROP TABLE IF EXISTS shared_position;
CREATE TABLE IF NOT EXISTS read_up_to (
  incarnation INTEGER NOT NULL, rev INTEGER NOT NULL, digest TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS marks (place TEXT PRIMARY KEY, mark TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (change TEXT PRIMARY KEY) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Position:
    """How far the shared state was read."""

    incarnation: int
    """Grows whenever the shared state was lost, and with it everything that it held."""
    rev: int
    """Of the last commit that was applied."""
    digest: int
    """Of all rows that there were then."""


class Publisher(Protocol):
    """Where changes go. Each raises StateError when they are not there, or may not be."""

    def give(self, changes: Sequence[Change]) -> None: ...

    def renew(self, renewals: Sequence[Renewed]) -> None: ...

    def take(self, changes: Sequence[Change]) -> None: ...


class SharedDatabase(Database):
    """Used while `State` writes, like its base. Set `publisher` before anything is changed."""

    publisher: Publisher

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sql.executescript(f"BEGIN; {_TABLES} COMMIT;")
        self._noted: list[Change] = []
        self._given: list[Change] = []
        self._doubtful: list[Change] = []
        self._applying = False
        self.debt = len(self.owed())
        """How many changes are owed; read in any thread."""

    # --- what others know, and what they must be told ------------------------------------------------------

    @property
    def position(self) -> Position | None:
        """None: this daemon has never read the shared state."""
        row = self.sql.execute("SELECT incarnation, rev, digest FROM read_up_to").fetchone()
        return Position(row[0], row[1], int(row[2], 16)) if row is not None else None

    def set_position(self, position: Position) -> None:
        self.sql.execute("DELETE FROM read_up_to")
        self.sql.execute(
            "INSERT INTO read_up_to VALUES (?,?,?)",
            (position.incarnation, position.rev, f"{position.digest:x}"),
        )

    def marks(self) -> dict[str, int]:
        """Of the shared rows that our copy stands for, by place."""
        return {place: int(mark, 16) for place, mark in self.sql.execute("SELECT place, mark FROM marks")}

    def put_marks(self, marks: Mapping[str, int]) -> None:
        self.sql.executemany(
            "INSERT OR REPLACE INTO marks VALUES (?,?)",
            [(place, f"{mark:x}") for place, mark in marks.items()],
        )

    def drop_marks(self, places: Iterable[str]) -> None:
        self.sql.executemany("DELETE FROM marks WHERE place = ?", [(place,) for place in places])

    @override
    def forget_all(self) -> None:
        """Also how far the shared state was read: without what it says, all of it must be read again."""
        super().forget_all()
        self.sql.execute("DELETE FROM read_up_to")
        self.sql.execute("DELETE FROM marks")

    def owed(self) -> list[Change]:
        """What was taken here and is not yet in the shared state."""
        kept = [read(row[0]) for row in self.sql.execute("SELECT change FROM outbox ORDER BY rowid")]
        return kept + [each for each in self._doubtful if each not in kept]

    def owe(self, changes: Sequence[Change]) -> None:
        """The others must be told, even if the change that is being made now is undone."""
        self._doubtful += changes

    def forget_owed(self) -> None:
        """It is about sessions that nobody has any more."""
        self._doubtful = []
        self.sql.execute("DELETE FROM outbox")

    @override
    def tell_owed(self, now: Now) -> None:
        """Try again to tell the others. StateError as long as that fails."""
        owed = self.owed()
        if not owed:
            return
        self.publisher.take(owed)
        self._doubtful = [each for each in self._doubtful if each not in owed]
        with self.applying(), self.unflushed(now):
            self.sql.executemany("DELETE FROM outbox WHERE change = ?", [(written(each),) for each in owed])

    @contextmanager
    def applying(self) -> Iterator[None]:
        """What is written inside came from the others, and is not told to them again."""
        self._applying = True
        try:
            yield
        finally:
            self._applying = False

    @contextmanager
    @override
    def _transaction(self, synchronous: str, now: Now) -> Iterator[None]:
        self._noted, self._given = [], []
        try:
            with super()._transaction(synchronous, now):
                yield
                taken = self._tell()
        except BaseException as error:
            opened = [each.session for each in self._given if isinstance(each, Opened)]
            self.owe([Closed(each.id, Status.ENDED, now.wall) for each in opened])
            if self._given and isinstance(error, sqlite3.Error):
                raise _not_kept(error) from error
            raise
        finally:
            with suppress(sqlite3.Error):  # it is tried again with the next change, until then in memory
                self._keep_doubtful()
                self.debt = len(self.owed())
        if taken:
            self.tell_owed(now)

    def _tell(self) -> bool:
        """Before the commit: what gives. True: there is something to take, which comes after it."""
        noted, self._noted = self._noted, []
        taken = [change for change in noted if isinstance(change, TAKING)]
        self._owe(taken)
        if given := [change for change in noted if not isinstance(change, (*TAKING, Renewed))]:
            self.publisher.give(given)
            self._given = list(given)
        if renewals := [change for change in noted if isinstance(change, Renewed)]:
            self.publisher.renew(renewals)
        return bool(taken)

    def _keep_doubtful(self) -> None:
        if self._doubtful:
            self._owe(self._doubtful)
            self._doubtful = []

    def _owe(self, changes: Sequence[Change]) -> None:
        self.sql.executemany("INSERT OR IGNORE INTO outbox VALUES (?)", [(written(c),) for c in changes])

    def _note(self, change: Change) -> None:
        if not self._applying:
            self._noted.append(change)

    def insert_session(self, session: Session, lease_until: float) -> None:
        """`put_session`, if it is not there."""
        if not self.sql.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).fetchone():
            self.put_session(session, lease_until)

    def insert_handle(self, handle: IssuedHandle) -> None:
        """`put_handle`, if its session is there and it is not; revoked in any case, if it is."""
        known = self.sql.execute(
            "SELECT (SELECT count(*) FROM sessions WHERE id = ?),"
            " (SELECT count(*) FROM handles WHERE jti = ?)",
            (handle.claims.sid, handle.claims.jti),
        ).fetchone()
        if known == (1, 0):
            self.put_handle(handle)
        if handle.revoked:
            self.revoke_handle(handle.claims.sid, handle.claims.jti)

    # --- rows --------------------------------------------------------------------------------

    @override
    def put_session(self, session: Session, lease_until: float) -> None:
        super().put_session(session, lease_until)
        self._note(Opened(session, lease_until))

    @override
    def put_handle(self, handle: IssuedHandle) -> None:
        super().put_handle(handle)
        self._note(Minted(handle))

    @override
    def set_generation(self, session_id: str, generation: int) -> None:
        super().set_generation(session_id, generation)
        self._note(Rebound(session_id, generation))

    @override
    def set_lease(self, session_id: str, seconds: float, until: float) -> None:
        super().set_lease(session_id, seconds, until)
        self._note(Renewed(session_id, seconds, until))

    @override
    def close_session(self, session_id: str, status: Status, at: float) -> None:
        super().close_session(session_id, status, at)
        self._note(Closed(session_id, status, at))

    @override
    def set_credentials(self, session_id: str, credentials: frozenset[str]) -> None:
        super().set_credentials(session_id, credentials)
        self._note(CredentialsLeft(session_id, credentials))

    @override
    def revoke_handle(self, session_id: str, jti: str) -> None:
        super().revoke_handle(session_id, jti)
        self._note(HandleRevoked(session_id, jti))  # also if its row could not be written yet


def _not_kept(error: sqlite3.Error) -> StateError:
    return StateError(
        Problem.NOT_DURABLE,
        f"the fleet has the change, but it could not be written here ({error}): a session that was opened"
        " is ended again, and a handle or a generation may count all the same",
        "Look at the free space and the health of the disk with the state directory, then at the session.",
    )
