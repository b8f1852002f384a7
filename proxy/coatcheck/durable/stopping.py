"""In the daemon: puts to sleep what is to outlive a daemon that stops in order. The next one wakes it
(`reconcile`).

What cannot be put to sleep in time ends, and says why; what recovers does so from its newest snapshot.
"""

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Final

from coatcheck.durable.incarnations import POLL_SECONDS, Take
from coatcheck.durable.sandbox import Sandbox
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.durable.snapshotting import check_savable
from coatcheck.platform.errors import CoatcheckError
from coatcheck.sandbox.sandbox import Ending, SandboxState
from coatcheck.state.state import State

AT_ONCE: Final = 2
"""That fall asleep: one's guest is waited for while another one is written. More would share one disk, and
where the time is too short for all, none would be done."""

logger = logging.getLogger(__name__)


async def put_to_sleep(sandboxes: Sandboxes, state: State, take: Take, seconds: float) -> None:
    """All that are to outlive the daemon sleep when this returns, or are ending. None begins any more."""
    until = time.monotonic() + seconds
    sandboxes.start_no_more()
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(sandbox: Sandbox) -> None:
        async with turns:
            too_late = f"there was no time left of {seconds:g} s"
            await _put_to_sleep(sandboxes, state, take, sandbox, until, too_late)

    staying = [each for each in sandboxes.all() if each.keeping.stays and not each.over]
    awake = [in_turn(each) for each in staying if not sandboxes.is_down(each.id)]
    await asyncio.gather(*awake, return_exceptions=True)  # whatever is left is ended with all the others


async def _put_to_sleep(
    sandboxes: Sandboxes, state: State, take: Take, sandbox: Sandbox, until: float, too_late: str
) -> None:
    try:
        if sandbox.state is not SandboxState.SLEEPING:  # that one is saved, and only its supervisor goes
            check_savable(state, sandbox)
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        await asyncio.to_thread(sandboxes.ask, sandbox.id, "POST", "/sleep", {"leaves": True}, left)
        while not sandboxes.is_down(sandbox.id) and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(sandboxes.settle, sandbox.id)
    except (CoatcheckError, TimeoutError) as error:
        why = too_late if time.monotonic() >= until else str(error)
        detail = f"the daemon was stopped, and it could not be put to sleep before: {why}"
        logger.error("sandbox %s ends: %s", sandbox.id, detail)
        await take(partial(sandboxes.kill, sandbox.id, Ending.DAEMON_GONE, detail))
        return
    if sandbox.state is not SandboxState.PAUSED:  # that one sleeps until somebody wants it
        with contextlib.suppress(OSError):  # it sleeps until then, too
            await asyncio.to_thread(sandboxes.kept.interrupt, sandbox.id)
