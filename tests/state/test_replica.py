"""What comes from the others undoes nothing that was taken, and keeps nobody from taking."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.session import Session
from coatcheck.state import State, StateError, signing_keys
from coatcheck.state.changes import Change, HandleRevoked, KeysChanged, Minted, Opened
from coatcheck.state.replica import Commit, Replica
from coatcheck.state.shared_database import Position
from tests.state.house import WANTED, reason
from tests.state.slow_others import PATIENCE, SlowOthers, state_of_a_fleet
from tests.system.fleet.fleet import until

THREE = replace(WANTED, credentials=frozenset({"openai", "anthropic", "github"}))


@contextmanager
def member(directory: Path) -> Iterator[tuple[State, Replica, SlowOthers]]:
    with state_of_a_fleet(directory / "sessions") as (state, others):
        assert state.replica is not None
        yield state, state.replica, others


def given(session: Session, state: State) -> tuple[Change, ...]:
    """How the others hear of it: its row as it is now, and those of its handles."""
    now, here = state.clock.now(), state.session(session.id)
    revoked = here.revoked_handles
    handles = (replace(each, revoked=each.claims.jti in revoked) for each in state.handles(session.id))
    until = now.wall + here.lease_deadline - now.monotonic
    return (Opened(here, until), *(Minted(each) for each in handles))


def load(replica: Replica, changes: tuple[Change, ...], rev: int) -> None:
    """All rows are read again."""
    held = {change.session.id for change in changes if isinstance(change, Opened)}
    replica.load([Commit("other", 0.0, changes)], held, Position(1, rev, rev), {})


def test_all_rows_take_from_what_was_known_what_was_taken_meanwhile(tmp_path: Path) -> None:
    """A daemon that was away while rows were dropped hears of it nowhere else. Restarts, too."""
    with member(tmp_path / "a") as (a, _, _), member(tmp_path / "b") as (b, ours, _):
        session, handles = a.open_session(THREE, "launcher")
        load(ours, given(session, a), 1)
        assert b.session(session.id).credentials == session.credentials
        a.revoke_where(lambda each: True, "openai", "operator")
        a.revoke_handle(session.id, handles[0].jti)
        a.rebind(session.id, "launcher")
        load(ours, given(session, a), 5_000)
        wanted = (frozenset({"anthropic", "github"}), frozenset({handles[0].jti}), 2)
        here = b.session(session.id)
        assert (here.credentials, here.revoked_handles, here.generation) == wanted
    with member(tmp_path / "b") as (b, _, _):
        here = b.session(session.id)
        assert (here.credentials, here.revoked_handles, here.generation) == wanted


def test_what_the_others_were_not_told_yet_comes_back_with_nothing(tmp_path: Path) -> None:
    """It was revoked here while they could not be told, so long ago that it was forgotten; there it lives."""
    with member(tmp_path / "a") as (a, _, _), member(tmp_path / "b") as (b, ours, others):
        session, _ = a.open_session(WANTED, "launcher")
        load(ours, given(session, a), 1)
        others.down = True
        with pytest.raises(StateError):
            b.revoke(session.id, "operator")
        b.registry.forget(float("inf"))
        with pytest.raises(StateError):
            b.revoke_where(lambda each: True, None, "operator")  # that it was forgotten is written, too
        load(ours, given(session, a), 5_000)
        assert reason(b, session) is Reason.SESSION_REVOKED
    with member(tmp_path / "b") as (b, _, _):
        assert reason(b, session) is Reason.SESSION_REVOKED


def test_a_handle_is_revoked_everywhere_though_our_disk_has_not_got_it_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full when it came from the others, and works again when somebody revokes it."""

    def full(handle: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with member(tmp_path / "a") as (a, _, _), member(tmp_path / "b") as (b, ours, others):
        session, (handle,) = a.open_session(WANTED, "launcher")
        entry = Commit("a", 0.0, given(session, a))
        with monkeypatch.context() as patched:
            patched.setattr(ours.database, "insert_handle", full)
            with pytest.raises(sqlite3.Error):
                ours.apply([entry], Position(1, 1, 1), {})
        b.revoke_handle(session.id, handle.jti)
        told = HandleRevoked(session.id, handle.jti)
        assert told in others.told
        ours.apply([entry, Commit("b", 0.0, (told,))], Position(1, 2, 2), {})
    with member(tmp_path / "b") as (b, _, _):
        assert b.session(session.id).revoked_handles == {handle.jti}


def test_keys_of_the_others_are_kept_though_that_failed_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come again with the same entry, and are known already: else the next start would go back to those
    before, and sign what nobody else knows."""

    def full(*about: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with member(tmp_path) as (_, replica, _):
        keys = replica.keys.rotated(1e9, 1e9).exported()
        entry = Commit("other", 0.0, (KeysChanged(keys),))
        with monkeypatch.context() as patched:
            patched.setattr(signing_keys, "write_atomically", full)
            with pytest.raises(OSError, match="No space"):
                replica.apply([entry], Position(1, 1, 1), {})
        replica.apply([entry], Position(1, 1, 1), {})
    with member(tmp_path) as (_, replica, _):
        assert replica.position == Position(1, 1, 1)
        assert replica.keys.exported() == keys


def test_a_revocation_is_in_force_while_keys_of_the_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the disk takes for their file."""
    writing, on = Event(), Event()

    def slow(*about: object, **more: object) -> None:
        writing.set()
        assert on.wait(PATIENCE)

    with member(tmp_path) as (state, replica, _), ThreadPoolExecutor(2) as threads:
        session, _ = state.open_session(WANTED, "launcher")
        entry = Commit("other", 0.0, (KeysChanged(replica.keys.rotated(1e9, 1e9).exported()),))
        monkeypatch.setattr(signing_keys, "write_atomically", slow)
        try:
            applied = threads.submit(replica.apply, [entry], Position(1, 1, 1), {})
            assert writing.wait(PATIENCE)
            taken = threads.submit(state.revoke, session.id, "operator")
            until(lambda: reason(state, session) is Reason.SESSION_REVOKED)
            assert not (applied.done() or taken.done())
        finally:
            on.set()
        applied.result(PATIENCE)
        taken.result(PATIENCE)
