"""Sandboxes that died are brought back from what was saved of them, where that was asked for.

As their makers would, with no more than their makers' grants allow now; a few times, and then it is said.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from coatcheck.control.caller import Caller
from coatcheck.control.context import Context
from coatcheck.control.problem import ControlProblem
from coatcheck.control.resources.sandbox_snapshots import told
from coatcheck.control.sandbox_returning import restore_unattended, revoked
from coatcheck.durable.recovery import ATTEMPTS, WITHIN_SECONDS, Step, next_step
from coatcheck.durable.sandbox import Sandbox
from coatcheck.launcher.sandbox import Ending
from coatcheck.telemetry.events import SandboxChange

LOOK_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


class Recovery:
    """Belongs to the control API's loop."""

    def __init__(self, context: Context, caller_named: Callable[[str], Caller | None]) -> None:
        """`caller_named`: as the grants are now."""
        self._context = context
        self._caller_named = caller_named
        self._failed: dict[str, str] = {}
        """Why the last attempt came to nothing, by sandbox, of those that are down."""

    async def run(self) -> None:
        """Until cancelled. One after the other: a host that came back up has enough to do."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for sandbox in self._context.backend.sandboxes.all():
                try:
                    await self._look(self._context.backend.sandboxes.get(sandbox.id) or sandbox)
                except Exception:
                    logger.exception("sandbox %s: its recovery failed; it counts as an attempt", sandbox.id)

    async def _look(self, sandbox: Sandbox) -> None:
        if not self._context.backend.serving:
            return  # what a daemon ends as it goes is not to be begun by it again
        sandboxes = self._context.backend.sandboxes
        attempts, now = sandboxes.kept.recoveries(sandbox.id), time.time()
        match next_step(sandbox, attempts, now):
            case Step.TRY if revoked(self._context, sandbox):
                detail = "it died, and its session was revoked: only a person restores it"
                await asyncio.to_thread(sandboxes.give_up, sandbox.id, detail, Ending.SESSION_OVER)
            case Step.TRY:
                begun = len([each for each in attempts if now - each < WITHIN_SECONDS]) + 1
                await asyncio.to_thread(sandboxes.kept.recovering, sandbox.id, now)
                detail = f"attempt {begun} of {ATTEMPTS}: {sandbox.ending}: {sandbox.detail}"
                sandboxes.noted(sandbox.id, SandboxChange.RECOVERING, detail)
                await self._try(sandbox)
            case Step.GIVE_UP:
                why = self._failed.pop(sandbox.id, f"{sandbox.ending}: {sandbox.detail}")
                minutes = int(WITHIN_SECONDS // 60)
                detail = (
                    f"it was brought back {ATTEMPTS} times within {minutes} minutes, and died again: {why}"
                )
                logger.error("sandbox %s is given up: %s", sandbox.id, detail)
                await asyncio.to_thread(sandboxes.give_up, sandbox.id, detail, Ending.CRASH_LOOP)

    async def _try(self, sandbox: Sandbox) -> None:
        sandboxes = self._context.backend.sandboxes
        maker = self._caller_named(sandbox.opened_by)
        try:
            if maker is None:
                raise LookupError(f"there is no caller {sandbox.opened_by} any more")
            saved = await told(lambda: sandboxes.kept.saved(sandbox.id, None))
            await restore_unattended(self._context, sandbox, maker, saved, sandbox.expires_at)
        except ControlProblem as problem:
            self._note(sandbox, f"{problem.message}. {problem.hint}")
        except LookupError as error:
            self._note(sandbox, str(error))
        else:
            self._failed.pop(sandbox.id, None)

    def _note(self, sandbox: Sandbox, why: str) -> None:
        self._failed[sandbox.id] = why
        logger.warning("sandbox %s died and is not back: %s", sandbox.id, why)
