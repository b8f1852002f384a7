"""Writing beside others: nobody's entry is lost, and what is judged is judged by all that came before."""

import signal
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.session import Session
from coatcheck.fleet.store import Heard, Store
from coatcheck.state import Problem, StateError, Status
from coatcheck.state.changes import KeysChanged, Renewed
from coatcheck.state.replica import Replica
from coatcheck.state.sessions import NewSession
from tests.system.fleet.fleet import PATIENCE, Daemon, Fleet, fleet, until, wanted
from tests.system.fleet.postgres_server import PostgresServer, postgres_server, standby_of

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")


def _replica(daemon: Daemon) -> Replica:
    assert daemon.state.replica is not None
    return daemon.state.replica


def test_three_that_write_at_once_lose_nothing(three: Fleet) -> None:
    """Each commit follows on the one before, whichever daemon made that."""

    def open_some(number: int) -> list[str]:
        state = three.daemons[number].state
        return [state.open_session(wanted(f"issuer|{number}-{n}"), "launcher")[0].id for n in range(15)]

    with ThreadPoolExecutor(3) as pool:
        opened = {each for ids in pool.map(open_some, range(3)) for each in ids}
    assert len(opened) == 45
    for daemon in three.daemons:
        until(lambda daemon: opened <= set(daemon.state.sessions.by_id), daemon)
        assert "shared_state_founded" not in daemon.told() or daemon is three.daemons[0]


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
    """The commit got there, its acknowledgement did not: nobody has the handles, so it is ended again."""
    from coatcheck.fleet.connection import SharedStateDown

    a, b, _ = three.daemons
    committed: list[bool] = []
    change = Store.change

    def lost(store: Store, *arguments: object) -> object:
        done = change(store, *arguments)  # type: ignore[arg-type]
        if not committed:
            committed.append(True)
            raise SharedStateDown("the answer was lost")
        return done

    monkeypatch.setattr(Store, "change", lost)
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
    _, (new,) = b.state.rebind(parent.id, "launcher")
    until(lambda: a.counts(parent, new.value) is None)
    assert a.counts(parent, old.value) is Reason.HANDLE_STALE
    a.state.rebind(forked.id, "launcher")
    again, _ = a.state.rebind(forked.id, "launcher")  # past its parent, whose new handle is not its own
    until(lambda: b.state.session(forked.id).generation == again.generation)
    for each in (a, b):
        assert each.state.session(forked.id).born == forked.generation < again.generation
        assert each.counts(forked, old.value) is None
        assert each.counts(forked, new.value) is Reason.HANDLE_STALE


@pytest.mark.parametrize("how", ["all", "this one"])
def test_what_sleeps_at_one_member_is_revoked_at_another(three: Fleet, how: str) -> None:
    """Its session is over, and nobody else knows that a sandbox of it could come back: it must not, nor with
    a credential that was taken meanwhile. Also after a restart."""
    a, b, _ = three.daemons
    sessions = [a.state.open_session(wanted(f"issuer|{n}"), "launcher")[0] for n in range(2)]
    for each in sessions:
        a.state.end(each.id, "sandbox")
    asleep, other = sessions
    a.state.keep(lambda: frozenset(each.id for each in sessions))
    until(lambda: b.refuses(other) is Reason.SESSION_REVOKED)
    b.state.revoke_where(lambda each: each.id == other.id, "openai", "operator")
    until(lambda: a.state.session(other.id).credentials == frozenset())
    if how == "all":
        gone = b.state.revoke_where(lambda each: True, None, "operator")
        assert set(gone) == {asleep.id, other.id}
    else:
        b.state.revoke(asleep.id, "operator")
    until(lambda: a.state.status(asleep.id) is Status.REVOKED)
    a = three.restart(a)
    assert a.state.status(asleep.id) is Status.REVOKED
    assert a.state.session(other.id).credentials == frozenset()


