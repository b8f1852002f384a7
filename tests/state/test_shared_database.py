"""What is told to the others, when, and what is owed to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coatcheck.decision.session import Now
from coatcheck.state.changes import Change, Closed, CredentialsLeft, HandleRevoked, Minted, Opened, Renewed
from coatcheck.state.database import Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.shared_database import Position, SharedDatabase
from tests.state.test_changes import HANDLE, SESSION

NOW = Now(1_800_000_000.0, 5_000.0)
DOWN = StateError(Problem.NOT_DURABLE, "gone", "wait")


@dataclass
class Recorder:
    """A `Publisher` that writes down what it is told, and can be gone."""

    told: list[Change] = field(default_factory=list)
    down: bool = False

    def give(self, changes: Sequence[Change]) -> None:
        if self.down:
            raise DOWN
        self.told += changes

    renew = take = give


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def database(tmp_path: Path, recorder: Recorder) -> Iterator[SharedDatabase]:
    made = SharedDatabase(tmp_path / "sessions.db")
    made.publisher = recorder
    yield made
    made.close()


def test_what_gives_is_told_before_it_is_kept(database: SharedDatabase, recorder: Recorder) -> None:
    """Nobody hears of it: nothing happened here either."""
    recorder.down = True
    with pytest.raises(StateError), database.flushed(NOW):
        database.put_session(SESSION, 1.0)
    assert list(database.sessions(NOW)) == []
    recorder.down = False
    with database.flushed(NOW):
        database.put_session(SESSION, 1.0)
        database.put_handle(HANDLE)
    with database.unflushed(NOW):
        database.set_lease("ses_1", 60.0, 2.0)
    assert recorder.told == [Opened(SESSION, 1.0), Minted(HANDLE), Renewed("ses_1", 60.0, 2.0)]


def test_what_takes_is_kept_and_owed_until_it_is_told(
    database: SharedDatabase, recorder: Recorder, tmp_path: Path
) -> None:
    """Also by the next run: the note is on disk beside it. Twice the same is owed once."""
    with database.flushed(NOW):
        database.put_session(SESSION, 1.0)
        database.put_handle(HANDLE)
    recorder.told.clear()
    recorder.down = True
    taken = [Closed("ses_1", Status.REVOKED, 5.0), HandleRevoked("ses_1", "jti-1")]
    for _ in range(2):
        with pytest.raises(StateError):
            _revoke(database)
    database.close()
    again = SharedDatabase(tmp_path / "sessions.db")
    again.publisher = recorder
    assert [status for _, status, _ in again.sessions(NOW)] == [Status.REVOKED]
    assert again.owed() == taken
    recorder.down = False
    again.tell_owed(NOW)
    assert recorder.told == taken
    assert again.owed() == []
    again.close()


def _revoke(database: SharedDatabase) -> None:
    with database.flushed(NOW):
        database.close_session("ses_1", Status.REVOKED, 5.0)
        database.revoke_handle("ses_1", "jti-1")


def test_what_may_have_been_told_is_taken_back_although_it_was_undone(
    database: SharedDatabase, recorder: Recorder
) -> None:
    """The answer to an opened session was lost: it must not hold its origin elsewhere."""
    closing = Closed("ses_1", Status.ENDED, 1.0)

    class Lost(Recorder):
        def give(self, changes: Sequence[Change]) -> None:
            database.owe([closing])
            raise DOWN

    database.publisher = Lost()
    with pytest.raises(StateError), database.flushed(NOW):
        database.put_session(SESSION, 1.0)
    assert database.owed() == [closing]
    database.forget_owed()
    assert database.owed() == []


def test_what_came_from_others_is_told_to_nobody(database: SharedDatabase, recorder: Recorder) -> None:
    """And may come twice."""
    for _ in range(2):
        with database.applying(), database.unflushed(NOW):
            database.insert_session(SESSION, 1.0)
            database.insert_handle(HANDLE)
            database.set_credentials("ses_1", frozenset())
            database.set_position(Position(3, 7, 1 << 255))
    assert recorder.told == []
    assert database.position == Position(3, 7, 1 << 255)
    assert [handle.revoked for handle in database.handles()] == [True]


def test_a_handle_of_a_session_that_nobody_has_is_left_out(database: SharedDatabase) -> None:
    """It was forgotten here; the shared state still has it."""
    with database.applying(), database.unflushed(NOW):
        database.insert_handle(HANDLE)
    assert list(database.handles()) == []
    assert database.position is None


def test_credentials_that_were_taken_are_told(database: SharedDatabase, recorder: Recorder) -> None:
    """As what is left."""
    with database.flushed(NOW):
        database.put_session(SESSION, 1.0)
    with database.flushed(NOW):
        database.set_credentials("ses_1", frozenset({"github"}))
    assert recorder.told[-1] == CredentialsLeft("ses_1", frozenset({"github"}))


def test_marks_are_kept_with_the_position_and_forgotten_with_it(
    database: SharedDatabase, tmp_path: Path
) -> None:
    """The next run compares them with what it finds."""
    with database.applying(), database.unflushed(NOW):
        database.put_marks({"sessions/a": 1, "sessions/b": (1 << 256) - 1})
        database.put_marks({"sessions/a": 2})
        database.set_position(Position(3, 7, 5))
    assert database.marks() == {"sessions/a": 2, "sessions/b": (1 << 256) - 1}
    with database.applying(), database.unflushed(NOW):
        database.drop_marks(["sessions/a"])
    database.close()
    again = SharedDatabase(tmp_path / "sessions.db")
    assert (again.marks(), again.position) == ({"sessions/b": (1 << 256) - 1}, Position(3, 7, 5))
    with again.applying(), again.unflushed(NOW):
        again.forget_all()
    assert (again.marks(), again.position) == ({}, None)
    again.close()


def test_a_directory_of_a_fleet_on_redis_joins_anew(tmp_path: Path) -> None:
    """What it knew of the old log means nothing; what it owes is still owed."""
    made = SharedDatabase(tmp_path / "old.db")
    made.sql.executescript(
        "CREATE TABLE shared_position (epoch INTEGER, number INTEGER, digest TEXT);"
        "INSERT INTO shared_position VALUES (1, 5, 'ab');"
    )
    made.close()
    again = SharedDatabase(tmp_path / "old.db")
    assert again.position is None
    assert again.sql.execute("SELECT 1 FROM sqlite_master WHERE name = 'shared_position'").fetchall() == []
    again.close()
