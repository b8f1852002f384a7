"""What was answered is on disk, also after `kill -9`; what is damaged is refused."""

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.state import State, StateError, Status
from coatcheck.state.database import Database
from tests.state.house import POLICIES

NOW = Now(1_000.0, 50.0)
SESSION = Session(
    "ses_a", "t", "u", "p", Origin(OriginClass.MTLS, "aa"), frozenset({"c", "b"}), Isolation.HARDWARE,
    3, 900.0, 2_000.0, 120.0, 110.0, opened_by="launcher", born=2,
)  # fmt: skip

CHILD = """
import sys
from pathlib import Path
from coatcheck.state import State
from tests.state.house import POLICIES, WANTED

state = State.open(Path(sys.argv[1]), emit=lambda event: None)
state.swap_policies(POLICIES)
revoked, _ = state.open_session(WANTED, "launcher")
live, (handle,) = state.open_session(WANTED, "launcher")
lesser = state.mint(live.id, "openai")
state.renew(live.id, "launcher", 300)
state.revoke_handle(live.id, lesser.jti)
state.revoke(revoked.id, "operator")
print(revoked.id, live.id, handle.jti, lesser.jti, flush=True)
sys.stdin.read()
"""


def test_kill_9_right_after_the_answer_loses_nothing(tmp_path: Path) -> None:
    """Sessions live on, renewals count, and what was revoked stays revoked."""
    directory = tmp_path / "sessions"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory)],
        cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        answer = child.stdout.readline().split()
        os.kill(child.pid, signal.SIGKILL)
    revoked, live, handle, lesser = answer
    state = State.open(directory, emit=lambda event: None)
    state.swap_policies(POLICIES)
    try:
        assert state.status(revoked) is Status.REVOKED
        assert state.status(live) is Status.LIVE
        assert state.session(live).revoked_handles == {lesser}
        assert {h.claims.jti for h in state.handles(live)} == {handle, lesser}
        left = state.session(live).lease_deadline - state.clock.now().monotonic
        assert 120 < left <= 300
    finally:
        state.close()


def test_a_session_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every field; the lease as what is left of it on the wall clock."""
    database = Database(tmp_path / "s.db")
    with database.flushed(NOW):
        database.put_session(SESSION, 1_060.0)
    assert list(database.sessions(NOW)) == [(SESSION, Status.LIVE, 0.0)]
    ((later, _, _),) = database.sessions(Now(1_030.0, 7.0))
    assert later.lease_deadline == 37.0
    database.close()


def test_each_flushed_change_is_a_new_version_and_a_failed_one_is_none(tmp_path: Path) -> None:
    """The audit log repeats the version, so it may never run ahead of the disk."""
    database = Database(tmp_path / "s.db")
    with database.flushed(NOW):
        database.put_session(SESSION, 1_060.0)
    assert database.version == 1
    with pytest.raises(sqlite3.IntegrityError):
        _put_twice(database)
    with database.unflushed(NOW):
        database.set_lease(SESSION.id, 60.0, 1_090.0)
    assert database.version == 1
    assert [session.id for session, _, _ in database.sessions(NOW)] == [SESSION.id]
    database.close()


def _put_twice(database: Database) -> None:
    with database.flushed(NOW):
        database.drop_session(SESSION.id)
        database.put_session(SESSION, 1_060.0)
        database.put_session(SESSION, 1_060.0)


def test_the_clocks_high_water_mark_only_rises(tmp_path: Path) -> None:
    """Each write carries it."""
    database = Database(tmp_path / "s.db")
    for wall in (1_000.0, 500.0):
        with database.unflushed(Now(wall, 0.0)):
            pass
        assert database.high_water == 1_000.0
    database.close()


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4_000])
def test_a_damaged_database_stops_the_start(tmp_path: Path, content: bytes) -> None:
    """Starting empty in silence would hide that revocations are gone."""
    path = tmp_path / "s.db"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StateError, match="cannot be used") as caught:
        Database(path)
    assert "move it away" in caught.value.hint


def test_a_database_of_a_newer_coatcheck_is_refused(tmp_path: Path) -> None:
    """Its meaning is unknown."""
    path = tmp_path / "s.db"
    Database(path).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StateError, match="format 99"):
        Database(path)


OLD = """
CREATE TABLE meta (version INTEGER NOT NULL, high_water REAL NOT NULL);
INSERT INTO meta VALUES (7, 900);
CREATE TABLE sessions (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, subject TEXT NOT NULL, policy TEXT NOT NULL,
  origin_class TEXT NOT NULL, origin_value TEXT NOT NULL, credentials TEXT NOT NULL,
  isolation TEXT NOT NULL, generation INTEGER NOT NULL, opened_at REAL NOT NULL, expires_at REAL NOT NULL,
  lease_seconds REAL NOT NULL, lease_until REAL NOT NULL, opened_by TEXT NOT NULL,
  status TEXT NOT NULL, closed_at REAL
) STRICT;
CREATE TABLE handles (
  jti TEXT PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  credential TEXT NOT NULL, generation INTEGER NOT NULL, issued_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL, digest BLOB NOT NULL, shape_prefix TEXT NOT NULL,
  shape_length INTEGER NOT NULL, revoked INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE listeners (
  session TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE, port INTEGER NOT NULL
) STRICT;
INSERT INTO sessions VALUES ('ses_a', 't', 'u', 'p', 'mtls', 'aa', '["b", "c"]', 'hardware', 3, 900, 2000,
  120, 1060, 'launcher', 'live', NULL);
INSERT INTO sessions SELECT 'ses_0', tenant, subject, policy, origin_class, 'bb', '[]', isolation, generation,
  opened_at, expires_at, lease_seconds, lease_until, opened_by, status, closed_at FROM sessions;
INSERT INTO handles VALUES ('jti-3', 'ses_a', 'b', 3, 950, 2000, x'03', '', 0, 0),
  ('jti-2', 'ses_a', 'b', 2, 900, 2000, x'02', '', 0, 0);
PRAGMA user_version = 2;
"""
"""As the release before forks wrote it."""


def test_a_database_from_before_there_were_forks_is_read_and_written(tmp_path: Path) -> None:
    """Its sessions live on, without ancestors; new ones have theirs, and the version counts on. Their first
    handles say which generation they were born with; where there are none, it is not known."""
    path = tmp_path / "sessions.db"
    path.touch(mode=0o600)
    old = sqlite3.connect(path)
    old.executescript(OLD)
    old.close()
    child = replace(SESSION, id="ses_b", ancestors=frozenset({"ses_a", "ses_0"}))
    bare = replace(
        SESSION, id="ses_0", origin=Origin(OriginClass.MTLS, "bb"), credentials=frozenset(), born=0
    )
    database = Database(path)
    assert database.version == 7
    assert {session.id: session for session, _, _ in database.sessions(NOW)} == {
        "ses_0": bare,
        "ses_a": SESSION,
    }
    with database.flushed(NOW):
        database.put_session(child, 1_060.0)
    database.close()
    again = Database(path)
    assert {session.id: session for session, _, _ in again.sessions(NOW)} == {
        "ses_0": bare,
        "ses_a": SESSION,
        "ses_b": child,
    }
    again.close()
