"""In the daemon: looks at every sandbox once a second, and does what is due.

A sandbox whose supervisor is gone is removed. One that died is recovered if its lifecycle says so: for its
creator, within that caller's grants as they are now, and only a few times. One that an orderly stop put to
sleep is woken. A running one is saved as often as its lifecycle says.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from coatcheck.durable.durability import PERIODIC, first_due
from coatcheck.durable.entries import Care
from coatcheck.durable.incarnations import Incarnations, Maker
from coatcheck.durable.lifecycle import MIN_SNAPSHOT_SECONDS
from coatcheck.durable.recovery import ATTEMPTS, PAUSES, WITHIN_SECONDS, Step, next_step
from coatcheck.durable.sandbox import Sandbox
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.platform.errors import CoatcheckError
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState
from coatcheck.telemetry.events import SandboxChange

TICK_SECONDS: Final = 1.0
FIRST_SECONDS: Final = MIN_SNAPSHOT_SECONDS
"""Until the first snapshot of a sandbox that was seen running with nothing saved: what is to be recovered
needs something to recover from."""

logger = logging.getLogger(__name__)

type MakerNamed = Callable[[str], Maker | None]
type Save = Callable[[Sandbox, str], Awaitable[None]]


class Reconciler:
    """Belongs to the loop of its `incarnations`."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        incarnations: Incarnations,
        save: Save,
        maker_named: MakerNamed,
        serving: Callable[[], bool],
        *,
        brings_back: bool,
    ) -> None:
        """`save`: takes a snapshot under a name. `maker_named`: a caller with its grants as they are now.
        `serving`: whether the daemon neither comes up nor goes down. `brings_back`: whether it recovers and
        wakes."""
        self._sandboxes = sandboxes
        self._incarnations = incarnations
        self._save = save
        self._maker_named = maker_named
        self._serving = serving
        self._brings_back = brings_back

    async def run(self) -> None:
        """Until cancelled. Each lane takes one sandbox after the other: a host that came back up has enough
        to do, and snapshots share a disk. No lane waits for another: a save may take minutes."""
        lanes = [self._sweep, self._take_snapshot]
        if self._brings_back:
            for each in self._sandboxes.kept.interrupted():
                if (care := self._sandboxes.care(each)) is not None:
                    care.wakes = []
            lanes.append(self._bring_back)
        async with asyncio.TaskGroup() as tasks:
            for lane in lanes:
                tasks.create_task(self._every_tick(lane))

    async def _every_tick(self, lane: Callable[[Sandbox, Care], Awaitable[None]]) -> None:
        while True:
            for known in self._sandboxes.all():
                sandbox, care = self._sandboxes.get(known.id), self._sandboxes.care(known.id)
                if sandbox is None or care is None:
                    continue
                try:
                    await lane(sandbox, care)
                except Exception:
                    logger.exception("sandbox %s: it could not be looked after", sandbox.id)
            await asyncio.sleep(TICK_SECONDS)

    async def _sweep(self, sandbox: Sandbox, care: Care) -> None:
        """If its supervisor is gone it is over, and what it left is removed."""
        if not self._sandboxes.is_down(sandbox.id):
            await asyncio.to_thread(self._sandboxes.settle, sandbox.id)

    # --- waking and recovering --------------------------------------------------------------------------

    async def _bring_back(self, sandbox: Sandbox, care: Care) -> None:
        if care.wakes is not None:
            await self._wake(sandbox, care, care.wakes)
        elif self._serving():  # what a daemon ends as it goes is not to be begun by it again
            await self._recover(sandbox, care)

    async def _wake(self, sandbox: Sandbox, care: Care, tried: list[float]) -> None:
        """Tried a few times: a host that has no room yet may have some by then. After that it sleeps on until
        somebody uses it, and that is reported."""
        if tried and time.monotonic() < tried[-1] + PAUSES[len(tried)]:
            return
        failed = await self._woken(sandbox)
        tried.append(time.monotonic())
        if not failed:
            care.wakes = None
        elif len(tried) == len(PAUSES):
            care.wakes = None
            detail = f"it stays asleep until it is used: {failed}"
            self._sandboxes.noted(sandbox.id, SandboxChange.GIVEN_UP, detail)
            logger.warning("sandbox %s: %s", sandbox.id, detail)

    async def _woken(self, sandbox: Sandbox) -> str:
        """Why it is not; empty when it is, or when a caller has woken or removed it."""
        if sandbox.state is not SandboxState.SLEEPING:
            return ""
        maker = self._maker_named(sandbox.opened_by)
        if maker is None:
            return f"there is no caller {sandbox.opened_by} any more"
        try:
            await self._incarnations.wake(sandbox, maker)
        except CoatcheckError as error:
            return f"{error.message}. {error.hint}"
        except Exception as error:
            logger.exception("sandbox %s could not be woken", sandbox.id)
            return type(error).__name__
        return ""

    async def _recover(self, sandbox: Sandbox, care: Care) -> None:
        sandboxes = self._sandboxes
        attempts, now = sandboxes.kept.recoveries(sandbox.id), time.time()
        match next_step(sandbox, attempts, now):
            case Step.TRY if self._incarnations.is_revoked(sandbox):
                detail = "it died, and its session was revoked: only a person restores it"
                await asyncio.to_thread(sandboxes.give_up, sandbox.id, detail, Ending.SESSION_OVER)
            case Step.TRY:
                begun = len([each for each in attempts if now - each < WITHIN_SECONDS]) + 1
                await asyncio.to_thread(sandboxes.kept.recovering, sandbox.id, now)
                detail = f"attempt {begun} of {ATTEMPTS}: {sandbox.ending}: {sandbox.detail}"
                sandboxes.noted(sandbox.id, SandboxChange.RECOVERING, detail)
                await self._try(sandbox, care)
            case Step.GIVE_UP:
                why = care.failed or f"{sandbox.ending}: {sandbox.detail}"
                minutes = int(WITHIN_SECONDS // 60)
                detail = (
                    f"it was brought back {ATTEMPTS} times within {minutes} minutes, and died again: {why}"
                )
                logger.error("sandbox %s is given up: %s", sandbox.id, detail)
                await asyncio.to_thread(sandboxes.give_up, sandbox.id, detail, Ending.CRASH_LOOP)

    async def _try(self, sandbox: Sandbox, care: Care) -> None:
        maker = self._maker_named(sandbox.opened_by)
        try:
            if maker is None:
                raise LookupError(f"there is no caller {sandbox.opened_by} any more")
            saved = await asyncio.to_thread(self._sandboxes.kept.saved, sandbox.id, None)
            await self._incarnations.restore_unattended(sandbox, maker, saved, sandbox.expires_at)
        except CoatcheckError as error:
            care.failed = f"{error.message}. {error.hint}"
        except LookupError as error:
            care.failed = str(error)
        else:
            care.failed = ""
            return
        logger.warning("sandbox %s died and is not back: %s", sandbox.id, care.failed)

    # --- periodic snapshots -----------------------------------------------------------------------------

    async def _take_snapshot(self, sandbox: Sandbox, care: Care) -> None:
        every = sandbox.keeping.every_seconds
        if sandbox.over:
            care.snapshot_due = None
        # One that is paused or asleep has nothing new to save: it is due when it runs again.
        if every is None or sandbox.state is not SandboxState.RUNNING:
            return
        if care.snapshot_due is None:
            care.snapshot_due = time.monotonic() + await self._first(sandbox.id, every)
        now = time.monotonic()
        if now < care.snapshot_due:
            return
        care.snapshot_due = now + every
        name = f"{PERIODIC}{datetime.now(UTC):%Y%m%d-%H%M%S}"
        try:
            await self._save(sandbox, name)
        except CoatcheckError as error:
            if isinstance(error, SandboxRefused) and error.problem is SandboxProblem.NOT_RUNNING:
                care.snapshot_due = now  # it has just been paused, or fell asleep
                return
            said = f"{error.message}. {error.hint}"
            self._sandboxes.noted(sandbox.id, SandboxChange.SNAPSHOT_FAILED, said)
            logger.warning("sandbox %s: no snapshot: %s", sandbox.id, said)

    async def _first(self, sandbox_id: str, every: float) -> float:
        """In how many seconds."""
        kept = self._sandboxes.kept
        try:
            saved = await asyncio.to_thread(kept.snapshots, sandbox_id)
        except SandboxRefused:
            return FIRST_SECONDS  # what is wrong with them is reported when the next one is taken
        record = kept.record(sandbox_id)
        generation = record.generation if record is not None else 1
        return first_due(saved, generation, every, FIRST_SECONDS, time.time())
