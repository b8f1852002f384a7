"""In the supervisor: reports one sandbox to its daemon, and keeps the lease that the answers renew."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.launcher.spec import SupervisorSpec
from coatcheck.sandbox.sandbox import Ending, SandboxState

logger = logging.getLogger(__name__)

RENEWALS_A_LEASE: Final = 3
"""Two may fail, by a busy or restarting daemon, before authority is lost."""
AGAIN_SECONDS: Final = 1.0
"""Until a change that no daemon heard of is told again: the next one is up in a few of these."""
MAX_DETAIL: Final = 500
"""Characters that a report may have (control/resources/sandbox_models.py)."""

_OVER: Final = frozenset(
    {"session_closed", "unknown_session", "unknown_sandbox", "sandbox_ended", "forbidden"}
)
"""Answers to a renewal after which no other will come."""

type End = Callable[[Ending, str], None]


class Reporter:
    """Of one sandbox. `end` is called when its sessions are over, or no daemon has answered for a lease."""

    def __init__(
        self, spec: SupervisorSpec, client: ControlClient, end: End, detail: Callable[[], str] = str
    ) -> None:
        """`detail`: what every report says beside the state."""
        self.state = SandboxState.STARTING
        self._spec = spec
        self._client = client
        self._end = end
        self._detail = detail
        self._changed = asyncio.Event()
        self._reporting = asyncio.Lock()
        """One report at a time: the last word is the last to be heard."""

    def become(self, state: SandboxState) -> None:
        """Told at once, by `report_changes`."""
        self.state = state
        self._changed.set()

    async def keep_lease(self) -> None:
        lease = self._spec.lease_seconds
        until = time.monotonic() + lease
        due = time.monotonic()
        while True:
            await asyncio.sleep(min(due, until) - time.monotonic())
            # By the clock, not by sleeps: a slow answer must not push the next one back. The first at once: a
            # part of the lease has passed while we came up.
            due = max(due + lease / RENEWALS_A_LEASE, time.monotonic())
            asked = time.monotonic()
            try:
                await self.report()
                until = asked + lease
            except ControlError as error:
                if error.reason in _OVER:
                    self._end(Ending.SESSION_OVER, str(error))
                    return
                if time.monotonic() >= until:
                    self._end(Ending.DAEMON_GONE, f"no daemon answered for {lease:g} s: {error}")
                    return

    async def report_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.report()
            except ControlError as error:
                if error.reason in _OVER:
                    self._end(Ending.SESSION_OVER, str(error))
                    return
                await asyncio.sleep(AGAIN_SECONDS)
                self._changed.set()

    async def report(self) -> None:
        """The state as it is now. ControlError."""
        async with self._reporting:
            await asyncio.to_thread(
                self._client.report_sandbox, self._spec.id, self.state, None, self._detail()[:MAX_DETAIL]
            )

    async def last(self, state: SandboxState, ending: Ending | None, detail: str) -> None:
        """The last report. A daemon that does not get it notices the end anyway."""
        self.state = state
        try:
            async with self._reporting:
                await asyncio.to_thread(
                    self._client.report_sandbox, self._spec.id, state, ending, detail[:MAX_DETAIL]
                )
        except ControlError as error:
            if error.reason not in _OVER:
                logger.warning("sandbox %s: its end could not be reported: %s", self._spec.id, error)
