"""A full disk keeps nothing alive, gives nothing away, and is caught up with later."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Peer
from coatcheck.decision.session import identify
from coatcheck.state import Problem, State, StateError, Status
from coatcheck.telemetry.events import SessionChange
from tests.state.house import WANTED, House


@contextmanager
def full_disk(state: State) -> Iterator[None]:
    """SQLite itself refuses to write, as it does when no page can be had."""
    state.database.sql.execute("PRAGMA query_only = ON")
    try:
        yield
    finally:
        state.database.sql.execute("PRAGMA query_only = OFF")


def test_a_revocation_holds_at_once_though_the_disk_is_full(house: House, state: State) -> None:
    """The caller is told that it is not durable; the sweep writes it as soon as it can."""
    session, (handle,) = state.open_session(WANTED, "launcher")
    with full_disk(state):
        with pytest.raises(StateError) as caught:
            state.revoke(session.id, "operator")
        assert caught.value.reason is Problem.NOT_DURABLE
        found = identify(Peer("l", (session.origin,)), state.sessions.by_origin, state.clock.now())
        assert isinstance(found, Deny) and found.reason is Reason.SESSION_REVOKED
        assert house.changes()[-1] is SessionChange.REVOKED
        with pytest.raises(StateError):
            state.revoke(session.id, "operator")
        with pytest.raises(StateError):
            state.revoke_handle(session.id, handle.jti)
    state.sweep()
    state = house.restart(state)
    assert state.status(session.id) is Status.REVOKED
    assert state.session(session.id).revoked_handles == {handle.jti}


def test_nothing_is_given_that_is_not_on_disk(house: House, state: State) -> None:
    """No session, no renewal, no handle, no event."""
    session, _ = state.open_session(WANTED, "launcher")
    before = (state.sessions, state.handles(session.id), len(house.events))
    with full_disk(state):
        for call in (
            lambda: state.open_session(WANTED, "launcher"),
            lambda: state.renew(session.id, "launcher"),
            lambda: state.mint(session.id, "openai"),
            lambda: state.rebind(session.id, "launcher"),
        ):
            with pytest.raises(StateError) as caught:
                call()
            assert caught.value.reason is Problem.NOT_DURABLE
    assert (state.sessions, state.handles(session.id), len(house.events)) == before
