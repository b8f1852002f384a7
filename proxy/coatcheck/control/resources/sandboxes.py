"""/v1/sandboxes: make, list, show, kill, pause, resume; and the reports of their supervisors."""

import asyncio
import time
from dataclasses import asdict
from http import HTTPStatus
from typing import Final, cast

from coatcheck.control.caller import Action, Caller, Role
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem, Reason, Refusal, unknown_sandbox
from coatcheck.control.resources import sandbox_models as models
from coatcheck.control.resources.sessions import GIVING, caller_of, check_gift, forbidden
from coatcheck.control.sandbox_opening import open_sandbox
from coatcheck.decision.message import OriginClass
from coatcheck.durable.incarnations import GONE_SECONDS, POLL_SECONDS
from coatcheck.durable.lifecycle import Recover
from coatcheck.durable.sandbox import Sandbox
from coatcheck.sandbox.sandbox import (
    Ending,
    SandboxProblem,
    SandboxState,
)
from coatcheck.state.errors import Problem

UNKNOWN: Final[frozenset[Reason]] = frozenset({SandboxProblem.UNKNOWN_SANDBOX})
USING: Final[frozenset[Reason]] = UNKNOWN | {SandboxProblem.SANDBOX_ENDED, SandboxProblem.NOT_RUNNING}


def find(context: Context, ask: Ask) -> Sandbox:
    """The sandbox in the path, if the caller may know of it: another's is as unknown as none."""
    sandbox = context.backend.sandboxes.get(ask.path["sandbox"])
    if sandbox is None or not sees(caller_of(ask), sandbox):
        raise unknown_sandbox(ask.path["sandbox"])
    return sandbox


def sees(caller: Caller, sandbox: Sandbox) -> bool:
    """As of its sessions: launchers see their own, others those of their tenants."""
    if caller.role is Role.LAUNCHER:
        return sandbox.opened_by == caller.name
    return caller.of_tenant(sandbox.tenant)


def use(context: Context, ask: Ask) -> Sandbox:
    """The sandbox in the path, for somebody who may run things in it: whose grant *still* covers it."""
    sandbox = find(context, ask)
    lacks = caller_of(ask).may_give(sandbox.tenant, sandbox.policy, sandbox.isolation, OriginClass.SOCKET)
    if lacks is not None:
        raise forbidden(lacks)
    if sandbox.over:
        raise ControlProblem(
            SandboxProblem.SANDBOX_ENDED,
            f"the sandbox has ended ({sandbox.ending}): {sandbox.detail}",
            "Create another one.",
        )
    return sandbox


def view(sandbox: Sandbox) -> models.SandboxView:
    return models.SandboxView(
        id=sandbox.id,
        state=sandbox.state,
        tenant=sandbox.tenant,
        subject=sandbox.subject,
        policy=sandbox.policy,
        opened_by=sandbox.opened_by,
        backend=sandbox.backend,
        isolation=sandbox.isolation,
        why=sandbox.why,
        sessions=dict(sandbox.sessions),
        created_at=sandbox.created_at,
        expires_at=sandbox.expires_at,
        **asdict(sandbox.resources),
        elastic=models.ElasticView(**asdict(sandbox.elastic)) if sandbox.elastic is not None else None,
        one_size=sandbox.one_size,
        keeping=_keeping(sandbox),
        ending=sandbox.ending,
        detail=sandbox.detail,
        recoverable=sandbox.recoverable,
    )


def _keeping(sandbox: Sandbox) -> models.KeepingView:
    keeping = sandbox.keeping
    return models.KeepingView(
        lifecycle=keeping.lifecycle,
        idle="sleep" if keeping.sleeps else "end",
        recover=Recover.LAST_SNAPSHOT if keeping.recovers else Recover.NEVER,
        snapshot_every=keeping.every_seconds or 0,
        rotate_snapshots=keeping.rotates,
    )


async def create(context: Context, ask: Ask) -> Answer:
    if context.backend.draining:
        raise ControlProblem(
            Refusal.DRAINING, "the daemon is shutting down", "Create the sandbox when it is back."
        )
    sandbox = await open_sandbox(context, cast(models.NewSandbox, ask.body), caller_of(ask))
    return HTTPStatus.CREATED, models.SandboxShown(sandbox=view(sandbox))


async def list_all(context: Context, ask: Ask) -> Answer:
    query, caller = cast(models.SandboxQuery, ask.query), caller_of(ask)
    found = [
        view(each)
        for each in context.backend.sandboxes.all()
        if sees(caller, each)
        and query.tenant in (None, each.tenant)
        and query.opened_by in (None, each.opened_by)
        and query.state in (None, each.state)
    ]
    return models.SandboxList(sandboxes=found)


async def show(context: Context, ask: Ask) -> Answer:
    sandbox = find(context, ask)
    until = time.monotonic() + cast(models.Waiting, ask.query).wait_seconds
    while sandbox.state is SandboxState.STARTING and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)
        sandbox = context.backend.sandboxes.settle(sandbox.id) or sandbox
    return models.SandboxShown(sandbox=view(sandbox))


async def kill(context: Context, ask: Ask) -> Answer:
    sandbox = find(context, ask)
    caller = caller_of(ask).name
    why = cast(models.Killing, ask.body).why
    detail = f"ended by {caller}: {why}" if why else f"ended by {caller}"
    sandboxes = context.backend.sandboxes
    await context.take(lambda: sandboxes.kill(sandbox.id, Ending.KILLED, detail))
    until = time.monotonic() + GONE_SECONDS
    now = sandboxes.settle(sandbox.id) or sandbox
    while now.state is not SandboxState.ENDED and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)
        now = sandboxes.settle(sandbox.id) or now
    return models.SandboxShown(sandbox=view(now))


