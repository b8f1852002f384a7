"""Snapshots that nobody asks for one by one: taken while a sandbox runs, as often as its maker wanted."""

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Final

from coatcheck.control.context import Context
from coatcheck.control.problem import ControlProblem
from coatcheck.control.resources.sandbox_snapshots import save, told
from coatcheck.durable.durability import PERIODIC, first_due
from coatcheck.durable.lifecycle import MIN_SNAPSHOT_SECONDS
from coatcheck.durable.sandbox import Sandbox
from coatcheck.launcher.sandbox import SandboxProblem, SandboxState
from coatcheck.telemetry.events import SandboxChange

LOOK_SECONDS: Final = 1.0
FIRST_SECONDS: Final = MIN_SNAPSHOT_SECONDS
"""After it was first seen running with nothing saved of it: who is to be brought back needs something to come
back from."""

logger = logging.getLogger(__name__)


class PeriodicSnapshots:
    """Belongs to the control API's loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._due: dict[str, float] = {}
        """By sandbox, on the monotonic clock."""

    async def run(self) -> None:
        """Until cancelled. One after the other: they share a disk, and a late one is no loss."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            running = [each for each in self._context.backend.sandboxes.all() if not each.over]
            known = {each.id for each in running}
            self._due = {sandbox: due for sandbox, due in self._due.items() if sandbox in known}
            for sandbox in running:
                await self._look(sandbox)

    async def _first(self, sandbox_id: str, every: float) -> float:
        """In how many seconds."""
        kept = self._context.backend.sandboxes.kept
        try:
            saved = await told(lambda: kept.snapshots(sandbox_id))
        except ControlProblem:
            return FIRST_SECONDS  # what is wrong with them is told when the next one is taken
        record = kept.record(sandbox_id)
        generation = record.generation if record is not None else 1
        return first_due(saved, generation, every, FIRST_SECONDS, time.time())

    async def _look(self, sandbox: Sandbox) -> None:
        every = sandbox.keeping.every_seconds
        # One that is paused or asleep has nothing new to save: it is due when it runs again.
        if every is None or sandbox.state is not SandboxState.RUNNING:
            return
        if sandbox.id not in self._due:
            self._due[sandbox.id] = time.monotonic() + await self._first(sandbox.id, every)
        now = time.monotonic()
        if now < self._due[sandbox.id]:
            return
        self._due[sandbox.id] = now + every
        name = f"{PERIODIC}{datetime.now(UTC):%Y%m%d-%H%M%S}"
        try:
            await save(self._context, sandbox, name)
        except ControlProblem as problem:
            if problem.reason is SandboxProblem.NOT_RUNNING:  # it has just been paused, or fell asleep
                self._due[sandbox.id] = now
                return
            said = f"{problem.message}. {problem.hint}"
            self._context.backend.sandboxes.noted(sandbox.id, SandboxChange.SNAPSHOT_FAILED, said)
            logger.warning("sandbox %s: no snapshot: %s", sandbox.id, said)
        except Exception:
            logger.exception("sandbox %s: its periodic snapshot failed", sandbox.id)
