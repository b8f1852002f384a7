"""In the supervisor: puts a sandbox to sleep, saved to disk without a machine or memory, and wakes it.

As long as its supervisor stays it wakes as it was, with its connections: an answer that arrives waits in the
kernel, bounded by the stream's window, and wakes it. Then the supervisor goes too, and another one wakes it.
"""

import asyncio
import logging
from typing import Final

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.durable.freeze import thaw
from coatcheck.durable.rebinding import forget_sleep
from coatcheck.durable.saving import FAILURES, SAVE_SECONDS, Saver
from coatcheck.durable.spec import DurableSpec
from coatcheck.launcher.agent import set_clock
from coatcheck.launcher.channel import Channel
from coatcheck.launcher.supervisor import Supervisor
from coatcheck.sandbox.refusal import refuse
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState

RETRY_SECONDS: Final = 30.0
"""Until a machine that could not be woken for an answer is tried again: its host may have room then."""

logger = logging.getLogger(__name__)


class Sleeper:
    """Belongs to the sandbox's event loop."""

    def __init__(self, spec: DurableSpec, saver: Saver, sandbox: Supervisor, client: ControlClient) -> None:
        self._spec = spec
        self._saver = saver
        self._client = client
        self._sandbox = sandbox
        self._operations = sandbox.operations
        self._reporter = sandbox.reporter
        self._connections = sandbox.connections
        self._channel: Channel | None = None
        """Of the one that sleeps."""
        self._timer: asyncio.TimerHandle | None = None
        self._leaves = False

    async def sleep(self, channel: Channel, *, leaves: bool = False) -> int:
        """How many of its connections are held. Takes its turn. SandboxRefused. `leaves`: its daemon stops,
        so nothing wakes it here any more, in spite of connections and of what arrives."""
        return await self._operations.take(lambda: self._sleep(channel, leaves=leaves))

    def doze(self, channel: Channel) -> None:
        """It is idle: it sleeps, unless it cannot; then it is looked at again later."""
        task = self._operations.start(lambda: self._doze(channel))
        task.add_done_callback(self._dozed)

    async def wake(self) -> None:
        """Nothing happens to one that is awake. SandboxRefused: it sleeps on."""
        if self._channel is not None or self._reporter.state is SandboxState.SLEEPING:
            await self._operations.take(self._wake)

    def close(self) -> None:
        self._cancel_timer()

    async def _doze(self, channel: Channel) -> int:
        try:
            # A caller that puts it to sleep asks the daemon; policy may have changed since it began.
            await asyncio.to_thread(self._client.may_save_sandbox, self._spec.sandbox.id)
        except ControlError as error:
            self._connections.begin()
            raise refuse(SandboxProblem.UNSAVABLE, str(error), error.hint) from None
        return await self._sleep(channel)

    async def _sleep(self, channel: Channel, *, leaves: bool = False) -> int:
        if self._channel is None:
            self._connections.stop()
            try:
                await self._saver.sleep(channel)
            except BaseException:
                self._connections.begin()
                raise
            self._channel = channel
            self._reporter.become(SandboxState.SLEEPING)
        elif not leaves:
            return channel.held
        if leaves:
            self._leaves = True
            channel.when_wanted(None)
            self._cancel_timer()
            self._sandbox.leave("it sleeps")
            return channel.held
        channel.when_wanted(self._wanted)
        if channel.wanted:
            self._wanted()  # by what arrived while it was saved
        else:
            self._hold()
        return channel.held

    def _hold(self) -> None:
        """Until nobody is connected and nothing that is awaited can come any more, or has for too long."""
        self._cancel_timer()
        if self._channel is None:
            return
        if not self._connections.connected and not self._channel.held:
            self._sandbox.leave("it sleeps")
            return
        self._timer = asyncio.get_running_loop().call_later(self._spec.held_seconds, self._held_long_enough)

    def _held_long_enough(self) -> None:
        if self._connections.connected:
            self._hold()
        else:
            self._sandbox.leave("it sleeps")

    async def _wake(self) -> None:
        channel = self._channel
        if channel is None:
            return
        if self._leaves:
            raise refuse(SandboxProblem.NOT_WOKEN, "its daemon stops", "Use it when the daemon is back.")
        self._cancel_timer()
        machine, store = self._saver.durable()
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                await machine.wake()
        except FAILURES as error:
            self._hold()  # it sleeps on: what was saved is whole
            raise _not_woken(error) from None
        try:
            await machine.resume()
            await set_clock(channel)
            await thaw(channel)
        except FAILURES as error:  # half awake is no state
            self._sandbox.end(Ending.MACHINE_ENDED, f"it did not go on after its sleep: {error}")
            raise _not_woken(error) from None
        self._channel = None
        channel.when_wanted(None)
        self._reporter.become(SandboxState.RUNNING)
        self._connections.begin()
        # From here on what was saved is of the past.
        await forget_sleep(store)

    def _wanted(self) -> None:
        if self._channel is not None:
            self._channel.when_wanted(None)  # once
            self._operations.start(self._wake).add_done_callback(self._woken)

    def _woken(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or task.exception() is None or self._channel is None:
            return
        logger.warning("sandbox %s is not woken for an answer: %s", self._spec.sandbox.id, task.exception())
        self._channel.when_wanted(self._wanted)
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wanted)

    def _dozed(self, task: "asyncio.Task[int]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("sandbox %s is idle and does not sleep: %s", self._spec.sandbox.id, error)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _not_woken(error: Exception) -> SandboxRefused:
    return refuse(SandboxProblem.NOT_WOKEN, str(error) or "it took too long", getattr(error, "hint", ""))
