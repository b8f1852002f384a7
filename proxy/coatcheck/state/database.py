"""What survives `kill -9`: sessions, revocations and the ids and hashes of handles, in SQLite.

No handle and no secret is in here. One connection, used while `State` writes.

Every commit but a lease's renewal is flushed to disk (`synchronous=FULL`) and counted in `version`, which
the audit log repeats: a database that is behind the log was rolled back. A renewal is written without a
flush: it survives a crash of ours, and a power cut can only make a lease shorter.
"""

import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Shape
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.platform.private_files import PrivateFileError, write_atomically
from coatcheck.state.errors import Problem, StateError

_SCHEMA_VERSION: Final = 4
_SCHEMA: Final = """
CREATE TABLE meta (version INTEGER NOT NULL, high_water REAL NOT NULL);
INSERT INTO meta VALUES (0, 0);
CREATE TABLE sessions (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, subject TEXT NOT NULL, policy TEXT NOT NULL,
  origin_class TEXT NOT NULL, origin_value TEXT NOT NULL, credentials TEXT NOT NULL,
  isolation TEXT NOT NULL, generation INTEGER NOT NULL, opened_at REAL NOT NULL, expires_at REAL NOT NULL,
  lease_seconds REAL NOT NULL, lease_until REAL NOT NULL, opened_by TEXT NOT NULL,
  status TEXT NOT NULL, closed_at REAL, ancestors TEXT NOT NULL DEFAULT '[]',
  born INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE handles (
  jti TEXT PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  credential TEXT NOT NULL, generation INTEGER NOT NULL, issued_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL, digest BLOB NOT NULL, shape_prefix TEXT NOT NULL,
  shape_length INTEGER NOT NULL, revoked INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX handles_session ON handles (session);
CREATE TABLE listeners (
  session TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE, port INTEGER NOT NULL
) STRICT;
PRAGMA user_version = 4;
"""
_STEPS: Final = {
    2: """
ALTER TABLE sessions ADD COLUMN ancestors TEXT NOT NULL DEFAULT '[]';
PRAGMA user_version = 3;
""",
    3: """
ALTER TABLE sessions ADD COLUMN born INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET born = coalesce((SELECT min(generation) FROM handles WHERE session = sessions.id), 0);
PRAGMA user_version = 4;
""",
}
"""From each older format that is read to the next. A session's first handles are issued when it is opened and
kept for as long as it is: the earliest generation among them is the one that it was born with. One without
handles gets 0, with which nothing of an ancestor counts; its generation may have been raised since."""


class Status(StrEnum):
    LIVE = "live"
    REVOKED = "revoked"
    ENDED = "ended"
    LAPSED = "lapsed"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class IssuedHandle:
    """What we remember of a handle."""

    claims: Claims
    digest: bytes
    shape: Shape | None
    revoked: bool = False

    @property
    def is_reference(self) -> bool:
        return self.shape is not None and self.shape.length > 0


