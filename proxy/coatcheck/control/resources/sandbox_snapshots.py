"""/v1/sandboxes/{sandbox}/snapshots, sleep: what is saved of a sandbox that runs."""

import asyncio
from http import HTTPStatus
from typing import Final, cast

from coatcheck.control.caller import Action, Role
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem, Reason
from coatcheck.control.resources import sandbox_models as models
from coatcheck.control.resources.sandboxes import UNKNOWN, USING, find, use, view
from coatcheck.control.resources.sessions import caller_of, forbidden
from coatcheck.durable.durability import PERIODIC, Saved
from coatcheck.durable.incarnations import SAVE_SECONDS
from coatcheck.durable.snapshotting import check_savable, save
from coatcheck.sandbox.sandbox import (
    SandboxProblem,
    SandboxState,
)
from coatcheck.state.errors import Problem

SAVING: Final[frozenset[Reason]] = USING | {
    SandboxProblem.NOT_STARTED,
    SandboxProblem.UNSAVABLE,
    SandboxProblem.NOT_SAVED,
    SandboxProblem.SANDBOX_BUSY,
}


async def take(context: Context, ask: Ask) -> Answer:
    sandbox = use(context, ask)
    name = cast(models.NewSnapshot, ask.body).name
    if name.startswith(PERIODIC):
        raise ControlProblem(
            Problem.BAD_VALUE,
            f"names that begin with {PERIODIC} are of periodic snapshots, which are replaced",
            "Use another name.",
        )
    sandboxes = context.backend.sandboxes
    if sandboxes.is_down(sandbox.id):
        raise ControlProblem(
            SandboxProblem.NOT_RUNNING, "it sleeps, and is saved already", "Wake it, or fork it as it is."
        )
    await save(sandboxes, context.backend.state, sandbox, name)
    found = await asyncio.to_thread(sandboxes.kept.snapshots, sandbox.id)
    for each in found:
        if each.name == name:
            return HTTPStatus.CREATED, models.SnapshotShown(snapshot=_view(each))
    raise ControlProblem(
        SandboxProblem.NOT_SAVED, f"the snapshot {name} was taken and has been removed", "Take another one."
    )


async def list_all(context: Context, ask: Ask) -> Answer:
    sandbox = find(context, ask)
    kept = context.backend.sandboxes.kept
    return models.SnapshotList(
        snapshots=[_view(each) for each in await asyncio.to_thread(kept.snapshots, sandbox.id)]
    )


async def remove(context: Context, ask: Ask) -> Answer:
    sandbox = find(context, ask)
    kept, name = context.backend.sandboxes.kept, ask.path["snapshot"]
    await asyncio.to_thread(kept.remove, sandbox.id, name)
    return await list_all(context, ask)


async def sleep(context: Context, ask: Ask) -> Answer:
    sandbox = use(context, ask)
    sandboxes = context.backend.sandboxes
    if sandbox.state is not SandboxState.SLEEPING:
        check_savable(context.backend.state, sandbox)
        await asyncio.to_thread(sandboxes.ask, sandbox.id, "POST", "/sleep", {}, SAVE_SECONDS)
        sandboxes.reported(sandbox.id, SandboxState.SLEEPING, None, "")
    return models.SandboxShown(sandbox=view(sandboxes.settle(sandbox.id) or sandbox))


async def may_save(context: Context, ask: Ask) -> Answer:
    """An idle one falls asleep by its supervisor, which knows no policy."""
    sandbox = find(context, ask)
    if caller_of(ask).role is not Role.OWNER:
        raise forbidden("this: only the daemon's own supervisors ask it")
    check_savable(context.backend.state, sandbox)
    return models.SandboxShown(sandbox=view(sandbox))


def _view(saved: Saved) -> models.SnapshotView:
    return models.SnapshotView(
        name=saved.name,
        created_at=saved.created_at,
        generation=saved.generation,
        bytes_on_disk=saved.bytes_on_disk,
    )


OPERATIONS = (
    Operation(
        "take_snapshot",
        "POST",
        "/v1/sandboxes/{sandbox}/snapshots",
        Action.OPEN,
        "Take a snapshot of memory, devices and disk under a name. The sandbox pauses for a moment",
        take,
        models.SnapshotShown,
        body=models.NewSnapshot,
        status=HTTPStatus.CREATED,
        reasons=SAVING | {Problem.BAD_VALUE},
        seconds=SAVE_SECONDS,
    ),
    Operation(
        "list_snapshots",
        "GET",
        "/v1/sandboxes/{sandbox}/snapshots",
        Action.SEE,
        "List a sandbox's snapshots, the oldest first",
        list_all,
        models.SnapshotList,
        reasons=UNKNOWN | {SandboxProblem.NOT_SAVED},
    ),
    Operation(
        "remove_snapshot",
        "DELETE",
        "/v1/sandboxes/{sandbox}/snapshots/{snapshot}",
        Action.END,
        "Remove a snapshot. The answer lists the others",
        remove,
        models.SnapshotList,
        reasons=UNKNOWN
        | {SandboxProblem.UNKNOWN_SNAPSHOT, SandboxProblem.NOT_SAVED, SandboxProblem.SANDBOX_BUSY},
    ),
    Operation(
        "sleep_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/sleep",
        Action.OPEN,
        "Save a sandbox to disk. It takes no memory until it wakes",
        sleep,
        models.SandboxShown,
        reasons=SAVING,
        seconds=SAVE_SECONDS,
    ),
    Operation(
        "may_save_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/may-save",
        Action.OPEN,
        "For the sandbox's supervisor: ask whether policy lets the idle sandbox be saved",
        may_save,
        models.SandboxShown,
        reasons=UNKNOWN | {SandboxProblem.UNSAVABLE},
    ),
)
