"""/v1/sandboxes/{sandbox}/fork, restore, wake: a sandbox's next life, from what was saved of it.

Whoever comes back is somebody new: sessions of its own, of a new generation (I10). The caller's grant is held
against what this machine gives now, as when a sandbox is made.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, cast

from coatcheck.control.caller import Action, Caller
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem, Reason, Refusal, from_sandbox
from coatcheck.control.resources import sandbox_models as models
from coatcheck.control.resources.sandbox_snapshots import SAVE_SECONDS, SAVING, check_savable, told
from coatcheck.control.resources.sandboxes import GONE_SECONDS, POLL_SECONDS, UNKNOWN, USING, find, use, view
from coatcheck.control.resources.sessions import GIVING, caller_of, forbidden
from coatcheck.control.sandbox_opening import OpenedIdentity, admit, begin
from coatcheck.decision.message import OriginClass
from coatcheck.decision.session import Session
from coatcheck.durable.durability import RestorePoint
from coatcheck.durable.sandbox import (
    Admitted,
    Sandbox,
    WantedSandbox,
)
from coatcheck.launcher.sandbox import (
    Ending,
    SandboxProblem,
    SandboxRefused,
    SandboxState,
)
from coatcheck.state.database import Status
from coatcheck.state.errors import Problem

BACK_SECONDS: Final = 120.0
"""For it to be read and to run again; an emulated one on a busy machine takes a tenth."""
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
    sandbox = await running(context, await awake(context, use(context, ask), caller_of(ask)))
    if sandbox.over:
        kept = context.backend.sandboxes
        sandbox = await _until(context, sandbox.id, lambda now: kept.is_down(now.id), GONE_SECONDS)
    if sandbox.state is SandboxState.SLEEPING:
        raise ControlProblem(
            SandboxProblem.NOT_WOKEN,
            f"it was not woken, and sleeps on: {sandbox.detail}",
            "Wake it again when that is mended; or go back to a snapshot: coatcheck sandbox restore.",
        )
    return models.SandboxShown(sandbox=view(sandbox))


async def awake(context: Context, sandbox: Sandbox, caller: Caller) -> Sandbox:
    """A sandbox that sleeps is on its way back, or there; any other is as it was."""
    sandboxes = context.backend.sandboxes
    if sandbox.state is not SandboxState.SLEEPING:
        return sandbox
    if not sandboxes.is_down(sandbox.id):
        await told(lambda: sandboxes.ask(sandbox.id, "POST", "/wake", {}, BACK_SECONDS))
        return sandboxes.reported(sandbox.id, SandboxState.RUNNING, None, "") or sandbox
    if revoked(context, sandbox):
        raise ControlProblem(
            SandboxProblem.NOT_WOKEN,
            "its session was revoked while it slept",
            f"Create another one; or, if it may go on: coatcheck sandbox restore {sandbox.id}",
        )
    saved = await told(lambda: sandboxes.kept.saved(sandbox.id, None))
    try:
        return await restore_unattended(context, sandbox, caller, saved)
    except ControlProblem as problem:
        if problem.reason is not SandboxProblem.SANDBOX_BUSY:
            raise
        return sandboxes.get(sandbox.id) or sandbox  # somebody else wakes it just now


async def restore_unattended(
    context: Context, sandbox: Sandbox, caller: Caller, saved: Path, until: float | None = None
) -> Sandbox:
    """`bring_back` for whom nobody restores: what is revoked meanwhile is, though its new sessions were not
    there yet then. Of one that several share, theirs alone who were revoked."""
    before = _revoked_people(context, sandbox) if sandbox.keeping.shares else frozenset()
    back = await bring_back(context, sandbox.id, caller, saved, until)
    late = _revoked_people(context, sandbox) - before
    if late and not sandbox.keeping.shares:
        late = frozenset(back.sessions)
    for name in late & back.sessions.keys():
        why = "what it comes from was revoked meanwhile"
        await context.take(partial(context.backend.state.revoke, back.sessions[name], sandbox.opened_by, why))
    return back


def _revoked_people(context: Context, sandbox: Sandbox) -> frozenset[str]:
    state = context.backend.state
    known = {name: each for name, each in sandbox.sessions.items() if each in state.sessions.by_id}
    return frozenset(name for name, each in known.items() if state.status(each) is Status.REVOKED)


async def restore(context: Context, ask: Ask) -> Answer:
    sandbox, caller = owned(context, ask), caller_of(ask)
    name = cast(models.Restore, ask.body).snapshot
    sandboxes = context.backend.sandboxes
    saved = await told(lambda: sandboxes.kept.saved(sandbox.id, name))
    with _used(context, saved):
        await told(lambda: sandboxes.kept.comeback(sandbox.id, saved))  # before anything ends for it
        if not sandboxes.is_down(sandbox.id):
            detail = f"restored to {saved.name} by {caller.name}"
            await context.take(lambda: sandboxes.kill(sandbox.id, Ending.RESTORED, detail))
            await _until(context, sandbox.id, lambda now: sandboxes.is_down(now.id), GONE_SECONDS)
        back = await bring_back(context, sandbox.id, caller, saved)
        return models.SandboxShown(sandbox=view(await running(context, back)))


async def fork(context: Context, ask: Ask) -> Answer:
    sandbox, caller = owned(context, ask), caller_of(ask)
    asked = cast(models.Fork, ask.body)
    sandboxes = context.backend.sandboxes
    wanted = _wanted(context, sandbox.id)
    if wanted.volumes:
        raise ControlProblem(
            SandboxProblem.UNSAVABLE,
            "it has a volume, which one sandbox has at a time",
            "Fork a sandbox without volumes; copy what it needs into it.",
        )
    check_savable(context, sandbox)
    point: Path | None = None
    if asked.snapshot is None and not sandboxes.is_down(sandbox.id):
        use(context, ask)
        said = await told(lambda: sandboxes.ask(sandbox.id, "POST", "/fork-point", {}, SAVE_SECONDS))
        point = Path(cast(dict[str, str], said)["directory"])
    try:
        saved = point
        if saved is None:
            saved = await told(lambda: sandboxes.kept.saved(sandbox.id, asked.snapshot))
        with _used(context, saved):
            back = await told(partial(sandboxes.kept.comeback, sandbox.id, saved))
            clones = await _clones(context, wanted, back, caller, asked.count)
            shown = [view(await running(context, each)) for each in clones]
    finally:
        if point is not None:  # they have read it, or never will
            await asyncio.to_thread(sandboxes.kept.drop, point)
    return HTTPStatus.CREATED, models.SandboxList(sandboxes=shown)


async def _clones(
    context: Context, wanted: WantedSandbox, back: RestorePoint, caller: Caller, count: int
) -> Sequence[Sandbox]:
    """All of them are starting, or none."""
    sandboxes = context.backend.sandboxes
    begun: list[Sandbox] = []
    admitted: list[Admitted] = []
    try:
        for _ in range(count):
            room = await _admit(context, wanted, caller, None)
            admitted.append(room)
        async with _memory(context, back, count) as given:
            for each in admitted:
                clone = await begin(context, each, _people(context, back, wanted), given)
                begun.append(clone)
    except BaseException:
        for each in admitted:
            sandboxes.withdraw(each)
        for clone in begun:
            sandboxes.kill(clone.id, Ending.KILLED, "not all of the fork could be made")
        raise
    return begun


@contextmanager
def _used(context: Context, saved: Path) -> Iterator[None]:
    """Nothing takes its place and nobody removes it while somebody begins from it. ControlProblem."""
    try:
        with context.backend.sandboxes.kept.using(saved):
            yield
    except SandboxRefused as error:
        raise from_sandbox(error) from None


@asynccontextmanager
async def _memory(context: Context, back: RestorePoint, count: int) -> AsyncIterator[RestorePoint]:
    """One copy has memory of its own, which can grow and be given back. Several share what none of them
    changes: ten cost what they touch."""
    if count == 1:
        yield back
        return
    sharing = context.backend.sandboxes.kept.shared(back)
    given = await told(sharing.__enter__)
    try:
        yield given
    finally:
        sharing.__exit__(None, None, None)


async def bring_back(
    context: Context, sandbox_id: str, caller: Caller, saved: Path, until: float | None = None
) -> Sandbox:
    """It begins again from what was saved in `saved`, under its own id and its maker's name. `until`: when
    its time is over, Unix seconds; None: it has the whole again. ControlProblem."""
    back = await told(lambda: context.backend.sandboxes.kept.comeback(sandbox_id, saved))
    admitted = await _admit(context, _wanted(context, sandbox_id), caller, sandbox_id)
    if until is not None:
        admitted = replace(
            admitted, limits=replace(admitted.limits, run_seconds=max(1, int(until - time.time())))
        )
    return await begin(context, admitted, _people(context, back, admitted.wanted), back)


def _wanted(context: Context, sandbox_id: str) -> WantedSandbox:
    record = context.backend.sandboxes.kept.record(sandbox_id)
    if record is None:
        raise ControlProblem(
            SandboxProblem.UNSAVABLE,
            "nothing is kept of it: it is no microVM, or it has ended with nothing saved",
            "Create another one.",
        )
    return record.wanted


async def _admit(context: Context, wanted: WantedSandbox, caller: Caller, sandbox_id: str | None) -> Admitted:
    """Room for it. Its isolation is measured anew: a credential may have been granted for that."""
    if context.backend.draining:
        raise ControlProblem(Refusal.DRAINING, "the daemon is shutting down", "Try again when it is back.")
    sandboxes = context.backend.sandboxes
    now = await told(lambda: sandboxes.choose(wanted.choice.backend, None))
    if now.isolation is not wanted.choice.isolation:
        raise ControlProblem(
            SandboxProblem.NO_BACKEND,
            f"it was isolated as {wanted.choice.isolation}, and this machine gives {now.isolation}",
            "Restore it on a machine of its kind.",
        )
    lacks = caller.may_give(wanted.tenant, wanted.policy, now.isolation, OriginClass.SOCKET)
    if lacks is not None:
        raise forbidden(lacks)
    mine = wanted if sandbox_id is not None else _of(wanted, caller)
    return await admit(context, mine, sandbox_id)


def revoked(context: Context, sandbox: Sandbox) -> bool:
    """Whether whoever was inside last was revoked; of one that several share, all of them. Who is not known
    any more counts as revoked: a state that was lost has lost what was revoked, too."""
    state = context.backend.state
    whose = [
        each not in state.sessions.by_id or state.status(each) is Status.REVOKED
        for each in sandbox.sessions.values()
    ]
    return bool(whose) and (all if sandbox.keeping.shares else any)(whose)


def _people(context: Context, back: RestorePoint, wanted: WantedSandbox) -> list[OpenedIdentity]:
    """Who was inside, with what every session of theirs since then was left with: going back to an older
    snapshot undoes no revocation. Who was revoked and left behind in a sandbox that others share has nothing.
    After an import what was written down counts, and the handles of their processes mean nothing."""
    state = context.backend.state
    life = back.last or max(back.lives, key=lambda each: each.generation)
    since = [each for each in back.lives if back.last is None or each.generation >= life.generation]
    policy = state.policies.get(wanted.policy)
    people = []
    for name, session_id in life.sessions.items():
        theirs = [_known(context, each.sessions[name]) for each in since if name in each.sessions]
        left = frozenset(life.credentials[name]).intersection(*(each.credentials for each in theirs))
        if policy is not None:  # it may have lost one meanwhile
            left &= policy.credentials.keys()
        if wanted.keeping.shares and any(state.status(each.id) is Status.REVOKED for each in theirs):
            people.append(OpenedIdentity(name, []))
        elif back.last is not None:
            lease = state.session(session_id).lease_seconds
            people.append(OpenedIdentity(name, sorted(left), session_id, lease))
        else:
            people.append(OpenedIdentity(name, sorted(left)))
    return people


def _known(context: Context, session_id: str) -> Session:
    session = context.backend.state.sessions.by_id.get(session_id)
    if session is None:
        raise ControlProblem(
            Problem.UNKNOWN_SESSION,
            "a session that it had is not known any more: the state was lost, and with it what was revoked",
            "Create another sandbox: `coatcheck sandbox run`.",
        )
    return session


async def running(context: Context, sandbox: Sandbox) -> Sandbox:
    """As it is once it runs, or did not come to that; waits for as long as that may take."""
    return await _until(context, sandbox.id, lambda now: now.state is not SandboxState.STARTING, BACK_SECONDS)


async def _until(
    context: Context, sandbox_id: str, done: Callable[[Sandbox], bool], seconds: float
) -> Sandbox:
    until = time.monotonic() + seconds
    while True:
        now = context.backend.sandboxes.settle(sandbox_id)
        if now is None:
            raise ControlProblem(SandboxProblem.UNKNOWN_SANDBOX, "it is gone", "Create another one.")
        if done(now) or time.monotonic() > until:
            return now
        await asyncio.sleep(POLL_SECONDS)


def _of(wanted: WantedSandbox, caller: Caller) -> WantedSandbox:
    """A copy belongs to whoever makes it."""
    return replace(wanted, opened_by=caller.name)


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
