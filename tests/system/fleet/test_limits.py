"""Limits of a fleet: what passes at all daemons together, the tolerance, and what a silent database does."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Limit, LimitKind, LimitScope, Policy, Rule
from coatcheck.decision.session import Session
from coatcheck.fleet import limits
from coatcheck.fleet.limits import SharedLimits
from coatcheck.fleet.store import Store
from coatcheck.settings.daemon import Settings
from coatcheck.settings.shared_state import SharedStateServer
from coatcheck.state.buckets import Buckets, ShareAwaited
from coatcheck.state.levels import levels
from tests.state.test_changes import SESSION
from tests.system.fleet.fleet import new_key
from tests.system.fleet.postgres_server import PASSWORD, PostgresServer

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")

RULE = Rule("model calls", (), frozenset(), (), frozenset())


@dataclass
class One:
    """A daemon, as far as limits go."""

    buckets: Buckets
    shared: SharedLimits
    store: Store

    async def ask(self, rule: Rule, session: Session = SESSION) -> Deny | None:
        """As the exchange asks: once more for as long as a share is awaited."""
        async with asyncio.timeout(20):
            while True:
                answer = self.buckets.take(session, rule, (), time.monotonic())
                if not isinstance(answer, ShareAwaited):
                    return answer
                await asyncio.shield(answer.future)

    async def ask_all(self, rule: Rule, count: int) -> int:
        """So many at once: how many may."""
        return sum(answer is None for answer in await asyncio.gather(*(self.ask(rule) for _ in range(count))))


def server_of(server: PostgresServer, directory: Path) -> SharedStateServer:
    """As settings give it."""
    password = directory / "password"
    password.write_text(PASSWORD)
    key = new_key(directory / "key")
    settings = Settings(shared_state=server.url, shared_state_key=key, shared_state_password_file=password)
    found = settings.shared_state_server
    assert found is not None
    return found


@asynccontextmanager
async def daemons(server: PostgresServer, directory: Path, count: int = 3) -> AsyncIterator[list[One]]:
    where = server_of(server, directory)
    server.do("INSERT INTO limits_since (at) VALUES (0)")
    made: list[One] = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            store = Store(where, bytes(32), "coatcheck", f"daemon-{number}", 10.0)
            server.do("INSERT INTO members VALUES (%s, now())", f"daemon-{number}")
            shared = SharedLimits(store, bytes(32), lambda: count, time.monotonic, 1.0)
            buckets = Buckets()
            buckets.shares = shared
            shared.start()
            stack.push_async_callback(shared.stop)
            made.append(One(buckets, shared, store))
        yield made


def rule(limit: Limit) -> Rule:
    return replace(RULE, limits=(limit,))


@pytest.mark.parametrize("per", [LimitScope.TENANT, LimitScope.SUBJECT, LimitScope.RULE, LimitScope.SESSION])
async def test_a_burst_is_shared_within_the_tolerance(
    server: PostgresServer, short: Path, per: LimitScope
) -> None:
    """Three daemons are asked for all of it at once: all of it is given, and at most half as much again."""
    limited = rule(Limit(LimitKind.REQUESTS, 60, 3600.0, 60, per))
    async with daemons(server, short) as three:
        passed = sum(await asyncio.gather(*(one.ask_all(limited, 60) for one in three)))
    assert 60 <= passed <= 60 + 30 + 1  # one more may have come back within the second that this takes


async def test_one_after_the_other_gets_what_the_first_left(server: PostgresServer, short: Path) -> None:
    """A tenant that moves on to the next daemon finds no second burst there."""
    limited = rule(Limit(LimitKind.REQUESTS, 30, 3600.0, 30, LimitScope.TENANT))
    async with daemons(server, short) as three:
        first = await three[0].ask_all(limited, 40)
        await asyncio.sleep(0)
        rest = [await one.ask_all(limited, 40) for one in three[1:]]
    assert first >= 30
    assert sum(rest) <= 15


async def test_what_was_too_much_is_paid_back_by_waiting(server: PostgresServer, short: Path) -> None:
    """Over time no more passes than the policy says."""
    limited = rule(Limit(LimitKind.REQUESTS, 20, 1.0, 4, LimitScope.TENANT))
    passed, began = 0, time.monotonic()
    async with daemons(server, short) as three:
        while time.monotonic() - began < 1.5:
            passed += sum(await asyncio.gather(*(one.ask_all(limited, 2) for one in three)))
            await asyncio.sleep(0.01)
        lasted = time.monotonic() - began
    assert passed <= 20 * lasted + 4 + 3 + 1


async def test_a_burst_at_one_daemon_is_served_whole(server: PostgresServer, short: Path) -> None:
    """Shares are asked for, not refused: nobody is told 429 for less than the policy allows."""
    limited = rule(Limit(LimitKind.REQUESTS, 10, 3600.0, 10, LimitScope.TENANT))
    async with daemons(server, short) as (one, _, _):
        assert await one.ask_all(limited, 10) == 10
        refused = await one.ask(limited)
    assert isinstance(refused, Deny)
    assert refused.reason is Reason.RATE_LIMITED


async def test_what_runs_at_once_is_counted_everywhere(server: PostgresServer, short: Path) -> None:
    """Also what has ended there, and what a daemon that died had running."""
    limited = rule(Limit(LimitKind.CONCURRENT, 6, 0.0, 6, LimitScope.TENANT))
    async with daemons(server, short) as (one, two, three):
        assert await one.ask_all(limited, 6) == 6
        await asyncio.sleep(0.3)
        assert await two.ask_all(limited, 6) <= 3
        for _ in range(6):
            one.buckets.leave(SESSION, limited, ())
        await asyncio.sleep(0.3)
        assert await three.ask_all(limited, 1) == 1
        server.do("DELETE FROM members WHERE name <> 'daemon-0'")
        await asyncio.sleep(0.3)
        assert await one.ask_all(limited, 6) == 6


async def test_bytes_are_counted_everywhere(server: PostgresServer, short: Path) -> None:
    """One daemon's stream uses up what another's may not have any more."""
    limited = rule(Limit(LimitKind.BYTES_DOWN, 1000, 3600.0, 1000, LimitScope.TENANT))
    async with daemons(server, short) as (one, two, _):
        now = time.monotonic()
        assert one.buckets.charge(SESSION, limited, (), LimitKind.BYTES_DOWN, 1000, now) is None
        assert two.buckets.charge(SESSION, limited, (), LimitKind.BYTES_DOWN, 1, now) is None
        async with asyncio.timeout(20):
            while True:
                now = time.monotonic()
                denied = two.buckets.charge(SESSION, limited, (), LimitKind.BYTES_DOWN, 1, now)
                if denied is not None:
                    break
                await asyncio.sleep(0.05)
    assert denied.reason is Reason.BYTES_LIMITED


async def test_without_a_database_nobody_gets_more_than_a_share(server: PostgresServer, short: Path) -> None:
    """What runs ahead is bounded; the rest waits, and is refused when its wait is over."""
    limited = rule(Limit(LimitKind.REQUESTS, 60, 3600.0, 60, LimitScope.TENANT))
    async with daemons(server, short) as (one, _, _):
        server.send(signal.SIGSTOP)
        passed = 0
        while (answer := one.buckets.take(SESSION, limited, (), time.monotonic())) is None:
            passed += 1
        assert passed == 10
        assert isinstance(answer, ShareAwaited)
        server.send(signal.SIGCONT)
        assert await one.ask(limited) is None


async def test_a_socket_shares_its_sessions_limits_with_nobody(server: PostgresServer, short: Path) -> None:
    """It is one daemon's; a tenant's limit is shared all the same."""
    socket = replace(SESSION, origin=Origin(OriginClass.SOCKET, SESSION.id))
    async with daemons(server, short, count=1) as (one,):
        for per, shared in ((LimitScope.SESSION, False), (LimitScope.TENANT, True)):
            assert one.shared.shares(Limit(LimitKind.REQUESTS, 1, 1.0, 1, per), socket) is shared


async def test_the_database_learns_no_names_of_tenants_or_policies(
    server: PostgresServer, short: Path
) -> None:
    """The names are keyed hashes."""
    limited = rule(Limit(LimitKind.REQUESTS, 60, 3600.0, 60, LimitScope.TENANT))
    async with daemons(server, short) as (one, _, _):
        await one.ask_all(limited, 20)
        ((name, *_),) = server.do("SELECT * FROM limits")
    assert len(name) == 32
    assert int(name, 16)


async def test_what_is_no_number_in_the_database_spoils_one_limit_and_no_other(
    server: PostgresServer, short: Path
) -> None:
    """Someone writes to it: that limit is not what it was, and the others go on being shared."""
    spoilt = rule(Limit(LimitKind.REQUESTS, 12, 3600.0, 12, LimitScope.TENANT))
    sound = rule(Limit(LimitKind.REQUESTS, 20, 3600.0, 20, LimitScope.SUBJECT))
    async with daemons(server, short, count=2) as (one, two):
        assert await one.ask_all(spoilt, 1) == 1
        await _stored(server)
        server.do("UPDATE limits SET until = 'NaN'")
        assert two.buckets.take(SESSION, spoilt, (), time.monotonic()) is None
        assert await two.ask_all(sound, 20) == 20


async def _stored(
    server: PostgresServer, *, seconds: float = 0, running: Mapping[str, int] | None = None
) -> None:
    """Until the database knows a limit: one that is used up for about `seconds`, or one of which so many are
    `running` at each daemon."""
    used = f"SELECT name FROM limits WHERE until - extract(epoch FROM now()) > {seconds - 60}"
    async with asyncio.timeout(20):
        while True:
            counted = dict(server.do("SELECT member, count FROM running"))
            if running.items() <= counted.items() if running else counted or server.do(used):
                return
            await asyncio.sleep(0.02)


async def test_after_a_crash_of_the_database_limits_are_used_up(server: PostgresServer, short: Path) -> None:
    """Nobody knows any more what was used: nothing is free that may have been given already. A limit that
    fills in a second is as it was after a second."""
    slow = rule(Limit(LimitKind.REQUESTS, 30, 3600.0, 30, LimitScope.TENANT))
    quick = rule(Limit(LimitKind.REQUESTS, 30, 1.0, 30, LimitScope.SUBJECT))
    async with daemons(server, short) as (one, two, three):
        assert await one.ask_all(slow, 40) >= 30
        server.restart()
        passed = await two.ask_all(slow, 40) + await three.ask_all(slow, 40)
        assert passed <= 2 * 5  # what each may run ahead
        assert await three.ask_all(quick, 40) <= 30
        await asyncio.sleep(1.1)
        assert await three.ask_all(quick, 20) == 20


async def test_after_a_crash_of_the_database_what_runs_elsewhere_is_counted_again(
    server: PostgresServer, short: Path
) -> None:
    """Nothing that is limited by its number begins before every daemon has said what it has running."""
    limited = rule(Limit(LimitKind.CONCURRENT, 6, 0.0, 6, LimitScope.TENANT))
    async with daemons(server, short) as (one, two, _):
        assert await one.ask_all(limited, 5) == 5
        await asyncio.sleep(0.3)
        server.restart()
        assert await two.ask_all(limited, 6) <= 1
        await asyncio.sleep(1.5)
        one.buckets.leave(SESSION, limited, ())
        await _stored(server, running={"daemon-0": 4})
        assert await two.ask_all(limited, 6) <= 3


async def test_a_full_table_of_shares_empties_itself_and_stops_nothing(
    server: PostgresServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has ended is told while another limit wants its place: both come out right."""
    monkeypatch.setattr(limits, "MAX_SHARES", 1)
    first = rule(Limit(LimitKind.CONCURRENT, 2, 0.0, 2, LimitScope.TENANT))
    second = rule(Limit(LimitKind.REQUESTS, 20, 3600.0, 20, LimitScope.TENANT))
    async with daemons(server, short, count=1) as (one,):
        assert await one.ask(first) is None
        await _stored(server)
        server.send(signal.SIGSTOP)
        telling, settle = asyncio.Event(), one.store.settle
        loop = asyncio.get_running_loop()

        def told(*about: Any) -> Any:
            loop.call_soon_threadsafe(telling.set)
            return settle(*about)

        monkeypatch.setattr(one.store, "settle", told)
        one.buckets.leave(SESSION, first, ())
        async with asyncio.timeout(20):
            await telling.wait()  # the database does not answer yet
        one.buckets.take(SESSION, second, (), time.monotonic())
        server.send(signal.SIGCONT)
        async with asyncio.timeout(20):
            while await one.ask(second) is not None:
                await asyncio.sleep(0.05)
        assert await one.ask_all(second, 18) == 18


