"""/v1/sandboxes/{sandbox}/fork, restore, wake: a sandbox's next incarnation, from what was saved of it."""

from http import HTTPStatus
from typing import Final, cast

from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import Reason, Refusal
from coatcheck.control.resources import sandbox_models as models
from coatcheck.control.resources.sandbox_snapshots import SAVING
from coatcheck.control.resources.sandboxes import UNKNOWN, USING, find, use, view
from coatcheck.control.resources.sessions import GIVING, caller_of, forbidden
from coatcheck.control.sandbox_opening import incarnations, maker
from coatcheck.decision.message import OriginClass
from coatcheck.durable.incarnations import BACK_SECONDS, GONE_SECONDS, SAVE_SECONDS
from coatcheck.durable.sandbox import Sandbox
from coatcheck.durable.snapshotting import check_savable
from coatcheck.sandbox.sandbox import SandboxProblem
from coatcheck.state.errors import Problem

RETURNING: Final[frozenset[Reason]] = (
    GIVING
    | UNKNOWN
    | {
        Problem.UNKNOWN_POLICY,
        Problem.UNKNOWN_SESSION,
        Refusal.LISTENER,
        Refusal.PLANE_STALLED,
        SandboxProblem.UNKNOWN_SNAPSHOT,
        SandboxProblem.NOT_SAVED,
        SandboxProblem.NOT_WOKEN,
        SandboxProblem.NOT_STARTED,
        SandboxProblem.NO_BACKEND,
        SandboxProblem.UNKNOWN_IMAGE,
        SandboxProblem.TOO_MANY_SANDBOXES,
        SandboxProblem.BEYOND_LIMIT,
        SandboxProblem.NO_ROOM,
        SandboxProblem.SANDBOX_BUSY,
        SandboxProblem.SANDBOX_ENDED,
        SandboxProblem.UNSAVABLE,
    }
)


def owned(context: Context, ask: Ask) -> Sandbox:
    """The sandbox in the path, down or not, for somebody whose grant covers it."""
    sandbox = find(context, ask)
    lacks = caller_of(ask).may_give(sandbox.tenant, sandbox.policy, sandbox.isolation, OriginClass.SOCKET)
    if lacks is not None:
        raise forbidden(lacks)
    return sandbox


async def wake(context: Context, ask: Ask) -> Answer:
    sandbox = use(context, ask)
    woken = await incarnations(context).woken(sandbox, maker(context, caller_of(ask)))
    return models.SandboxShown(sandbox=view(woken))


async def restore(context: Context, ask: Ask) -> Answer:
    sandbox, asked = owned(context, ask), cast(models.Restore, ask.body)
    back = await incarnations(context).restore(sandbox, maker(context, caller_of(ask)), asked.snapshot)
    return models.SandboxShown(sandbox=view(back))


async def fork(context: Context, ask: Ask) -> Answer:
    sandbox, asked = owned(context, ask), cast(models.Fork, ask.body)
    incarnations(context).check_forkable(sandbox.id)
    check_savable(context.backend.state, sandbox)
    if asked.snapshot is None and not context.backend.sandboxes.is_down(sandbox.id):
        use(context, ask)
    copies = await incarnations(context).fork(
        sandbox, maker(context, caller_of(ask)), asked.snapshot, asked.count
    )
    return HTTPStatus.CREATED, models.SandboxList(sandboxes=[view(each) for each in copies])


OPERATIONS = (
    Operation(
        "fork_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/fork",
        Action.OPEN,
        "Fork a sandbox: copies, each with its own sessions before anything in it runs. Answered when"
        " they run",
        fork,
        models.SandboxList,
        body=models.Fork,
        status=HTTPStatus.CREATED,
        reasons=RETURNING | SAVING,
        seconds=SAVE_SECONDS + BACK_SECONDS,
    ),
    Operation(
        "restore_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/restore",
        Action.OPEN,
        "Restore a sandbox, also one that died, from a snapshot, with new sessions. Its present"
        " state is lost",
        restore,
        models.SandboxShown,
        body=models.Restore,
        reasons=RETURNING | {Problem.NOT_DURABLE, Problem.NOT_RECORDED},
        seconds=BACK_SECONDS + GONE_SECONDS,
    ),
    Operation(
        "wake_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/wake",
        Action.OPEN,
        "Wake a sandbox. Using it wakes it as well",
        wake,
        models.SandboxShown,
        reasons=USING | RETURNING,
        seconds=BACK_SECONDS,
    ),
)
