"""/v1/sandboxes/{sandbox}/scale: another size while it runs; and its supervisor's question for room."""

import asyncio
from typing import Final, cast

from coatcheck.control.caller import Action, Role
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem, Reason
from coatcheck.control.resources import sandbox_models as models
from coatcheck.control.resources.sandboxes import USING, find, use, view
from coatcheck.control.resources.sessions import caller_of, forbidden
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused
from coatcheck.telemetry.events import SandboxChange

SCALING: Final[frozenset[Reason]] = USING | {
    SandboxProblem.NOT_ELASTIC,
    SandboxProblem.BEYOND_LIMIT,
    SandboxProblem.OOM_FLOOR,
    SandboxProblem.NO_ROOM,
    SandboxProblem.NOT_STARTED,
}


async def scale(context: Context, ask: Ask) -> Answer:
    """Its supervisor decides: it knows what is in use."""
    sandbox = use(context, ask)
    asked = cast(models.Scale, ask.body)
    sandboxes = context.backend.sandboxes
    size = await asyncio.to_thread(sandboxes.scale, sandbox.id, asked.memory_mib, asked.cpus)
    now = sandboxes.get(sandbox.id) or sandbox
    return models.Scaled(sandbox=view(now), memory_mib=size.memory_mib, cpus=size.cpus)


async def count(context: Context, ask: Ask) -> Answer:
    """What a sandbox counts for from now on; before it grows, and after it has shrunk."""
    sandbox = find(context, ask)
    if caller_of(ask).role is not Role.OWNER:
        raise forbidden("this: only the daemon's own supervisors say what their sandboxes have")
    said = cast(models.Sized, ask.body)
    sandboxes = context.backend.sandboxes
    size = Size(said.memory_mib, said.cpus)
    try:
        now = await asyncio.to_thread(sandboxes.resized, sandbox.id, size, said.by)
    except SandboxRefused as error:
        sandboxes.noted(
            sandbox.id, SandboxChange.REFUSED, f"{size.memory_mib} MiB by {said.by}: {error.message}"
        )
        raise
    if now is None:
        raise ControlProblem(
            SandboxProblem.SANDBOX_ENDED, "the sandbox has ended", "Nothing of it can be resized."
        )
    return models.SandboxShown(sandbox=view(now))


OPERATIONS = (
    Operation(
        "scale_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/scale",
        Action.OPEN,
        "Change a running sandbox's memory and CPUs within its range",
        scale,
        models.Scaled,
        body=models.Scale,
        reasons=SCALING,
    ),
    Operation(
        "size_sandbox",
        "POST",
        "/v1/sandboxes/{sandbox}/size",
        Action.OPEN,
        "For the sandbox's supervisor: reserve room on this machine for a new size",
        count,
        models.SandboxShown,
        body=models.Sized,
        reasons=USING | {SandboxProblem.NO_ROOM},
    ),
)
