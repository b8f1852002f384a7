"""/v1/events: what happens to sandboxes, to be followed: each answer says where to go on."""

import asyncio
import time
from typing import Final, cast

from pydantic import Field

from coatcheck.control.caller import Action, Role
from coatcheck.control.context import Context
from coatcheck.control.models import RequestModel, ResponseModel
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.resources.sandbox_models import SandboxId
from coatcheck.control.resources.sessions import caller_of
from coatcheck.telemetry.events import SandboxChange, SandboxEvent

PAGE: Final = 256
POLL_SECONDS: Final = 0.1
"""How soon somebody who waits hears of it."""


class EventQuery(RequestModel):
    after: int | None = Field(None, ge=0, description="`next` of the answer before. Default: from now on.")
    sandbox: SandboxId | None = None
    wait_seconds: int = Field(0, ge=0, le=20, description="For the first one, if there is none yet.")


class EventView(ResponseModel):
    number: int
    at: float
    change: SandboxChange
    sandbox: str = Field(description="Empty where a new one could not be had (`refused`).")
    sessions: list[str]
    tenant: str
    subject: str
    policy: str
    caller: str
    backend: str
    isolation: str
    ending: str = Field(description="`ended`: why; `refused`: the reason, unless it is of another size.")
    detail: str


class EventPage(ResponseModel):
    events: list[EventView] = Field(description="The oldest first, at most 256.")
    next: int = Field(description="Ask after this one next time; also after a restart of the daemon.")
    missed: bool = Field(description="Some were not kept until now: list the sandboxes.")


async def follow(context: Context, ask: Ask) -> Answer:
    """Launchers see their own, others those of their tenants: as of sandboxes."""
    query, caller = cast(EventQuery, ask.query), caller_of(ask)

    def wanted(event: SandboxEvent) -> bool:
        if query.sandbox is not None and event.sandbox != query.sandbox:
            return False
        own = event.caller == caller.name
        return own if caller.role is Role.LAUNCHER else caller.of_tenant(event.tenant)

    feed = context.backend.feed
    page = feed.after(query.after, wanted, PAGE)
    until = time.monotonic() + query.wait_seconds
    while not page.events and not page.missed and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)
        page = feed.after(page.next, wanted, PAGE)
    return EventPage(
        events=[
            EventView(
                number=each.number,
                at=each.event.at,
                change=each.event.change,
                sandbox=each.event.sandbox,
                sessions=list(each.event.sessions),
                tenant=each.event.tenant,
                subject=each.event.subject,
                policy=each.event.policy,
                caller=each.event.caller,
                backend=each.event.backend,
                isolation=each.event.isolation,
                ending=each.event.ending,
                detail=each.event.detail,
            )
            for each in page.events
        ],
        next=page.next,
        missed=page.missed,
    )


OPERATIONS = (
    Operation(
        "follow_events",
        "GET",
        "/v1/events",
        Action.SEE,
        "List what happened to sandboxes after a number; `next` is the `after` of the next call",
        follow,
        EventPage,
        query=EventQuery,
    ),
)
