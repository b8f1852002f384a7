"""/v1/approvals: requests that wait for approval, and the answers."""

from typing import Annotated, Literal, cast

from pydantic import Field

from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.models import Name, RequestModel, ResponseModel
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem, Refusal, from_state
from coatcheck.control.resources.sessions import caller_of
from coatcheck.request.approvals import Answer as Word
from coatcheck.request.approvals import NotWaiting, Waiting
from coatcheck.state.errors import Problem, StateError
from coatcheck.telemetry.audit.log import AuditUnavailable


class AnswerToApproval(RequestModel):
    """What somebody says about one request."""

    answer: Literal["yes", "no"]
    remember_seconds: float = Field(
        0.0,
        ge=0,
        le=43_200,
        description="How long a yes counts for the same again; never longer than the rule says.",
    )
    person: Name | None = Field(
        None, description="Person on whose behalf a program answers. Recorded in the audit log."
    )


class ApprovalView(ResponseModel):
    """One request that waits."""

    id: str
    asked_at: float
    until: float = Field(description="When silence becomes no.")
    request_id: str
    session: str
    tenant: str
    subject: str
    policy: str
    rule: str
    credentials: list[str]
    method: str
    destination: str
    path: str = Field(description="With the names of a query's parameters, without their values.")
    readings: list[str] = Field(
        description="What else servers may take the request for: a method, path or object in a header, "
        "a WebSocket; and other rules whose terms hold. An approval covers all of it."
    )
    remember_seconds: float = Field(description="The longest that a yes may be remembered; 0: not at all.")
    same: Annotated[str, Field(description="What a remembered yes covers: `request` or `rule`.")]
    whose: Annotated[str, Field(description="Scope: `session`, `subject` or `tenant`.")]


class ApprovalList(ResponseModel):
    approvals: list[ApprovalView]


class ApprovalAnswered(ResponseModel):
    approval: ApprovalView
    approver: str


async def list_waiting(context: Context, ask: Ask) -> Answer:
    caller = caller_of(ask)

    async def found() -> tuple[Waiting, ...]:
        return context.backend.approvals.waiting()

    waiting = await context.bridge.call(found)
    return ApprovalList(approvals=[_view(each) for each in waiting if caller.sees(each.session)])


async def answer(context: Context, ask: Ask) -> Answer:
    caller, said, approval = caller_of(ask), cast(AnswerToApproval, ask.body), ask.path["approval"]
    approver = f"{caller.name} for {said.person}" if said.person else caller.name
    word = Word(said.answer == "yes", approver, said.remember_seconds)

    async def tell() -> Waiting:
        approvals = context.backend.approvals
        theirs = next((each for each in approvals.waiting() if each.id == approval), None)
        if theirs is not None and not caller.sees(theirs.session):
            raise NotWaiting("no request with this id is waiting, or it ended long ago")
        return await approvals.answer_anywhere(approval, word)

    try:
        waiting = await context.bridge.call(tell)
    except NotWaiting as why:
        raise ControlProblem(
            Refusal.NOT_WAITING,
            f"{approval} does not wait for an answer: {why}",
            "See `coatcheck approval list`.",
        ) from None
    except StateError as error:  # it waits at another daemon, which cannot be told
        raise from_state(error) from None
    except AuditUnavailable as unavailable:
        raise ControlProblem(
            Problem.NOT_RECORDED,
            f"the answer could not be recorded, so it does not count: {unavailable}",
            "See /readyz.",
        ) from None
    return ApprovalAnswered(approval=_view(waiting), approver=approver)


def _view(waiting: Waiting) -> ApprovalView:
    session = waiting.session
    return ApprovalView(
        id=waiting.id,
        asked_at=waiting.asked_at,
        until=waiting.until,
        request_id=waiting.request_id,
        session=session.id,
        tenant=session.tenant,
        subject=session.subject,
        policy=session.policy,
        rule=waiting.rule,
        credentials=list(waiting.credentials),
        method=waiting.method,
        destination=waiting.destination,
        path=waiting.path,
        readings=list(waiting.readings),
        remember_seconds=waiting.asking.remember,
        same=waiting.asking.same,
        whose=waiting.asking.whose,
    )


OPERATIONS = (
    Operation(
        "list_approvals",
        "GET",
        "/v1/approvals",
        Action.SEE,
        "List the requests that wait for approval, the oldest first",
        list_waiting,
        ApprovalList,
        reasons=frozenset({Refusal.PLANE_STALLED}),
    ),
    Operation(
        "answer_approval",
        "POST",
        "/v1/approvals/{approval}",
        Action.APPROVE,
        "Approve or deny a request. The first answer counts, and is recorded before it takes effect",
        answer,
        ApprovalAnswered,
        body=AnswerToApproval,
        reasons=frozenset(
            {Refusal.NOT_WAITING, Refusal.PLANE_STALLED, Problem.NOT_RECORDED, Problem.NOT_DURABLE}
        ),
    ),
)
