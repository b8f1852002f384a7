"""A request that a rule holds for somebody's word, for tests that ask and answer."""

import asyncio

from coatcheck.decision.denial import Deny
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.session import Session
from coatcheck.decision.verdict import Pass
from coatcheck.request.approvals import Approvals
from coatcheck.state.state import State


def held(
    approvals: Approvals, state: State, session: Session, target: str = "/merge", number: int = 1
) -> "asyncio.Task[str | Deny]":
    """A PUT that the session's first rule, which asks, lets leave after a yes."""
    rule = state.policies[session.policy].rules[0]
    destination = Destination("https", rule.hosts[0].suffix, 443)
    head = RequestHead("PUT", target, ())
    return asyncio.ensure_future(approvals.ask(f"r{number}", destination, head, Pass(session, rule), state))


async def waiting(approvals: Approvals, count: int) -> None:
    """Until so many wait. They begin in the loop's next turns."""
    async with asyncio.timeout(20):
        while len(approvals.waiting()) != count:
            await asyncio.sleep(0)
