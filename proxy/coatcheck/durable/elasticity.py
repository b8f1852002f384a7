"""In the supervisor: resizes one running sandbox in steps, as a caller, a program inside or the autoscaler
asks.

Growing: the daemon admits it, the balloon lets go, and what the balloon let go its commands may use.
Shrinking: the balloon takes what is free, and only what it has is taken from the commands and from the
daemon's count. So nothing is killed for a smaller size, and nothing counted as free that somebody has.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.durable.autoscale import History, judge
from coatcheck.durable.elastic import Elastic, Initiator
from coatcheck.durable.scaling import check_in_use, wanted
from coatcheck.durable.sizing import NEARLY, Sizing
from coatcheck.launcher.agent import configure
from coatcheck.launcher.channel import Channel, ChannelBroken, StreamReset
from coatcheck.sandbox.limits import Limits, for_commands, said
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Between two looks at an elastic sandbox. A program takes a quarter of it in about that time."""
MOVING_SECONDS: Final = 0.1
"""The same while its balloon moves."""
CONFIGURE_SECONDS: Final = 10.0
"""For the guest's agent to take a new limit."""


@dataclass(frozen=True, slots=True)
class Means:
    """What another size takes."""

    elastic: Elastic
    sizing: Sizing
    daemon: ControlClient