async def pause(context: Context, ask: Ask) -> Answer:
    return await _change(context, ask, "/pause", SandboxState.PAUSED)


async def resume(context: Context, ask: Ask) -> Answer:
    return await _change(context, ask, "/resume", SandboxState.RUNNING)


async def _change(context: Context, ask: Ask, target: str, state: SandboxState) -> Answer:
    sandbox = use(context, ask)
    sandboxes = context.backend.sandboxes
    await asyncio.to_thread(sandboxes.ask, sandbox.id, "POST", target)
    now = sandboxes.reported(sandbox.id, state)
    return models.SandboxShown(sandbox=view(now or sandbox))


async def report(context: Context, ask: Ask) -> Answer:
    """Its sessions' leases are renewed, by the grant of its creator: a grant that was taken away ends it."""
    sandbox = find(context, ask)
    said = cast(models.Report, ask.body)
    caller = caller_of(ask)
    if caller.role is not Role.OWNER:
        raise forbidden("this: only the daemon's own supervisors report")
    sandboxes = context.backend.sandboxes
    if said.state == "ending":
        await context.take(
            lambda: sandboxes.reported(sandbox.id, SandboxState.ENDING, said.ending, said.detail)
        )
    else:
        use(context, ask)
        await _renew_all(context, sandbox, ask.caller_named(sandbox.opened_by))
        sandboxes.reported(sandbox.id, said.state, None, said.detail)
    return models.SandboxShown(sandbox=view(sandboxes.get(sandbox.id) or sandbox))


async def _renew_all(context: Context, sandbox: Sandbox, maker: Caller | None) -> None:
    """Where several share it, those that are over stay so, and the last one is the end."""
    left = len(sandbox.sessions) if sandbox.keeping.shares else 1
    for session_id in sandbox.sessions.values():
        try:
            await _renew(context, maker, session_id, sandbox.opened_by)
        except ControlProblem as problem:
            left -= 1
            if not left or problem.reason not in (Problem.SESSION_CLOSED, Problem.UNKNOWN_SESSION):
                raise


async def _renew(context: Context, maker: Caller | None, session_id: str, name: str) -> None:
    state = context.backend.state
    session = state.sessions.by_id.get(session_id)
    if session is None:
        raise ControlProblem(Problem.UNKNOWN_SESSION, f"session {session_id} is gone", "Create another.")
    if maker is None:
        raise forbidden(f"this any more: no caller {name}")
    check_gift(maker, session)
    await context.give(lambda: state.renew(session_id, name, None))


OPERATIONS = (
    Operation(
        "create_sandbox",
        "POST",
        "/v1/sandboxes",
        Action.OPEN,
        "Create a sandbox. Answered while it starts; its handles are only inside it",
        create,
        models.SandboxShown,
        body=models.NewSandbox,
        status=HTTPStatus.CREATED,
        reasons=GIVING
        | {
            Problem.UNKNOWN_POLICY,
            Refusal.LISTENER,
            Refusal.PLANE_STALLED,
            SandboxProblem.UNKNOWN_IMAGE,
            SandboxProblem.NO_BACKEND,
            SandboxProblem.TOO_MANY_SANDBOXES,
            SandboxProblem.BEYOND_LIMIT,
            SandboxProblem.NOT_ELASTIC,
            SandboxProblem.UNSAVABLE,
            SandboxProblem.VOLUME_IN_USE,
            SandboxProblem.NOT_STARTED,
        },
    ),
    Operation(
        "list_sandboxes",
        "GET",
        "/v1/sandboxes",
        Action.SEE,
        "List the sandboxes that the caller may see, by ID; ended ones are listed for a while",
        list_all,
        models.SandboxList,
        query=models.SandboxQuery,
    ),
    Operation(
        "show_sandbox",
        "GET",
        "/v1/sandboxes/{sandbox}",
        Action.SEE,
        "Show a sandbox: its state, and why it ended. With `wait_seconds`, wait while it starts",
        show,
        models.SandboxShown,
        query=models.Waiting,
        reasons=UNKNOWN,
    ),
    Operation(
        "kill_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/kill",
        Action.END,
        "End a sandbox and its sessions. Answered when nothing of it is left, or after 20 s",
        kill,
        models.SandboxShown,
        body=models.Killing,
        reasons=UNKNOWN | {Problem.NOT_DURABLE, Problem.NOT_RECORDED},
    ),
    Operation(
        "pause_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/pause",
        Action.OPEN,
        "Pause a sandbox until it is resumed; its time limit keeps running",
        pause,
        models.SandboxShown,
        reasons=USING | {SandboxProblem.NOT_STARTED},
    ),
    Operation(
        "resume_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/resume",
        Action.OPEN,
        "Resume a paused sandbox",
        resume,
        models.SandboxShown,
        reasons=USING | {SandboxProblem.NOT_STARTED},
    ),
    Operation(
        "report_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/report",
        Action.OPEN,
        "For the sandbox's supervisor: report its state, and renew the leases of its sessions",
        report,
        models.SandboxShown,
        body=models.Report,
        reasons=USING | GIVING | {Problem.UNKNOWN_SESSION, Problem.SESSION_CLOSED},
    ),
)
