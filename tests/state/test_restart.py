"""What a restart, a crash, a lost or a rolled back directory does to sessions."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.platform.private_files import PrivateFileError
from coatcheck.state import Problem, State, StateError
from coatcheck.state.sessions import SANDBOX_SOCKETS
from coatcheck.telemetry.events import DaemonEvent, SessionEvent
from tests.state.house import WANTED, House, counts, reason


def test_a_restart_keeps_sessions_with_what_is_left_of_their_lease(house: House, state: State) -> None:
    """Never more than was left: 100 of 120 seconds are gone, so 20 remain."""
    session, handles = state.open_session(replace(WANTED, credentials=None), "launcher")
    house.time.passes(60)
    state = house.restart(state, down=40)
    for handle in handles:
        assert counts(state, session, handle.value.removeprefix("sk-ant-")) is None
    house.time.passes(20)
    assert reason(state, session) is Reason.LEASE_LAPSED


def test_a_restart_does_not_lengthen_a_lease_when_the_clock_was_set_back(house: House, state: State) -> None:
    """The persisted high-water mark counts, not the machine's new opinion."""
    session, _ = state.open_session(WANTED, "launcher")
    house.time.passes(100)
    state = house.restart(state, down=-3_600)
    house.time.passes(20)
    assert reason(state, session) is Reason.LEASE_LAPSED


def test_closed_sessions_stay_closed_after_a_restart(house: House, state: State) -> None:
    """Revoked, ended and lapsed: each with its own reason."""
    revoked, ended, lapsed = (state.open_session(WANTED, "launcher")[0] for _ in range(3))
    state.revoke(revoked.id, "operator")
    state.end(ended.id, "launcher")
    house.time.passes(120)
    state.sweep()
    for _ in range(2):
        assert reason(state, revoked) is reason(state, ended) is Reason.SESSION_REVOKED
        assert reason(state, lapsed) is Reason.LEASE_LAPSED
        state = house.restart(state)


def test_a_rolled_back_state_revokes_everything_and_says_so(
    house: House, state: State, tmp_path: Path
) -> None:
    """A backup from before a revocation is put back: the audit log has seen more than it knows."""
    session, (handle,) = state.open_session(WANTED, "launcher")
    state = house.restart(state)
    shutil.copytree(house.directory, tmp_path / "backup")
    state.revoke(session.id, "operator")
    event = house.events[-1]
    assert isinstance(event, SessionEvent)
    state.close()
    house.opened.clear()
    shutil.rmtree(house.directory)
    shutil.copytree(tmp_path / "backup", house.directory)

    state = house.open(seen_version=event.state_version)
    assert state.sessions.by_id == {}
    assert isinstance(state.genuine.claims_of(handle.value), Deny)
    assert reason(state, session) is Reason.ORIGIN_UNKNOWN
    assert [e.what for e in house.events if isinstance(e, DaemonEvent)] == ["state_rolled_back"]
    assert state.version > event.state_version
    house.restart(state, seen_version=state.version)
    assert [e.what for e in house.events if isinstance(e, DaemonEvent)] == ["state_rolled_back"]


def test_a_lost_database_kills_every_handle(house: House, state: State) -> None:
    """New keys, although the old ones were still there."""
    _, (handle,) = state.open_session(WANTED, "launcher")
    state.close()
    house.opened.clear()
    for path in house.directory.glob("sessions.db*"):
        path.unlink()
    state = house.open()
    assert state.sessions.by_id == {}
    assert isinstance(state.genuine.claims_of(handle.value), Deny)


def test_an_up_to_date_state_is_believed(house: House, state: State) -> None:
    """The version that the last event carried is the one on disk; renewals do not disturb it."""
    session, _ = state.open_session(WANTED, "launcher")
    state.renew(session.id, "launcher")
    event = house.events[-1]
    assert isinstance(event, SessionEvent)
    state = house.restart(state, seen_version=event.state_version)
    assert session.id in state.sessions.by_id


def test_a_state_has_one_owner_at_a_time(house: House, state: State) -> None:
    """A second daemon on the same directory is refused at once."""
    with pytest.raises(StateError, match="locked") as caught:
        house.open()
    assert caught.value.reason is Problem.DIRECTORY


def test_files_that_others_can_reach_are_refused(house: House, state: State) -> None:
    """Who could read or change them is unknown; the start stops and says so."""
    state.close()
    house.opened.clear()
    (house.directory / "sessions.db").chmod(0o644)
    with pytest.raises(PrivateFileError):
        house.open()
    (house.directory / "sessions.db").chmod(0o600)
    house.directory.chmod(0o755)
    with pytest.raises(PrivateFileError):
        house.open()


def test_neither_handles_nor_their_texts_are_on_disk_or_in_events(house: House, state: State) -> None:
    """Ids and hashes only."""
    session, handles = state.open_session(replace(WANTED, credentials=None), "launcher")
    state.revoke_handle(session.id, handles[0].jti)
    written = b"".join(path.read_bytes() for path in house.directory.iterdir()) + repr(house.events).encode()
    for handle in handles:
        assert handle.value.encode() not in written and handle.value[-40:].encode() not in written
        assert handle.value not in repr(handle)


def test_a_restart_knows_where_each_session_listened(house: House, state: State) -> None:
    """The address that its sandbox holds: a port, or what stands for a socket, or for a whole sandbox's;
    nothing for one that has neither."""
    on_port, on_socket, whole, neither = (state.open_session(WANTED, "launcher")[0] for _ in range(4))
    state.note_listener(whole.id, SANDBOX_SOCKETS)
    state.note_listener(on_port.id, 40_001)
    state.note_listener(on_socket.id, 0)
    state = house.restart(state)
    assert state.listeners() == {on_port.id: 40_001, on_socket.id: 0, whole.id: SANDBOX_SOCKETS}
    assert neither.id in state.sessions.by_id
    with pytest.raises(StateError):
        state.note_listener("ses_unknown", 1)
