"""/v1/revocations: many sessions at once, or one credential of theirs, for the day when something leaked."""

from typing import cast

from coatcheck.control import models
from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem
from coatcheck.control.resources.sessions import caller_of
from coatcheck.decision.session import Session
from coatcheck.state.errors import Problem

_NAMES = ("tenant", "subject", "policy")


async def revoke_many(context: Context, ask: Ask) -> Answer:
    wanted, caller = cast(models.Revocations, ask.body), caller_of(ask)
    named = {name: value for name in _NAMES if (value := getattr(wanted, name)) is not None}
    if bool(named) == wanted.everything:
        raise ControlProblem(
            Problem.BAD_VALUE,
            "it is not said which sessions",
            "Name a tenant, a subject or a policy, or else say everything: true.",
        )
    if wanted.credential is not None and wanted.policy is None:
        raise ControlProblem(
            Problem.BAD_VALUE,
            "a credential's name has no effect without its policy",
            "Name the policy as well.",
        )

    def chosen(session: Session) -> bool:
        return caller.sees(session) and all(getattr(session, name) == named[name] for name in named)

    state = context.backend.state
    revoked = await context.take(
        lambda: state.revoke_where(chosen, wanted.credential, caller.name, wanted.why or "")
    )
    return models.Revoked(sessions=len(revoked))


OPERATIONS = (
    Operation(
        "revoke_many",
        "POST",
        "/v1/revocations",
        Action.END,
        "Revoke all sessions of a tenant, subject or policy, or everything; or, with `policy` and"
        " `credential`, only that credential. Answered once that is on disk",
        revoke_many,
        models.Revoked,
        body=models.Revocations,
        reasons=frozenset({Problem.BAD_VALUE, Problem.NOT_DURABLE, Problem.NOT_RECORDED}),
    ),
)
