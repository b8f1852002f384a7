"""Readers in other threads always see whole values, and changes from several threads all happen."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.message import Origin, OriginClass, Peer
from coatcheck.decision.session import Session, identify
from coatcheck.state import Problem, State, StateError, StateSettings
from coatcheck.state.changes import Closed, CredentialsLeft
from coatcheck.state.replica import Commit
from coatcheck.state.shared_database import Position
from tests.state.house import POLICIES, WANTED, House, reason
from tests.state.slow_others import PATIENCE, SlowOthers, state_of_a_fleet
from tests.system.fleet.fleet import until


def test_a_reader_never_sees_half_a_change(house: House) -> None:
    """While sessions open, renew and end, each snapshot's two maps agree and its epoch only grows."""
    state = house.open(StateSettings(max_sessions=1_000))
    stop = threading.Event()
    wrong: list[str] = []
    readings = 0

    def read() -> None:
        nonlocal readings
        epoch = 0
        while not stop.is_set():
            seen = state.sessions
            readings += 1
            if seen.epoch < epoch:
                wrong.append("the epoch went back")
            epoch = seen.epoch
            wrong.extend(
                f"{session.id} differs"
                for session in seen.by_id.values()
                if seen.by_origin.get(session.origin) is not session
            )

    def write() -> None:
        try:
            for _ in range(15):
                session, _ = state.open_session(WANTED, "launcher")
                state.renew(session.id, "launcher")
                state.mint(session.id, "openai")
                state.revoke(session.id, "operator")
        except Exception as error:
            wrong.append(repr(error))

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write) for _ in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert wrong == [] and readings > 0
    assert len(state.sessions.by_id) == 60 and all(s.revoked for s in state.sessions.by_id.values())


def test_after_revoke_returns_no_thread_sees_the_session_alive(state: State) -> None:
    """The order that the plane relies on: revoked, then answered."""
    seen_alive_after: list[str] = []
    for _ in range(20):
        session, _ = state.open_session(WANTED, "launcher")
        answered = threading.Event()

        def use(session: Session = session, answered: threading.Event = answered) -> None:
            while True:
                was_answered = answered.is_set()
                found = identify(Peer("l", (session.origin,)), state.sessions.by_origin, state.clock.now())
                if was_answered:
                    if isinstance(found, Session):
                        seen_alive_after.append(session.id)
                    return

        thread = threading.Thread(target=use)
        thread.start()
        state.revoke(session.id, "operator")
        answered.set()
        thread.join()
    assert seen_alive_after == []


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[State, SlowOthers]]:
    with state_of_a_fleet(tmp_path / "sessions") as made:
        yield made


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def refused(state: State, session: Session) -> Reason | None:
    """As it is seen this very moment, and within the patience that a thread's start takes."""
    deadline = time.monotonic() + PATIENCE
    while (why := reason(state, session)) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return why


def opened(state: State, value: str) -> Session:
    return state.open_session(replace(WANTED, origin=Origin(OriginClass.TOKEN, value)), "launcher")[0]


def test_a_revocation_is_in_force_here_while_others_cannot_be_told(
    fleet: tuple[State, SlowOthers], threads: ThreadPoolExecutor
) -> None:
    """Whatever is on its way to them: each way to revoke, and a policy that is swapped on the plane's loop.
    The caller is answered when the others know."""
    state, others = fleet
    sessions = [opened(state, str(number)) for number in range(3)]
    (handle,) = state.handles(sessions[1].id)
    for giving in (
        lambda: opened(state, "late"),
        lambda: state.renew(sessions[2].id, "launcher"),
        lambda: state.mint(sessions[2].id, "openai"),
        lambda: state.rebind(sessions[2].id, "launcher"),
    ):
        session = opened(state, "taken")
        with others.slow():
            given = threads.submit(giving)
            assert others.waiting.wait(PATIENCE)
            taken = threads.submit(state.revoke, session.id, "operator")
            assert refused(state, session) is Reason.SESSION_REVOKED
            state.swap_policies(POLICIES)
            assert not given.done()
            assert not taken.done()
        taken.result(PATIENCE)
        given.result(PATIENCE)
        assert any(isinstance(each, Closed) and each.session == session.id for each in others.told)
    with others.slow():
        given = threads.submit(opened, state, "later")
        assert others.waiting.wait(PATIENCE)
        first = threads.submit(state.revoke_handle, sessions[1].id, handle.claims.jti)
        every = threads.submit(state.revoke_where, lambda each: each.id == sessions[0].id, None, "operator")
        assert refused(state, sessions[0]) is Reason.SESSION_REVOKED
        until(lambda: state.session(sessions[1].id).revoked_handles == {handle.claims.jti})
        state.replica.cut_all()  # type: ignore[union-attr]
        assert not (first.done() or every.done())
    assert every.result(PATIENCE) == (sessions[0].id,)
    first.result(PATIENCE)


@pytest.mark.parametrize("give", ["renew", "rebind"])
def test_what_is_revoked_while_something_is_given_to_it_stays_revoked(
    threads: ThreadPoolExecutor, give: str, tmp_path: Path
) -> None:
    """What was judged before would put the live session back, here and at the next start."""
    with state_of_a_fleet(tmp_path / "sessions") as (state, others):
        session = opened(state, "one")
        with others.slow():
            given = threads.submit(getattr(state, give), session.id, "launcher")
            assert others.waiting.wait(PATIENCE)
            taken = threads.submit(state.revoke, session.id, "operator")
            assert refused(state, session) is Reason.SESSION_REVOKED
        with pytest.raises(StateError) as closed:
            given.result(PATIENCE)
        assert closed.value.reason is Problem.SESSION_CLOSED
        taken.result(PATIENCE)
        assert reason(state, session) is Reason.SESSION_REVOKED
    with state_of_a_fleet(tmp_path / "sessions") as (again, _):
        assert reason(again, session) is Reason.SESSION_REVOKED


