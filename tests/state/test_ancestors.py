"""What a session's processes may hold from lives before it: whose it is, and how long it is known."""

from dataclasses import replace
from typing import Any

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.session import MAX_ANCESTORS, Session
from coatcheck.state import MintedHandle, Problem, State, StateError, StateSettings, Status
from tests.state.house import WANTED, House, counts

ALL = replace(WANTED, credentials=None)
DAY = 24 * 3600.0


def opened(state: State, parent: str | None = None) -> tuple[Session, dict[str, str]]:
    """A session with all credentials, and its bare handles."""
    session, handles = state.open_session(replace(ALL, parent=parent), "launcher")
    return session, _values(handles)


def _values(handles: tuple[MintedHandle, ...]) -> dict[str, str]:
    return {each.credential: each.value.removeprefix("sk-ant-") for each in handles}


def test_a_forks_line_is_its_parent_and_its_parents_line(state: State) -> None:
    """Given by the state to every caller: nobody names ancestors one by one."""
    parent, _ = opened(state)
    child, _ = opened(state, parent.id)
    grandchild, _ = opened(state, child.id)
    assert parent.ancestors == frozenset()
    assert child.ancestors == {parent.id}
    assert grandchild.ancestors == {parent.id, child.id}


@pytest.mark.parametrize("change", [{"tenant": "other"}, {"subject": "other"}, {"policy": "weak"}])
def test_a_fork_is_nobody_elses(state: State, change: dict[str, Any]) -> None:
    """The names of credentials mean something within one policy only, and a sandbox changes no hands."""
    parent, _ = opened(state)
    with pytest.raises(StateError) as caught:
        state.open_session(replace(ALL, parent=parent.id, **change), "launcher")
    assert caught.value.reason is Problem.BAD_VALUE


def test_a_parent_that_there_is_not_is_refused(state: State) -> None:
    """Forgotten, or never there."""
    with pytest.raises(StateError) as caught:
        opened(state, "ses_nobody")
    assert caught.value.reason is Problem.UNKNOWN_SESSION


def test_a_line_has_an_end(state: State) -> None:
    """And the refusal says how to go on."""
    session, _ = opened(state)
    for _ in range(MAX_ANCESTORS):
        state.end(session.id, "launcher")
        session, _ = opened(state, session.id)
    with pytest.raises(StateError) as caught:
        opened(state, session.id)
    assert "new one" in caught.value.hint


def test_what_was_taken_from_the_parent_is_not_the_forks(state: State) -> None:
    """A credential that an operator took does not come back by a fork."""
    parent, _ = opened(state)
    state.revoke_where(lambda each: each.id == parent.id, "github", "operator")
    child, handles = opened(state, parent.id)
    assert child.credentials == {"openai", "anthropic"} == set(handles)


@pytest.mark.parametrize("name", ["openai", "anthropic", "github"])
def test_every_kind_of_string_counts_in_a_fork(state: State, name: str) -> None:
    """Signed, signed behind a shape, and a reference; the parent may be over."""
    parent, held = opened(state)
    child, _ = opened(state, parent.id)
    assert counts(state, child, held[name]) is None
    state.revoke(parent.id, "operator")
    assert counts(state, child, held[name]) is None
    assert counts(state, parent, held[name]) is Reason.SESSION_REVOKED


def test_what_a_parent_got_after_the_fork_is_never_the_forks(house: House, state: State) -> None:
    """Also when the fork itself is rebound, past its parent; in what is forked from it then; and after a
    restart."""
    parent, before = opened(state)
    child, _ = opened(state, parent.id)
    later = _values(state.rebind(parent.id, "launcher")[1])
    state.rebind(child.id, "launcher")
    child, handles = state.rebind(child.id, "launcher")
    own = _values(handles)
    grandchild, _ = opened(state, child.id)
    assert child.generation > state.session(parent.id).generation
    for _ in range(2):
        for each in (child, grandchild):
            assert counts(state, each, before["openai"]) is None
            assert counts(state, each, own["openai"]) is None
            assert counts(state, each, later["openai"]) is Reason.HANDLE_STALE
        state = house.restart(state)


def test_a_forks_strings_are_stolen_on_its_parents_channel(state: State) -> None:
    """And on its sibling's."""
    parent, _ = opened(state)
    (_, of_one), (two, _) = opened(state, parent.id), opened(state, parent.id)
    assert counts(state, parent, of_one["openai"]) is Reason.HANDLE_STOLEN
    assert counts(state, two, of_one["openai"]) is Reason.HANDLE_STOLEN