def test_what_another_opened_a_moment_before_is_revoked_with_all(
    three: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon that revokes has not heard of it yet: it is answered when it has, and revoked that, too. One
    that never hears is not told that all are."""
    a, b, _ = three.daemons
    store, stuck, held = b.member.follower.store, Event(), Event()
    listen = store.listen

    def later(*about: object, **more: object) -> Heard:
        stuck.set()
        assert held.wait(PATIENCE)
        return listen(*about, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(b.state.hearing, "max_silence", PATIENCE)
    monkeypatch.setattr(store, "listen", later)
    assert stuck.wait(PATIENCE)
    session, _ = a.state.open_session(wanted(), "launcher")
    try:
        monkeypatch.setattr("coatcheck.state.replication_health.CATCH_UP_SECONDS", 0.1)
        with pytest.raises(StateError, match="a moment before"):
            b.state.revoke_where(lambda each: True, None, "operator")
        monkeypatch.setattr("coatcheck.state.replication_health.CATCH_UP_SECONDS", PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(b.state.revoke_where, lambda each: True, None, "operator")
            assert not b.knows(session)
            held.set()
            assert taking.result(PATIENCE) == (session.id,)
    finally:
        held.set()
    until(lambda: a.refuses(session) is Reason.SESSION_REVOKED)


def test_what_lapses_lapses_for_all(three: Fleet, server: PostgresServer) -> None:
    """The daemon that sweeps first says so; its origin is free again, and the database keeps no lease of
    it."""
    a, b, c = three.daemons
    wanted_short = NewSession("acme", "agent-7", "agents", wanted().origin, lease_seconds=1.0)
    session, _ = a.state.open_session(wanted_short, "launcher")
    until(lambda: b.knows(session) and c.knows(session))
    until(lambda: b.refuses(session) is Reason.LEASE_LAPSED)
    until(lambda: bool(b.state.sweep()) or b.changes(session)[-1] == "lapsed")
    until(lambda: a.changes(session)[-1] == c.changes(session)[-1] == "lapsed")
    again, _ = c.state.open_session(wanted(), "launcher")
    until(lambda: a.refuses(again) is None)
    assert server.do("SELECT * FROM leases WHERE session = %s", session.id) == []


def test_a_slow_database_refuses_nobody_and_delays_no_revocation_where_it_is_asked(
    server: PostgresServer, short: Path
) -> None:
    """It answers nothing for a fifth of a second, again and again: less than what is waited for. Everything
    goes on, and nobody is refused; a revocation counts at once here, and soon there."""
    ended = Event()

    def slow() -> None:
        while not ended.wait(0.05):
            server.send(signal.SIGSTOP)
            time.sleep(0.2)
            server.send(signal.SIGCONT)

    with fleet(server, short / "fleet", shared_state_max_silence=30.0) as made, ThreadPoolExecutor(2) as pool:
        a, b = made.daemon(), made.daemon()
        sessions = [a.state.open_session(wanted(f"issuer|{n}"), "launcher")[0] for n in range(5)]
        until(lambda: b.knows(sessions[-1]))
        slowing = pool.submit(slow)
        try:
            for session in sessions:
                until(_renewed, a, session)
                taking = pool.submit(b.state.revoke, session.id, "operator")
                until(lambda: b.refuses(session) is Reason.SESSION_REVOKED)  # noqa: B023
                if taking.exception(PATIENCE) is not None:  # a busy machine is slower still
                    until(_revoked, b, session)
                until(lambda: a.refuses(session) is Reason.SESSION_REVOKED)  # noqa: B023
                assert a.hears and b.hears
        finally:
            ended.set()
        slowing.result(PATIENCE)
        assert "shared_state_silent" not in (*a.told(), *b.told())


def test_who_renews_what_is_over_leaves_no_lease_behind(three: Fleet, server: PostgresServer) -> None:
    """It had not heard yet: nobody would ever take that lease away again."""
    a, b, _ = three.daemons
    session, _ = a.state.open_session(wanted(), "launcher")
    until(lambda: b.knows(session))
    a.state.revoke(session.id, "operator")
    renewal = Renewed(session.id, 600.0, time.time() + 600)
    _replica(b).database.publisher.renew([renewal])
    assert server.do("SELECT * FROM leases") == []


@contextmanager
def _unable_to_write(server: PostgresServer) -> Iterator[None]:
    """Changing sessions alone: everybody goes on hearing."""
    server.do("REVOKE INSERT ON sessions FROM coatcheck_runtime")
    try:
        yield
    finally:
        server.do("GRANT INSERT ON sessions TO coatcheck_runtime")


def _renewed(daemon: Daemon, session: Session) -> bool:
    try:
        return bool(daemon.state.renew(session.id, "launcher", 500))
    except StateError:
        return False


def _revoked(daemon: Daemon, session: Session) -> bool:
    try:
        return bool(daemon.state.revoke(session.id, "operator"))
    except StateError:
        return False  # a failure is not followed by an attempt for a second


def test_a_revocation_that_is_repeated_is_answered_when_the_others_know(
    three: Fleet, server: PostgresServer
) -> None:
    """Each way to say it again is refused until then: that it is in force here is not what was asked for."""
    a, b, _ = three.daemons
    session, _ = a.state.open_session(wanted(), "launcher")
    until(lambda: b.knows(session))
    with _unable_to_write(server):
        for _ in range(2):
            with pytest.raises(StateError) as refused:
                a.state.revoke(session.id, "operator")
            assert refused.value.reason is Problem.NOT_DURABLE
        for credential in (None, "openai"):
            with pytest.raises(StateError) as refused:
                a.state.revoke_where(lambda each: False, credential, "operator")
            assert refused.value.reason is Problem.NOT_DURABLE
        assert b.refuses(session) is None
        assert (_replica(a).database.debt, _replica(b).database.debt) == (1, 0)
    until(_revoked, a, session)
    until(lambda: b.refuses(session) is Reason.SESSION_REVOKED)
    assert _replica(a).database.debt == 0


def test_a_revocation_that_no_synchronous_standby_has_is_refused_until_one_has_it(short: Path) -> None:
    """It is in force where it was asked for; the others hear nothing either, and refuse everything."""
    with (
        postgres_server(short / "primary") as primary,
        standby_of(primary, short / "standby", synchronous=True) as standby,
        fleet(primary, short / "fleet", shared_state_max_silence=2.0) as made,
    ):
        daemon = made.daemon()
        session, _ = daemon.state.open_session(wanted(), "launcher")
        standby.send(signal.SIGSTOP)
        with pytest.raises(StateError) as refused:
            daemon.state.revoke(session.id, "operator")
        assert refused.value.reason is Problem.NOT_DURABLE
        until(lambda: not daemon.hears)
        standby.send(signal.SIGCONT)
        until(lambda: daemon.hears)
        until(_revoked, daemon, session)


def test_a_connection_that_was_cut_while_idle_fails_nobody(three: Fleet, server: PostgresServer) -> None:
    """By a load balancer or the database: the first change after a quiet hour is no exception."""
    a = three.daemons[0]
    first, _ = a.state.open_session(wanted("issuer|first"), "launcher")
    for _ in range(3):
        server.cut_all()
        until(lambda: a.hears)
        a.state.renew(first.id, "launcher")
    server.cut_all()
    a.state.revoke(first.id, "operator")


def test_what_a_member_did_a_moment_ago_speaks_against_nothing_that_it_does(
    three: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own commits were judged here already, whether its follower has read them or not."""
    a, b, _ = three.daemons
    store, held = a.member.follower.store, Event()
    listen = store.listen

    def later(*about: object, **more: object) -> Heard:
        assert held.wait(PATIENCE)
        return listen(*about, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "listen", later)
    monkeypatch.setattr(a.state.hearing, "max_silence", PATIENCE)
    monkeypatch.setattr(a.state.hearing, "catch_up", lambda now: None)
    try:
        for _ in range(3):
            session, _ = a.state.open_session(wanted("issuer|same"), "launcher")
            a.state.revoke_where(lambda each: each.id == session.id, "openai", "operator")  # noqa: B023
            a.state.rebind(session.id, "launcher")
            a.state.revoke(session.id, "operator")
    finally:
        held.set()
    until(lambda: b.refuses(session) is Reason.SESSION_REVOKED)


@contextmanager
def _hearing_nothing(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its copy stays as it is, and it goes on all the same."""
    store, stuck, held = daemon.member.follower.store, Event(), Event()
    listen = store.listen

    def later(*about: object, **more: object) -> Heard:
        stuck.set()
        assert held.wait(PATIENCE)
        return listen(*about, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        assert daemon.state.hearing is not None
        patched.setattr(daemon.state.hearing, "max_silence", PATIENCE)
        patched.setattr(store, "listen", later)
        assert stuck.wait(PATIENCE)
        try:
            yield
        finally:
            held.set()


@pytest.mark.parametrize("theirs", ["revoke", "end", "rebind", "credential"])
def test_nothing_is_given_to_what_another_changed_meanwhile(
    three: Fleet, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    """It was judged by a copy in which the session is no longer what it is."""
    a, b, _ = three.daemons
    both = replace(wanted(), credentials=frozenset({"openai", "anthropic"}))
    session, _ = a.state.open_session(both, "launcher")
    until(lambda: b.knows(session))
    with _hearing_nothing(b, monkeypatch):
        match theirs:
            case "revoke":
                a.state.revoke(session.id, "operator")
            case "end":
                a.state.end(session.id, "sandbox")
            case "rebind":
                a.state.rebind(session.id, "launcher")
            case _:
                a.state.revoke_where(lambda each: True, "openai", "operator")
        for give in (
            lambda: b.state.mint(session.id, "openai"),
            lambda: b.state.rebind(session.id, "launcher"),
        ):
            with pytest.raises(StateError, match="by another daemon at the same moment") as refused:
                give()
            assert refused.value.reason is Problem.NOT_DURABLE


@pytest.mark.parametrize("theirs", ["revoke", "credential", "end", "rebind"])
def test_a_child_is_not_opened_of_what_something_was_taken_from_meanwhile(
    three: Fleet, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    """It has what its daemon knew its parent to have. That its parent ended, or began anew, is no matter."""
    a, b, _ = three.daemons
    parent, _ = a.state.open_session(wanted("issuer|parent"), "launcher")
    until(lambda: b.knows(parent))
    child = NewSession("acme", "agent-7", "agents", wanted("issuer|child").origin, parent=parent.id)
    with _hearing_nothing(b, monkeypatch):
        match theirs:
            case "revoke":
                a.state.revoke(parent.id, "operator")
            case "end":
                a.state.end(parent.id, "sandbox")
            case "rebind":
                a.state.rebind(parent.id, "launcher")
            case _:
                a.state.revoke_where(lambda each: True, "openai", "operator")
        if theirs in ("end", "rebind"):
            assert b.state.open_session(child, "launcher")
        else:
            with pytest.raises(StateError, match="which it comes from, at the same moment"):
                b.state.open_session(child, "launcher")


def test_keys_are_changed_by_one_at_a_time(three: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what the first signed would count nowhere."""
    a, b, _ = three.daemons
    with _hearing_nothing(b, monkeypatch):
        for daemon, refused in ((a, False), (b, True)):
            replica = _replica(daemon)
            keys = KeysChanged(replica.keys.rotated(time.time(), 60.0).exported())
            with replica.writing, pytest.raises(StateError, match="the keys") if refused else nullcontext():
                replica.database.publisher.give([keys])


def test_a_child_takes_the_origin_of_its_lapsed_parent_at_once(three: Fleet) -> None:
    """As a sandbox does that was paused for too long: it need not wait until somebody sweeps."""
    a, b, _ = three.daemons
    short_lived = replace(wanted(), lease_seconds=1.0)
    parent, _ = a.state.open_session(short_lived, "launcher")
    until(lambda: b.refuses(parent) is Reason.LEASE_LAPSED)
    child, _ = b.state.open_session(replace(wanted(), parent=parent.id), "launcher")
    until(lambda: a.refuses(child) is None)
    assert child.ancestors == {parent.id}


def test_a_session_that_could_not_be_kept_here_is_ended_at_the_others(three: Fleet) -> None:
    """Told, and then our own commit failed: nobody has its handles, and it must not hold its origin."""
    a, b, _ = three.daemons
    replica = a.state.replica
    assert replica is not None
    connection = replica.database.sql
    replica.database.sql = _FullDisk(connection)  # type: ignore[assignment]
    with pytest.raises(StateError, match="the fleet has the change") as refused:
        a.state.open_session(wanted(), "launcher")
    assert refused.value.reason is Problem.NOT_DURABLE
    until(lambda: len(b.state.sessions.by_id) == 1)
    (orphan,) = b.state.sessions.by_id.values()
    replica.database.sql = connection
    until(lambda: b.refuses(orphan) is Reason.SESSION_REVOKED)


class _FullDisk:
    """SQLite when nothing can be committed, nor noted outside of a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *about: Any) -> sqlite3.Cursor:
        if statement == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        return self._connection.execute(statement, *about)

    def executemany(self, statement: str, about: Any) -> sqlite3.Cursor:
        if not self._connection.in_transaction:
            raise sqlite3.OperationalError("database or disk is full")
        return self._connection.executemany(statement, about)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction
