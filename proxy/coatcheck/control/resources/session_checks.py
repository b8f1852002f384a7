"""/v1/sessions/{session}/check and …/refusals: before a sandbox begins, and after it ended, for its launcher.

The answer goes to the caller that opened the session, never into the sandbox: it names stores, paths and
addresses.
"""

from typing import Final

from pydantic import Field

from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.models import ResponseModel
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import Refusal
from coatcheck.control.resources.sessions import GONE, find
from coatcheck.decision.denial import EXPLANATIONS, Reason
from coatcheck.policy.remedy import remedy
from coatcheck.telemetry.events import Decision, Outcome, Repeated
from coatcheck.telemetry.recent import KEPT

CHECK_SECONDS: Final = 25.0
"""A few reads from a store that does not answer; the API's own limit is 30 s."""


class TroubleView(ResponseModel):
    store: str
    credential: str | None = Field(description="None: the whole store.")
    message: str
    hint: str


class SessionChecked(ResponseModel):
    troubles: list[TroubleView] = Field(description="Empty: every credential of the session can be used.")


class RefusalView(ResponseModel):
    method: str
    url: str = Field(description="Without its query.")
    reason: Reason
    message: str
    detail: str = Field(description="For operators: rule, credential, address.")
    count: int
    remedy: str = Field(
        description="What would allow it: a line of YAML for the policy, or a setting. Empty: nothing would."
    )


class SessionRefusals(ResponseModel):
    refusals: list[RefusalView] = Field(description="Equal ones together, the first at the top.")
    missed: bool = Field(description="Older ones are only in the audit log.")


async def check(context: Context, ask: Ask) -> Answer:
    session, backend = find(context, ask), context.backend
    policy = backend.state.policies.get(session.policy)
    known = policy.credentials if policy is not None else {}
    wanted = [known[name] for name in sorted(session.credentials) if name in known]
    found = await context.bridge.call(lambda: backend.secret_troubles(wanted), CHECK_SECONDS)
    return SessionChecked(
        troubles=[
            TroubleView(
                store=each.store, credential=each.credential or None, message=each.message, hint=each.hint
            )
            for each in found
        ]
    )


async def refusals(context: Context, ask: Ask) -> Answer:
    session, backend = find(context, ask), context.backend
    page = backend.recent.after(None, lambda tenant: tenant == session.tenant, KEPT)
    policy = backend.state.policies.get(session.policy)
    found: dict[tuple[str, str, str], RefusalView] = {}
    last: dict[Reason, tuple[str, str, str]] = {}
    for numbered in page.events:
        event = numbered.event
        if isinstance(event, Decision) and event.session == session.id and event.reason is not None:
            if event.outcome is not Outcome.DENY:
                continue
            key = (event.method, event.destination + event.path, event.reason)
            last[event.reason] = key
            known = found.get(key)
            found[key] = RefusalView(
                method=event.method,
                url=event.destination + event.path,
                reason=event.reason,
                message=EXPLANATIONS[event.reason].message,
                detail=event.detail,
                count=known.count + 1 if known is not None else 1,
                remedy=remedy(
                    policy, event.reason, event.method, event.destination, event.path, event.detail
                ),
            )
        elif isinstance(event, Repeated) and event.session == session.id and event.what == "decision":
            # Counted instead of recorded: which of them they were is not known.
            if (repeated := last.get(event.reason)) is not None:
                known = found[repeated]
                found[repeated] = known.model_copy(update={"count": known.count + event.count})
    return SessionRefusals(refusals=list(found.values()), missed=len(page.events) >= KEPT)


OPERATIONS = (
    Operation(
        "check_session",
        "POST",
        "/v1/sessions/{session}/check",
        Action.OPEN,
        "Log in to the stores and read the secrets of the session's credentials, and say what cannot be used",
        check,
        SessionChecked,
        reasons=GONE | {Refusal.PLANE_STALLED},
    ),
    Operation(
        "list_refusals",
        "GET",
        "/v1/sessions/{session}/refusals",
        Action.SEE,
        "List what was lately refused to the session, and what the policy would need to allow it",
        refusals,
        SessionRefusals,
        reasons=GONE,
    ),
)
