"""From the control API's thread to the plane's loop and back, with a deadline; and whether it beats."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from coatcheck.control.problem import ControlProblem, Refusal

BEAT_SECONDS: Final = 0.25
"""How often the plane's loop is asked for a sign of life."""
STALLED_SECONDS: Final = 1.0
"""Without a sign for this long the plane is called stalled: four beats missed."""
DEAD_SECONDS: Final = 10.0
"""For this long: /healthz fails, and an orchestrator restarts us. A stall that ends costs less than that."""
ANSWER_SECONDS: Final = 5.0
"""How long a request waits for the plane's loop to do something."""


class PlaneBridge:
    """Belongs to the control API's loop."""

    def __init__(self, plane: asyncio.AbstractEventLoop) -> None:
        self._plane = plane
        self._beaten_at = time.monotonic()
        self._asked = False

    async def call[T](self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float = ANSWER_SECONDS) -> T:
        """The result of `work()` on the plane's loop. ControlProblem(PLANE_STALLED) when none comes.

        What has been started is cancelled then, so that nothing is opened for a request that failed.
        """
        given_up = False

        async def unless_given_up() -> T:
            # asyncio would still run the first step of what was cancelled before it began.
            if given_up:
                raise asyncio.CancelledError
            return await work()

        coroutine = unless_given_up()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._plane)
        except RuntimeError:  # the loop is closed: the daemon is stopping
            coroutine.close()
            raise stalled() from None
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise stalled() from None
        finally:
            given_up = True

    @property
    def age(self) -> float:
        """Seconds since the plane's loop last gave a sign of life."""
        return time.monotonic() - self._beaten_at

    async def keep_beating(self) -> None:
        """Ask for a sign of life again and again, never twice at once: a stalled loop queues nothing."""
        while True:
            if not self._asked:
                self._asked = True  # first: the beat may come before the next line here
                try:
                    self._plane.call_soon_threadsafe(self._beat)
                except RuntimeError:  # closed: the daemon is stopping, and the age grows
                    return
            await asyncio.sleep(BEAT_SECONDS)

    def _beat(self) -> None:
        """On the plane's loop. Two plain stores, which need no lock."""
        self._beaten_at = time.monotonic()
        self._asked = False


def stalled() -> ControlProblem:
    return ControlProblem(
        Refusal.PLANE_STALLED,
        "the proxy did not answer in time",
        "It is overloaded or stopping; see /healthz. Try again in a moment.",
    )
