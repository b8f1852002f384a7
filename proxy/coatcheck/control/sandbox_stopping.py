"""A daemon that stops in order puts to sleep what is to outlive it, and the next one wakes that again.

What cannot be put to sleep in time ends, and says why; what is to come back does so from its newest snapshot.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from coatcheck.control.caller import Caller
from coatcheck.control.context import Context
from coatcheck.control.problem import ControlProblem
from coatcheck.control.resources.sandbox_snapshots import check_savable, told
from coatcheck.control.resources.sandboxes import POLL_SECONDS
from coatcheck.control.sandbox_returning import awake
from coatcheck.durable.recovery import PAUSES
from coatcheck.durable.sandbox import Sandbox
from coatcheck.launcher.sandbox import (
    Ending,
    SandboxRefused,
    SandboxState,
)
from coatcheck.telemetry.events import SandboxChange

AT_ONCE: Final = 2
"""That fall asleep: one's guest is waited for while another one is written. More would share one disk, and
where the time is too short for all, none would be done."""

logger = logging.getLogger(__name__)


async def put_to_sleep(context: Context, seconds: float) -> None:
    """All that are to outlive the daemon sleep when this returns, or are ending. None begins any more."""
    sandboxes, until = context.backend.sandboxes, time.monotonic() + seconds
    sandboxes.start_no_more()
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(sandbox: Sandbox) -> None:
        async with turns:
            await _put_to_sleep(context, sandbox, until, f"there was no time left of {seconds:g} s")

    staying = [each for each in sandboxes.all() if each.keeping.stays and not each.over]
    awake = [in_turn(each) for each in staying if not sandboxes.is_down(each.id)]
    await asyncio.gather(*awake, return_exceptions=True)  # whatever is left is ended with all the others


async def _put_to_sleep(context: Context, sandbox: Sandbox, until: float, too_late: str) -> None:
    sandboxes = context.backend.sandboxes
    try:
        if sandbox.state is not SandboxState.SLEEPING:  # that one is saved, and only its supervisor goes
            check_savable(context, sandbox)
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        await told(lambda: sandboxes.ask(sandbox.id, "POST", "/sleep", {"leaves": True}, left))
        while not sandboxes.is_down(sandbox.id) and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(sandboxes.settle, sandbox.id)
    except (ControlProblem, TimeoutError) as error:
        why = too_late if time.monotonic() >= until else str(error)
        detail = f"the daemon was stopped, and it could not be put to sleep before: {why}"
        logger.error("sandbox %s ends: %s", sandbox.id, detail)
        await context.take(partial(sandboxes.kill, sandbox.id, Ending.DAEMON_GONE, detail))
        return
    if sandbox.state is not SandboxState.PAUSED:  # that one sleeps until somebody wants it
        with contextlib.suppress(OSError):  # it sleeps until then, too
            await asyncio.to_thread(sandboxes.kept.interrupt, sandbox.id)


class Waking:
    """Belongs to the control API's loop. `caller_named`: as the grants are now."""

    def __init__(self, context: Context, caller_named: Callable[[str], Caller | None]) -> None:
        self._context = context
        self._caller_named = caller_named

    async def run(self) -> None:
        """Until all that ran when the last daemon stopped run again, or sleep on, which is told."""
        sandboxes = self._context.backend.sandboxes
        why = dict.fromkeys(sandboxes.kept.interrupted(), "")
        for pause in PAUSES:
            if why:
                await asyncio.sleep(pause)
            tried = {each: await self._wake(each) for each in why}
            why = {each: failed for each, failed in tried.items() if failed}
        for each, failed in why.items():
            detail = f"it sleeps on, until somebody uses it: {failed}"
            sandboxes.noted(each, SandboxChange.GIVEN_UP, detail)
            logger.warning("sandbox %s: %s", each, detail)

    async def _wake(self, sandbox_id: str) -> str:
        """Why it is not; empty when it is, or is no matter of ours."""
        sandbox = self._context.backend.sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.state is not SandboxState.SLEEPING:
            return ""
        maker = self._caller_named(sandbox.opened_by)
        if maker is None:
            return f"there is no caller {sandbox.opened_by} any more"
        try:
            await awake(self._context, sandbox, maker)
        except (ControlProblem, SandboxRefused) as problem:
            return f"{problem.message}. {problem.hint}"
        except Exception as error:
            logger.exception("sandbox %s could not be woken", sandbox_id)
            return type(error).__name__
        return ""