class Database:
    """Rows in and out. Callers group changes in `flushed()` or `unflushed()`."""

    def __init__(self, path: Path) -> None:
        self.is_new = _make_or_check(path)
        self.sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            self._prepare()
            self.version = self._version()
            """Of what is committed; read in any thread."""
        except sqlite3.Error as error:
            self.sql.close()
            raise StateError(
                Problem.DIRECTORY,
                f"the state database {path} cannot be used: {error}",
                "Restore it, or move it away: then every handle is dead and sessions must be reopened.",
            ) from error

    def _prepare(self) -> None:
        # Two daemons on one database would each miss the other's revocations: the second fails at once.
        self.sql.execute("PRAGMA locking_mode = EXCLUSIVE")
        self.sql.execute("PRAGMA journal_mode = WAL")
        self.sql.execute("PRAGMA foreign_keys = ON")
        (schema,) = self.sql.execute("PRAGMA user_version").fetchone()
        if schema == 0:
            self.sql.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        while schema in _STEPS:
            self.sql.executescript(f"BEGIN; {_STEPS[schema]} COMMIT;")
            (schema,) = self.sql.execute("PRAGMA user_version").fetchone()
        if schema not in (0, _SCHEMA_VERSION):
            raise sqlite3.DatabaseError(f"it is of format {schema}, this coatcheck reads {_SCHEMA_VERSION}")
        if self.sql.execute("PRAGMA quick_check").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("it is damaged")

    def close(self) -> None:
        self.sql.close()

    @property
    def high_water(self) -> float:
        return float(self.sql.execute("SELECT high_water FROM meta").fetchone()[0])

    @contextmanager
    def flushed(self, now: Now) -> Iterator[None]:
        """One transaction, on disk when the block ends; counts as a new version."""
        with self._transaction("FULL", now):
            yield
            self.sql.execute("UPDATE meta SET version = version + 1")

    @contextmanager
    def unflushed(self, now: Now) -> Iterator[None]:
        """One transaction that a power cut may undo."""
        with self._transaction("NORMAL", now):
            yield

    @contextmanager
    def _transaction(self, synchronous: str, now: Now) -> Iterator[None]:
        self.sql.execute(f"PRAGMA synchronous = {synchronous}")
        self.sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.sql.execute("UPDATE meta SET high_water = max(high_water, ?)", (now.wall,))
            self.sql.execute("COMMIT")
            self.version = self._version()
        except BaseException:
            if self.sql.in_transaction:
                self.sql.execute("ROLLBACK")
            raise

    def tell_owed(self, now: Now) -> None:
        """There is nobody to tell: only a `SharedDatabase` has others."""

    def _version(self) -> int:
        return int(self.sql.execute("SELECT version FROM meta").fetchone()[0])

    def set_version(self, version: int) -> None:
        self.sql.execute("UPDATE meta SET version = ?", (version,))

    def forget_all(self) -> None:
        self.sql.execute("DELETE FROM sessions")

    def put_session(self, session: Session, lease_until: float) -> None:
        self.sql.execute(
            "INSERT INTO sessions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,NULL,?,?)",
            (
                session.id,
                session.tenant,
                session.subject,
                session.policy,
                session.origin.kind.value,
                session.origin.value,
                json.dumps(sorted(session.credentials)),
                session.isolation.value,
                session.generation,
                session.opened_at,
                session.expires_at,
                session.lease_seconds,
                lease_until,
                session.opened_by,
                Status.LIVE.value,
                json.dumps(sorted(session.ancestors)),
                session.born,
            ),
        )

    def set_lease(self, session_id: str, seconds: float, until: float) -> None:
        """`until` is Unix time: the monotonic clock means nothing to the next run."""
        self.sql.execute(
            "UPDATE sessions SET lease_seconds = ?, lease_until = ? WHERE id = ?",
            (seconds, until, session_id),
        )

    def set_credentials(self, session_id: str, credentials: frozenset[str]) -> None:
        self.sql.execute(
            "UPDATE sessions SET credentials = ? WHERE id = ?", (json.dumps(sorted(credentials)), session_id)
        )

    def set_generation(self, session_id: str, generation: int) -> None:
        self.sql.execute("UPDATE sessions SET generation = ? WHERE id = ?", (generation, session_id))

    def close_session(self, session_id: str, status: Status, at: float) -> None:
        self.sql.execute(
            "UPDATE sessions SET status = ?, closed_at = ? WHERE id = ? AND status != 'revoked'",
            (status.value, at, session_id),
        )

    def drop_session(self, session_id: str) -> None:
        self.sql.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def put_listener(self, session_id: str, port: int) -> None:
        self.sql.execute("INSERT OR REPLACE INTO listeners VALUES (?,?)", (session_id, port))

    def listeners(self) -> dict[str, int]:
        return dict(self.sql.execute("SELECT session, port FROM listeners"))

    def put_handle(self, handle: IssuedHandle) -> None:
        claims, shape = handle.claims, handle.shape or Shape("")
        self.sql.execute(
            "INSERT INTO handles VALUES (?,?,?,?,?,?,?,?,?,0)",
            (
                claims.jti,
                claims.sid,
                claims.cred,
                claims.generation,
                claims.issued_at,
                claims.expires_at,
                handle.digest,
                shape.prefix,
                shape.length,
            ),
        )

    def revoke_handle(self, session_id: str, jti: str) -> None:
        self.sql.execute("UPDATE handles SET revoked = 1 WHERE jti = ? AND session = ?", (jti, session_id))

    def drop_handles(self, jtis: list[str]) -> None:
        self.sql.executemany("DELETE FROM handles WHERE jti = ?", [(jti,) for jti in jtis])

    def handles(self) -> Iterator[IssuedHandle]:
        for row in self.sql.execute(
            "SELECT session, credential, generation, issued_at, expires_at, jti,"
            " digest, shape_prefix, shape_length, revoked FROM handles"
        ):
            shape = Shape(row[7], row[8]) if row[7] else None
            yield IssuedHandle(Claims(*row[:6]), row[6], shape, bool(row[9]))

    def sessions(self, now: Now) -> Iterator[tuple[Session, Status, float]]:
        """Each session, its status and when it was closed (0 while live).

        Of a lease only what is left of it on the wall clock counts. That is never more than there was:
        each write also raises the high-water mark, and `now` is not before it.
        """
        for row in self.sql.execute(
            "SELECT id, tenant, subject, policy, origin_class, origin_value, credentials, isolation,"
            " generation, opened_at, expires_at, lease_seconds, lease_until, opened_by, status, closed_at,"
            " ancestors, born FROM sessions"
        ):
            status = Status(row[14])
            left = row[12] - now.wall if status is Status.LIVE else float("-inf")
            session = Session(
                id=row[0],
                tenant=row[1],
                subject=row[2],
                policy=row[3],
                origin=Origin(OriginClass(row[4]), row[5]),
                credentials=frozenset(json.loads(row[6])),
                isolation=Isolation(row[7]),
                generation=row[8],
                opened_at=row[9],
                expires_at=row[10],
                lease_seconds=row[11],
                lease_deadline=now.monotonic + left,
                revoked=status in (Status.REVOKED, Status.ENDED),
                opened_by=row[13],
                ancestors=frozenset(json.loads(row[16])),
                born=row[17],
            )
            yield session, status, row[15] or 0.0


def _make_or_check(path: Path) -> bool:
    """True when the file was made just now, empty and 0600. PrivateFileError when it is not ours alone."""
    try:
        write_atomically(path, b"")
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PrivateFileError(
                f"{path} is not a plain file that only uid {os.geteuid()} can reach",
                f"if others may have changed it, remove it (every session ends); otherwise chmod 0600 {path}",
            ) from None
        return False
    return True
