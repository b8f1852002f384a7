"""/v1/sandboxes/{sandbox}/inspect: the zero-secret proof of one sandbox (docs/inspection.md).

Starting answers at once, and how far it is can be asked: a search of gigabytes outlives a request.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import Field

from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.models import ResponseModel
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem, Reason, Refusal
from coatcheck.control.resources.sandboxes import UNKNOWN, find
from coatcheck.control.resources.sessions import caller_of
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.inspection.inspector import AlreadyRunning, Inspection
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxState


class SignedStatement(ResponseModel):
    """Checked by `coatcheck sandbox inspect --verify`, or with openssl."""

    statement: dict[str, Any]
    sha256: str
    key_id: str
    signature: str = Field(description="Ed25519, base64; docs/inspection.md says over what.")


class InspectionView(ResponseModel):
    sandbox: str
    state: str = Field(
        description="`starting`, `paused`, `searching`; then `nothing_found`, `found`, `incomplete`, "
        "`failed` or `cancelled`."
    )
    ended: bool
    caller: str
    began_at: float
    searched_bytes: int
    paused_seconds: float
    problem: str = Field(description="Why there is no statement, or what else went wrong.")
    signed: SignedStatement | None


@dataclass(frozen=True, slots=True)
class _Subject:
    """A sandbox as `inspection.places.Subject`, through its supervisor."""

    sandbox: str
    sessions: Sequence[str]
    sandboxes: Sandboxes

    async def pause(self) -> bool:
        before = await self._ask("GET", "/")
        await self._ask("POST", "/pause")
        return bool(before["state"] != SandboxState.PAUSED)

    async def resume(self) -> None:
        await self._ask("POST", "/resume")

    async def remains(self) -> Sequence[Mapping[str, object]]:
        remains: Sequence[Mapping[str, object]] = await self._ask("GET", "/remains")
        return remains

    async def _ask(self, method: str, target: str) -> Any:
        return await asyncio.to_thread(self.sandboxes.ask, self.sandbox, method, target)


async def start(context: Context, ask: Ask) -> Answer:
    sandbox = find(context, ask)
    if sandbox.over:
        raise ControlProblem(
            SandboxProblem.SANDBOX_ENDED,
            f"the sandbox has ended ({sandbox.ending}), and nothing is left to search",
            "Inspect it while it runs or is paused.",
        )
    sessions = tuple(sandbox.sessions.values())
    try:
        inspection = context.backend.inspector.start(
            _Subject(sandbox.id, sessions, context.backend.sandboxes), sandbox.tenant, caller_of(ask).name
        )
    except AlreadyRunning as error:
        raise ControlProblem(Refusal.INSPECTION_RUNNING, str(error), "Try again when it is done.") from None
    return HTTPStatus.ACCEPTED, _view(inspection)


async def show(context: Context, ask: Ask) -> Answer:
    return _view(_known(context, find(context, ask).id))


async def cancel(context: Context, ask: Ask) -> Answer:
    sandbox = find(context, ask)
    await context.backend.inspector.cancel(sandbox.id)
    return _view(_known(context, sandbox.id))


def _known(context: Context, sandbox_id: str) -> Inspection:
    inspection = context.backend.inspector.get(sandbox_id)
    if inspection is None:
        raise ControlProblem(
            Refusal.NOT_FOUND, "this sandbox was not inspected", "POST to the same address starts it."
        )
    return inspection


def _view(inspection: Inspection) -> InspectionView:
    return InspectionView(
        sandbox=inspection.sandbox,
        state=inspection.state,
        ended=inspection.ended,
        caller=inspection.caller,
        began_at=inspection.began_at,
        searched_bytes=inspection.bytes,
        paused_seconds=inspection.paused_seconds,
        problem=inspection.problem,
        signed=SignedStatement(**inspection.signed) if inspection.signed is not None else None,
    )


_REASONS: frozenset[Reason] = UNKNOWN | {Refusal.NOT_FOUND}

OPERATIONS = (
    Operation(
        "inspect_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/inspect",
        Action.INSPECT,
        "Pause a sandbox and search it for every secret of its policies. Answered at once",
        start,
        InspectionView,
        status=HTTPStatus.ACCEPTED,
        reasons=UNKNOWN | {SandboxProblem.SANDBOX_ENDED, Refusal.INSPECTION_RUNNING},
    ),
    Operation(
        "show_inspection",
        "GET",
        "/v1/sandboxes/{sandbox}/inspect",
        Action.SEE,
        "Show the last inspection of a sandbox: its progress, or its signed statement",
        show,
        InspectionView,
        reasons=_REASONS,
    ),
    Operation(
        "cancel_inspection",
        "POST",
        "/v1/sandboxes/{sandbox}/inspect/cancel",
        Action.INSPECT,
        "Cancel an inspection. Answered once the sandbox runs again",
        cancel,
        InspectionView,
        reasons=_REASONS,
    ),
)