def test_a_child_of_what_is_revoked_while_it_is_made_is_ended(
    fleet: tuple[State, SlowOthers], threads: ThreadPoolExecutor
) -> None:
    """All of a tenant was revoked before the child could be seen: it is of before, and must not be missed."""
    state, others = fleet
    parent = opened(state, "parent")
    child = replace(WANTED, origin=Origin(OriginClass.TOKEN, "child"), parent=parent.id)
    with others.slow():
        given = threads.submit(state.open_session, child, "launcher")
        assert others.waiting.wait(PATIENCE)
        taken = threads.submit(state.revoke_where, lambda each: True, None, "operator")
        assert refused(state, parent) is Reason.SESSION_REVOKED
    with pytest.raises(StateError, match="at the same moment"):
        given.result(PATIENCE)
    taken.result(PATIENCE)
    assert {each.revoked for each in state.sessions.by_id.values()} == {True}
    told = [each.session for each in others.told if isinstance(each, Closed)]
    assert set(told) == set(state.sessions.by_id)


def test_what_is_being_opened_when_all_is_revoked_is_revoked_too(
    house: House, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a daemon alone: the disk takes its time, and nobody can see the session yet."""
    state = house.open()
    writing, on = threading.Event(), threading.Event()
    put = state.database.put_session

    def slow(session: Session, until: float) -> None:
        writing.set()
        assert on.wait(PATIENCE)
        put(session, until)

    monkeypatch.setattr(state.database, "put_session", slow)
    given = threads.submit(opened, state, "one")
    assert writing.wait(PATIENCE)
    taken = threads.submit(state.revoke_where, lambda each: True, None, "operator")
    until(lambda: state.writing.waiting == 1)
    on.set()
    session = given.result(PATIENCE)
    assert taken.result(PATIENCE) == (session.id,)
    assert reason(state, session) is Reason.SESSION_REVOKED


@pytest.mark.parametrize("down", [False, True])
def test_whose_revocation_is_written_with_anothers_is_answered_like_that(
    threads: ThreadPoolExecutor, down: bool, tmp_path: Path
) -> None:
    """Several wait behind one that is being told: none is lost, and none is answered before the others know,
    nor if they never do."""
    with state_of_a_fleet(tmp_path / "sessions") as (state, others):
        sessions = [opened(state, str(number)) for number in range(4)]
        with others.slow():
            others.down = down
            taken = [threads.submit(state.revoke, sessions[0].id, "operator")]
            assert others.waiting.wait(PATIENCE)
            taken += [threads.submit(state.revoke, each.id, "operator") for each in sessions[1:]]
            assert {refused(state, each) for each in sessions} == {Reason.SESSION_REVOKED}
            assert not any(each.done() for each in taken)
        failures = [each.exception(PATIENCE) for each in taken]
        assert [isinstance(each, StateError) for each in failures] == [down] * 4
        told = {each.session for each in others.told if isinstance(each, Closed)}
        assert told == (set() if down else {each.id for each in sessions})
    with state_of_a_fleet(tmp_path / "sessions") as (again, _):
        assert {reason(again, each) for each in sessions} == {Reason.SESSION_REVOKED}
        assert again.replica is not None
        owed = {each.session for each in again.replica.database.owed() if isinstance(each, Closed)}
        assert owed == {each.id for each in sessions} - told


def test_a_policy_that_goes_while_a_session_is_opened_fails_nobody_badly(
    fleet: tuple[State, SlowOthers], threads: ThreadPoolExecutor
) -> None:
    """It is opened under what was in force when it was judged, and refused by what is in force now."""
    state, others = fleet
    with others.slow():
        given = threads.submit(opened, state, "one")
        assert others.waiting.wait(PATIENCE)
        state.swap_policies({})
    assert reason(state, given.result(PATIENCE)) is None
    assert state.policies == {}


def test_what_two_take_from_a_session_at_once_is_gone_for_good(
    threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """One credential here and one at another daemon, whichever is written first: not only until a restart."""
    three = replace(WANTED, credentials=frozenset({"openai", "anthropic", "github"}))
    with state_of_a_fleet(tmp_path / "sessions") as (state, others):
        session, _ = state.open_session(three, "launcher")
        assert state.replica is not None
        with others.slow():
            renewing = threads.submit(state.renew, session.id, "launcher")
            assert others.waiting.wait(PATIENCE)
            theirs = Commit("other", 0.0, (CredentialsLeft(session.id, frozenset({"openai", "anthropic"})),))
            applied = threads.submit(state.replica.apply, [theirs], Position(1, 1, 1), {})
            until(lambda: state.writing.waiting == 1)
            taken = threads.submit(state.revoke_where, lambda each: True, "openai", "operator")
            until(lambda: state.session(session.id).credentials == {"anthropic", "github"})
        for each in (renewing, applied, taken):
            each.result(PATIENCE)
        assert state.session(session.id).credentials == {"anthropic"}
    with state_of_a_fleet(tmp_path / "sessions") as (again, _):
        assert again.session(session.id).credentials == {"anthropic"}