def test_an_ancestors_strings_are_known_for_as_long_as_a_fork_lives(house: House) -> None:
    """Long after its own end, its keys' end and restarts; after the last fork all of it is forgotten."""
    state = house.open(StateSettings(max_age=10 * DAY, key_rotation=DAY, max_lease=20 * DAY))
    parent, held = state.open_session(replace(ALL, max_age=3600), "launcher")
    state.end(parent.id, "launcher")
    child, _ = state.open_session(replace(ALL, parent=parent.id, lease_seconds=9 * DAY), "launcher")
    for _ in range(5):
        house.time.passes(DAY)
        state.sweep()
    for text in _values(held).values():
        assert counts(state, child, text) is None
    state = house.restart(state)
    for text in _values(held).values():
        assert counts(state, child, text) is None
    state.end(child.id, "launcher")
    house.time.passes(2 * 3600)
    state.sweep()
    house.time.passes(20)
    state.sweep()
    assert state.sessions.by_id == {}


def test_what_a_snapshot_holds_is_not_forgotten(house: House, state: State) -> None:
    """Nobody lives, but somebody may wake: its strings count then, and what was revoked stays revoked."""
    parent, held = opened(state)
    (leaked,) = (each.claims.jti for each in state.handles(parent.id) if each.claims.cred == "anthropic")
    state.revoke_handle(parent.id, leaked, "operator")
    state.keep(lambda: frozenset({parent.id}))
    state.end(parent.id, "launcher")
    for _ in range(4):
        house.time.passes(DAY)
        state.sweep()
    state = house.restart(state)
    child, _ = opened(state, parent.id)
    assert state.status(parent.id) is Status.ENDED
    assert counts(state, child, held["github"]) is None
    assert counts(state, child, held["openai"]) is None
    assert counts(state, child, held["anthropic"]) is Reason.HANDLE_REVOKED


def test_as_long_as_nobody_knows_what_is_kept_nothing_is_forgotten(house: House, state: State) -> None:
    """A daemon that has just started has not read its sandboxes' directories yet."""
    state.keep(lambda: None)
    session, _ = opened(state)
    state.end(session.id, "launcher")
    house.time.passes(2 * DAY)
    state.sweep()
    assert session.id in state.sessions.by_id
    state.keep(frozenset)
    house.time.passes(20)
    state.sweep()
    assert state.sessions.by_id == {}


def test_handles_of_minutes_are_not_kept(house: House, state: State) -> None:
    """A caller that asked for one can ask again: a parent that lives for long must not fill memory with
    them."""
    parent, _ = opened(state)
    opened(state, parent.id)
    state.mint(parent.id, "github", ttl=60)
    house.time.passes(61)
    state.renew(parent.id, "launcher")
    state.sweep()
    assert len(state.handles(parent.id)) == 3


def test_what_is_revoked_after_its_end_is_revoked(house: House, state: State) -> None:
    """A sandbox died, and is to be brought back: in between somebody revokes its session."""
    session, _ = opened(state)
    state.end(session.id, "launcher")
    state.revoke(session.id, "operator")
    assert state.status(session.id) is Status.REVOKED
    version = state.version
    state.revoke(session.id, "operator")
    state.end(session.id, "launcher")
    assert state.status(session.id) is Status.REVOKED and state.version == version
    assert house.restart(state).status(session.id) is Status.REVOKED


def test_revoking_everything_means_what_sleeps_too(house: House, state: State) -> None:
    """Its session ended when it fell asleep; what it was left with is what its next life has. One that can
    come back nowhere is left as it is."""
    asleep, _ = opened(state)
    gone, _ = opened(state)
    for each in (asleep, gone):
        state.end(each.id, "launcher")
    state.keep(lambda: {asleep.id})
    assert state.revoke_where(lambda _: True, "anthropic", "operator") == (asleep.id,)
    assert "anthropic" not in state.session(asleep.id).credentials
    assert state.revoke_where(lambda _: True, None, "operator") == (asleep.id,)
    assert state.revoke_where(lambda _: True, None, "operator") == ()
    state = house.restart(state)
    assert (state.status(asleep.id), state.status(gone.id)) == (Status.REVOKED, Status.ENDED)
    assert "anthropic" not in state.session(asleep.id).credentials


def test_what_is_not_counted_yet_is_revoked_as_if_it_were_held(state: State) -> None:
    """At a start, before anybody has looked at what is kept."""
    session, _ = opened(state)
    state.end(session.id, "launcher")
    state.keep(lambda: None)
    assert state.revoke_where(lambda _: True, None, "operator") == (session.id,)


def test_a_child_takes_the_origin_of_its_lapsed_parent_at_once(house: House, state: State) -> None:
    """A sandbox was paused for longer than its lease: it need not wait until somebody sweeps."""
    at = replace(ALL, origin=Origin(OriginClass.TOKEN, "issuer|pod"))
    parent, _ = state.open_session(at, "launcher")
    house.time.passes(1_000)
    child, _ = state.open_session(replace(at, parent=parent.id), "launcher")
    assert (state.status(parent.id), state.status(child.id)) == (Status.LAPSED, Status.LIVE)
    assert child.ancestors == {parent.id}