class Elasticity:
    """Belongs to one event loop. `means`: None for a sandbox of one size."""

    def __init__(
        self,
        sandbox: str,
        limits: Limits,
        means: Means | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        restored: bool = False,
    ) -> None:
        """`restored`: its machine goes on where it was saved, with the memory that it had there."""
        self.now = limits.resources.size
        """What it was last told to have."""
        self._sandbox, self._limits, self._means, self._clock = sandbox, limits, means, clock
        self._claimed = self.now
        """What the daemon counts for it: never less than it could still have."""
        self._given_mib = limits.resources.memory_mib
        """What its commands may use together, as the guest's agent was last told."""
        self._by = Initiator.CALLER
        """What asked for that."""
        self._restored = restored
        self._held = False
        """Its balloon has once been where it belongs: it is not just booting."""
        self._channel: Channel | None = None
        self._running: Callable[[], bool] = lambda: False
        self._turn = asyncio.Lock()
        """One change at a time: each begins where the last one ended."""
        self.past = History()
        """What the autoscaler remembers."""

    def limits(self) -> Mapping[str, Any]:
        """What it may take now, and how far that may change."""
        elastic: dict[str, Any] | None = None
        why = "it was asked for with one size" if self._means is None else self._means.sizing.fixed
        if self._means is not None and not why:
            elastic = asdict(self._means.elastic) | {"cpus_held_by": self._means.sizing.cpus_held_by}
        return said(self._limits) | asdict(self.now) | {"elastic": elastic, "one_size": why}

    async def scale(self, memory_mib: int | None, cpus: int | None, by: Initiator) -> Size:
        """The size that it has from now on. SandboxRefused when it cannot have it: nothing has changed."""
        async with self._turn:
            means = self._means
            asked = wanted(means.elastic if means is not None else None, self.now, memory_mib, cpus, by)
            if means is None or means.sizing.fixed:
                why = means.sizing.fixed if means is not None else "this sandbox has one size"
                raise SandboxRefused(SandboxProblem.NOT_ELASTIC, why, "Use another sandbox for more.")
            if not self._running():
                raise SandboxRefused(
                    SandboxProblem.NOT_RUNNING,
                    "a sandbox that does not run is not resized",
                    "Resume it first.",
                )
            if asked == self.now:
                return asked
            try:
                if asked.memory_mib < self.now.memory_mib:
                    check_in_use(asked, self.now, (await means.sizing.use()).used_mib)
                before = self._claimed
                needed = Size(max(asked.memory_mib, before.memory_mib), asked.cpus)
                await self._claim(means.daemon, needed, by)
                try:
                    await means.sizing.resize(asked)
                except MachineError:
                    with contextlib.suppress(SandboxRefused):
                        await self._claim(means.daemon, before, by)
                    raise
            except MachineError as error:
                raise SandboxRefused(SandboxProblem.NOT_RUNNING, str(error), error.hint) from None
            self.now, self._by = asked, by
            return asked

    async def run(self, channel: Callable[[], Awaitable[Channel]], running: Callable[[], bool]) -> None:
        """Carry out what is asked for, until cancelled. `channel` waits for the guest to be ready; while not
        `running` nothing is looked at."""
        means = self._means
        if means is None:
            return
        with contextlib.suppress(ChannelBroken):  # it came to nothing, and somebody else says so
            self._channel = await channel()
            self._running = running
            begun = False
            while True:
                if running():
                    with contextlib.suppress(MachineError):  # it has just been put to sleep, or is gone
                        if not begun:
                            await self._begin(means)
                            begun = True
                        await self._look(means)
                    if means.sizing.fixed:
                        return
                moving = self._given_mib != self.now.memory_mib or self._claimed != self.now
                await asyncio.sleep(MOVING_SECONDS if moving else LOOK_SECONDS)

    async def _begin(self, means: Means) -> None:
        if self._restored:
            least, most = means.elastic.min_memory_mib, means.elastic.max_memory_mib
            self.now = Size(min(max(await means.sizing.has(), least), most), self.now.cpus)
            self._given_mib = 0  # what its agent was told is not known
            with contextlib.suppress(SandboxRefused):  # it has it, promised or not
                await self._claim(means.daemon, self.now, Initiator.RESTORED)
        if not means.sizing.fixed:
            await means.sizing.resize(self.now)

    async def _look(self, means: Means) -> None:
        async with self._turn:
            await means.sizing.settle()
            if means.sizing.fixed:
                return
            use = await means.sizing.use()
            await self._follow(means.daemon, use.has_mib)
            if self._held and use.resident_mib > self._claimed.memory_mib + NEARLY:
                # Somebody in there let the air out of the balloon: from now on it counts for all it can take.
                with contextlib.suppress(SandboxRefused):
                    await self._claim(
                        means.daemon, Size(means.elastic.max_memory_mib, self.now.cpus), Initiator.INSIDE
                    )
        elastic = means.elastic
        if elastic.autoscale is None:
            return
        mib, self.past = judge(
            elastic.autoscale,
            elastic.min_memory_mib,
            elastic.max_memory_mib,
            self.now.memory_mib,
            use.used_mib,
            self._clock(),
            self.past,
        )
        if mib != self.now.memory_mib:
            try:
                await self.scale(mib, elastic.cpus_for(mib), Initiator.AUTOSCALER)
            except SandboxRefused as refused:
                logger.info("sandbox %s stays at %s: %s", self._sandbox, self.now, refused.message)

    async def _follow(self, daemon: ControlClient, has_mib: int) -> None:
        """What the balloon let go, or has taken, becomes what commands may use and what the daemon counts."""
        target = self.now.memory_mib
        arrived = abs(has_mib - target) <= NEARLY
        if arrived or has_mib < target:
            await self._give(target if arrived else max(has_mib, self._given_mib))
        self._held = self._held or arrived
        if arrived and self._claimed.memory_mib > target:
            with contextlib.suppress(SandboxRefused):  # it counts too much for a moment; asked again soon
                await self._claim(daemon, self.now, self._by)

    async def _give(self, mib: int) -> None:
        if self._channel is None or mib == self._given_mib:
            return
        try:
            async with asyncio.timeout(CONFIGURE_SECONDS):
                await configure(self._channel, ("memory", str(for_commands(mib))))
        except (ChannelBroken, StreamReset, TimeoutError):
            return  # asked again at the next look
        self._given_mib = mib

    async def _claim(self, daemon: ControlClient, size: Size, by: Initiator) -> None:
        if size == self._claimed:
            return
        try:
            await asyncio.to_thread(daemon.size_sandbox, self._sandbox, size.memory_mib, size.cpus, by.value)
        except ControlError as error:
            if error.reason == SandboxProblem.NO_ROOM:
                raise SandboxRefused(SandboxProblem.NO_ROOM, str(error), error.hint) from None
            raise SandboxRefused(
                SandboxProblem.NO_ROOM,
                "the daemon does not say whether there is room for it",
                "Try again in a moment.",
            ) from None
        self._claimed = size
