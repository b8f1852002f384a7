"""Writing beside others: nobody's entry is lost, and what is judged is judged by all that came before."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from coatcheck.decision.verdict import Reason
from coatcheck.fleet.shared_log import SharedLog
from coatcheck.state import Problem, StateError
from coatcheck.state.replica import Replica
from coatcheck.state.sessions import NewSession
from tests.fleet.fleet import Daemon, Fleet, until, wanted
from tests.fleet.redis_server import RedisServer

pytestmark = pytest.mark.needs_debian("redis-server")


def _replica(daemon: Daemon) -> Replica:
    assert daemon.state.replica is not None
    return daemon.state.replica


def test_three_that_write_at_once_lose_nothing(three: Fleet) -> None:
    """Each entry follows on the one before, whoever wrote that."""

    def open_some(number: int) -> list[str]:
        state = three.daemons[number].state
        return [state.open_session(wanted(f"issuer|{number}-{n}"), "launcher")[0].id for n in range(15)]

    with ThreadPoolExecutor(3) as pool:
        opened = {each for ids in pool.map(open_some, range(3)) for each in ids}
    assert len(opened) == 45
    for daemon in three.daemons:
        until(lambda daemon: opened <= set(daemon.state.sessions.by_id), daemon)
        assert daemon.epoch == 1


def test_one_of_many_that_ask_at_once_gets_an_origin(three: Fleet) -> None:
    """The rest are told whose it is."""

    def open_one(number: int) -> str | Problem:
        try:
            return three.daemons[number].state.open_session(wanted("issuer|same"), "launcher")[0].id
        except StateError as error:
            return error.reason

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(open_one, range(3)))
    assert sorted(answer is Problem.ORIGIN_TAKEN for answer in answers) == [False, True, True]
    (won,) = [answer for answer in answers if answer is not Problem.ORIGIN_TAKEN]
    for daemon in three.daemons:
        until(lambda daemon: won in daemon.state.sessions.by_id, daemon)
        assert len(daemon.state.sessions.by_id) == 1


def test_an_answer_that_was_lost_leaves_no_session_behind(
    three: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry got there, its acknowledgement did not: nobody has the handles, so it is ended again."""
    from coatcheck.fleet.connection import SharedStateDown

    a, b, _ = three.daemons
    appended: list[bool] = []
    append = SharedLog.append

    def lost(log: SharedLog, *arguments: object) -> object:
        done = append(log, *arguments)  # type: ignore[arg-type]
        if not appended:
            appended.append(True)
            raise SharedStateDown("the answer was lost")
        return done

    monkeypatch.setattr(SharedLog, "append", lost)
    with pytest.raises(StateError) as refused:
        a.state.open_session(wanted(), "launcher")
    assert refused.value.reason is Problem.NOT_DURABLE
    until(lambda: len(b.state.sessions.by_id) == 1)
    (orphan,) = b.state.sessions.by_id.values()
    for each in (a, b):
        until(lambda each: each.refuses(orphan) is Reason.SESSION_REVOKED, each)
    session, _ = a.state.open_session(wanted(), "launcher")
    until(lambda: b.refuses(session) is None)


def test_a_fork_and_a_new_generation_are_known_everywhere(three: Fleet) -> None:
    """Ancestors and generations travel with their sessions."""
    a, b, _ = three.daemons
    parent, (old,) = a.state.open_session(wanted("issuer|parent"), "launcher")
    until(lambda: b.knows(parent))
    child = NewSession("acme", "agent-7", "agents", wanted("issuer|child").origin, parent=parent.id)
    forked, _ = b.state.open_session(child, "launcher")
    until(lambda: a.knows(forked))
    assert a.state.session(forked.id).ancestors == {parent.id}
    _, (new,) = b.state.bump_generation(parent.id, "launcher")
    until(lambda: a.counts(parent, new.value) is None)
    assert a.counts(parent, old.value) is Reason.HANDLE_STALE


def test_what_lapses_lapses_for_all(three: Fleet, server: RedisServer) -> None:
    """Whoever sweeps first says so; its origin is free again, and Redis keeps no lease of it."""
    a, b, c = three.daemons
    wanted_short = NewSession("acme", "agent-7", "agents", wanted().origin, lease_seconds=1.0)
    session, _ = a.state.open_session(wanted_short, "launcher")
    until(lambda: b.knows(session) and c.knows(session))
    until(lambda: b.refuses(session) is Reason.LEASE_LAPSED)
    until(lambda: bool(b.state.sweep()) or b.changes(session)[-1] == "lapsed")
    until(lambda: a.changes(session)[-1] == c.changes(session)[-1] == "lapsed")
    again, _ = c.state.open_session(wanted(), "launcher")
    until(lambda: a.refuses(again) is None)
    assert session.id.encode() not in server.admin().hgetall("coatcheck:{coatcheck}:leases")
