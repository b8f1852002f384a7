"""What handlers share: the backend, the bridge to the plane, and threads for calls that wait for a disk.

Taking has threads of its own, so that a revocation never queues behind a hundred sessions being opened.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from coatcheck.control.backend import Backend
from coatcheck.control.bridge import PlaneBridge
from coatcheck.control.page.logins import Logins
from coatcheck.control.page.openid_login import OpenIdLogins
from coatcheck.control.problem import ControlProblem, Refusal, from_state
from coatcheck.state.errors import StateError

MAX_WAITING: Final = 128
"""Calls that may wait for a thread, of each kind: at 5 ms a flush, the last one waits under a second."""


class _Lane:
    """A few threads and a bounded queue before them."""

    def __init__(self, name: str, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, f"control-{name}")
        self._waiting = 0

    async def run[T](self, work: Callable[[], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise ControlProblem(
                Refusal.BUSY, "too many requests are waiting for the disk", "Try again in a moment."
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except StateError as error:
            raise from_state(error) from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)


class Context:
    """Belongs to the control API's loop."""

    def __init__(
        self,
        backend: Backend,
        bridge: PlaneBridge,
        page_origin: str | None = None,
        openid: OpenIdLogins | None = None,
    ) -> None:
        """`page_origin`: where a browser finds the page, `http://127.0.0.1:8750`; None: nowhere. `openid`:
        how people log in there at their provider; closed by `close`."""
        self.backend = backend
        self.bridge = bridge
        self.page_origin = page_origin
        self.logins = Logins()
        self.openid = openid
        # One thread gives, so that a revocation waits for at most one flush before its own. To be in force
        # it waits for none: each has a thread, however long the disk or a fleet's database take.
        self._giving = _Lane("give", 1)
        self._taking = _Lane("take", MAX_WAITING)
        self._reading = _Lane("read", 1)

    async def give[T](self, work: Callable[[], T]) -> T:
        """Run what opens, renews or mints. A StateError becomes its ControlProblem, here and below."""
        return await self._giving.run(work)

    async def take[T](self, work: Callable[[], T]) -> T:
        """Run what revokes or ends."""
        return await self._taking.run(work)

    async def read[T](self, work: Callable[[], T]) -> T:
        """Run what only reads, and takes a while."""
        return await self._reading.run(work)

    async def close(self) -> None:
        for lane in (self._taking, self._giving, self._reading):
            lane.close()
        if self.openid is not None:
            await self.openid.close()
