"""A request that waits at one daemon is answered at another, and what was said counts at all."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.session import Session
from coatcheck.fleet.approvals import SharedApprovals
from coatcheck.policy import load_policy
from coatcheck.request.approvals import Answer, Approvals, NotWaiting, Waiting
from coatcheck.state import NewSession, StateError
from coatcheck.state.replica import Replica
from coatcheck.telemetry.events import ApprovalEvent
from tests.asking import held
from tests.request.test_approvals import POLICY
from tests.system.fleet.fleet import Daemon, Fleet, until, wanted
from tests.system.fleet.postgres_server import PostgresServer

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")

YES = Answer(True, "alice", 900.0)


@dataclass
class Desk:
    """One daemon's approvals."""

    daemon: Daemon
    approvals: Approvals

    def ask(self, session: Session, number: int = 1) -> "asyncio.Task[str | Deny]":
        return held(self.approvals, self.daemon.state, session, number=number)

    async def sees(self, count: int) -> tuple[Waiting, ...]:
        async with asyncio.timeout(20):
            while len(self.approvals.waiting()) != count:
                await asyncio.sleep(0.01)
        return self.approvals.waiting()

    def told(self) -> list[str]:
        return [event.change.value for event in self.daemon.events if isinstance(event, ApprovalEvent)]


@pytest.fixture
def fleet(three: Fleet) -> Fleet:
    for daemon in three.daemons:
        asks = POLICY.replace("{ASK}", "{wait: 10m, remember: 15m}").encode()
        daemon.state.swap_policies({"default": load_policy("default", asks)})
    return three


@asynccontextmanager
async def desks(fleet: Fleet) -> AsyncIterator[list[Desk]]:
    made: list[tuple[Desk, SharedApprovals]] = []
    for daemon in fleet.daemons:
        approvals = Approvals(daemon.events.append, daemon.state.clock.now)
        replica = daemon.state.replica
        assert isinstance(replica, Replica)
        shared = SharedApprovals(approvals, daemon.state, replica)
        shared.start()
        made.append((Desk(daemon, approvals), shared))
    try:
        yield [desk for desk, _ in made]
    finally:
        for _, shared in made:
            await shared.stop()


def opened(fleet: Fleet) -> Session:
    session, _ = fleet.daemons[0].state.open_session(
        NewSession("acme", "agent", "default", wanted().origin), "launcher"
    )
    for daemon in fleet.daemons:
        until(daemon.knows, session)
    return session


async def test_it_waits_at_one_and_is_answered_at_another(fleet: Fleet) -> None:
    """It is listed everywhere with what is shown, answered once, and recorded by both before it counts."""
    session = opened(fleet)
    async with desks(fleet) as (here, there, third):
        asking = here.ask(session)
        (seen,) = await there.sees(1)
        assert (len(here.approvals.held), len(there.approvals.held)) == (1, 0)
        (own,) = here.approvals.waiting()
        assert replace(seen, session=own.session) == own  # a lease is counted on each one's own clock
        assert seen.session.id == own.session.id
        answered = await there.approvals.answer_anywhere(seen.id, YES)
        assert answered.session.id == session.id
        async with asyncio.timeout(20):
            assert await asking == "alice"
        assert there.told() == ["approved"]
        assert here.told() == ["asked", "approved"]
        await third.sees(0)
        with pytest.raises(NotWaiting):
            await third.approvals.answer_anywhere(seen.id, YES)


async def test_a_yes_that_is_remembered_counts_at_every_daemon(fleet: Fleet) -> None:
    """And for the same request only."""
    session = opened(fleet)
    async with desks(fleet) as (here, there, third):
        asking = here.ask(session)
        (seen,) = await here.sees(1)
        here.approvals.answer(seen.id, YES)
        assert await asking == "alice"
        for desk in (there, third):
            replica = desk.daemon.state.replica
            assert replica is not None
            async with asyncio.timeout(20):
                while not replica.approvals.remembered:
                    await asyncio.sleep(0.01)
            assert await desk.ask(session) == "alice"
            other = held(desk.approvals, desk.daemon.state, session, "/other")
            await desk.sees(1)
            other.cancel()
            await desk.sees(0)


async def test_a_no_from_elsewhere_is_a_no(fleet: Fleet) -> None:
    """It is not remembered."""
    session = opened(fleet)
    async with desks(fleet) as (here, there, _):
        asking = here.ask(session)
        (seen,) = await there.sees(1)
        await there.approvals.answer_anywhere(seen.id, Answer(False, "bob", 900.0))
        async with asyncio.timeout(20):
            answer = await asking
        assert isinstance(answer, Deny)
        assert answer.reason is Reason.APPROVAL_REFUSED
        replica = there.daemon.state.replica
        assert replica is not None
        assert not replica.approvals.remembered


async def test_an_answer_that_cannot_get_there_is_an_error(fleet: Fleet, server: PostgresServer) -> None:
    """The database hangs: the approver is told, and no answer means denial."""
    session = opened(fleet)
    async with desks(fleet) as (here, there, _):
        asking = here.ask(session)
        (seen,) = await there.sees(1)
        server.send(signal.SIGSTOP)
        with pytest.raises(StateError):
            await there.approvals.answer_anywhere(seen.id, YES)
        assert not asking.done()
        server.send(signal.SIGCONT)
        asking.cancel()


async def test_what_is_gone_at_once_is_told_to_nobody(fleet: Fleet, server: PostgresServer) -> None:
    """A sandbox that asks and goes away again and again fills no table."""
    session = opened(fleet)
    ((before,),) = server.do("SELECT rev FROM fleet")
    async with desks(fleet) as (here, there, _):
        for number in range(50):
            asking = here.ask(session, number)
            await here.sees(1)
            asking.cancel()
            await here.sees(0)
        assert there.approvals.waiting() == ()
        ((after,),) = server.do("SELECT rev FROM fleet")
        assert after <= before + 4