@pytest.mark.parametrize("kind", [LimitKind.REQUESTS, LimitKind.CONCURRENT])
async def test_what_all_have_used_of_a_limit_is_shown_at_each(
    server: PostgresServer, short: Path, kind: LimitKind
) -> None:
    """Seven twelfths, a sixth and a twelfth of it: nearly used up for who asked last. None alone is."""
    limited = rule(Limit(kind, 12, 3600.0, 12, LimitScope.TENANT))
    of = Policy(SESSION.policy, "tests", "", rules=(limited,))

    def near(one: One) -> list[tuple[str, ...]]:
        return [each.who for each in levels(*one.buckets.used(), (of,), time.monotonic(), lambda *_: True)]

    used, running = 0, dict[str, int]()
    async with daemons(server, short, count=2) as (one, two):
        for asking, count in ((one, 7), (two, 2), (one, 1)):
            assert await asking.ask_all(limited, count) == count
            used += count
            if kind is LimitKind.REQUESTS:
                await _stored(server, seconds=used * 300)
            else:
                running[asking.store.member] = running.get(asking.store.member, 0) + count
                await _stored(server, running=running)
            if count > 1:
                assert near(asking) == []
        async with asyncio.timeout(20):
            while not near(one):
                await asyncio.sleep(0.02)
        assert near(one) == [(SESSION.tenant,)]
