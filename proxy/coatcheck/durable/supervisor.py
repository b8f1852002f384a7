"""In the supervisor: runs one sandbox beyond its boot: it is saved, forked, put to sleep, woken and
resized.

One that is restored, or comes from the warm pool, runs nothing before it is somebody of its own. One that
sleeps may be left to itself: what was saved of it is all that stays.
"""

import asyncio
import socket
from pathlib import Path
from typing import Final

from coatcheck.client.control import ControlClient
from coatcheck.durable.elasticity import Elasticity
from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.rebinding import Rebind, forget_sleep
from coatcheck.durable.saving import Saver
from coatcheck.durable.sleeping import Sleeper
from coatcheck.durable.snapshots.store import LIMIT
from coatcheck.durable.spec import DurableSpec, IdleAction
from coatcheck.durable.unbound import Unbound
from coatcheck.launcher.boot import Boot
from coatcheck.launcher.channel import Channel
from coatcheck.launcher.supervisor import Extension, Supervisor
from coatcheck.metadata.service import MetadataService
from coatcheck.sandbox.machine import Machine
from coatcheck.sandbox.sandbox import Ending, SandboxState

_SLEEPS_ON: Final = frozenset({None, Ending.DAEMON_GONE, Ending.SESSION_OVER})
"""Ends of its supervisor, or of its authority, and not of a sandbox that sleeps: another one wakes it."""


class DurableSupervisor:
    """Of one sandbox, which `sandbox` runs. Belongs to its event loop."""

    def __init__(
        self,
        spec: DurableSpec,
        machine: Machine,
        client: ControlClient,
        metadata: MetadataService,
        starting: "asyncio.Task[socket.socket] | None" = None,
        elasticity: Elasticity | None = None,
        booted: Unbound | None = None,
    ) -> None:
        """`starting`: the machine's start, where it has begun already. `elasticity`: its size; None: one.
        `booted`: the machine as it was before it was anybody's."""
        self.spec = spec
        self.elasticity = elasticity or Elasticity(spec.sandbox.id, spec.sandbox.limits)
        rebinds = spec.saving.restore is not None or booted is not None
        beginning = (
            Rebind(spec, machine, starting, booted) if rebinds else Boot(spec.sandbox, machine, starting)
        )
        self.sandbox = Supervisor(spec.sandbox, machine, client, metadata, beginning)
        self._machine = machine if isinstance(machine, DurableMicroVM) else None
        self._saver = Saver(spec, self._machine, lambda: self.sandbox.state, self.sandbox.end)
        self._sleeper = Sleeper(spec, self._saver, self.sandbox, client)
        self.sandbox.extension = Extension(
            wake=self._sleeper.wake, idle=self._idle, paused=self._paused, last=self._last, work=self._work
        )

    async def run(self) -> tuple[Ending | None, str]:
        """As `Supervisor.run`. None: it sleeps on, and what was saved of it is left."""
        # First of all that is done to it: nothing that is being saved is swept.
        self.sandbox.operations.start(lambda: asyncio.to_thread(self._saver.sweep))
        ending, detail = await self.sandbox.run()
        if self.sandbox.lived and ending is not None:  # else all there is of it is what it was to wake from
            await forget_sleep(self.spec.store)
        return ending, detail

    async def snapshot(self, name: str, replaces: str | None = None, limit: int = LIMIT) -> Path:
        """Where it was saved, once that is there. SandboxRefused: it goes on as it was, here and below."""
        channel = await self.sandbox.ready_channel()
        return await self.sandbox.operations.take(
            lambda: self._saver.snapshot(channel, name, replaces, limit)
        )

    async def fork_point(self) -> Path:
        """The same, for its forks to begin from; the caller removes it, and else we do."""
        channel = await self.sandbox.ready_channel()
        made: list[Path] = []

        async def make() -> Path:
            made.append(await self._saver.fork_point(channel))
            return made[0]

        try:
            return await self.sandbox.operations.take(make)
        except asyncio.CancelledError:
            # Behind it: its daemon is gone, or gave up.
            self.sandbox.operations.start(lambda: self._saver.drop(made))
            raise

    async def sleep(self, *, leaves: bool = False) -> int:
        """Saved, and its machine gone. How many connections are held for it; with none, or if it `leaves`, we
        go, too."""
        return await self._sleeper.sleep(await self.sandbox.ready_channel(), leaves=leaves)

    async def wake(self) -> None:
        """As it was. SandboxRefused: it sleeps on."""
        await self.sandbox.ready_channel()
        await self._sleeper.wake()

    def _idle(self, channel: Channel) -> bool:
        if self.spec.idle_action is IdleAction.END:
            return False
        if channel.silent_seconds() < (self.spec.sandbox.idle_seconds or 0):
            self.sandbox.connections.begin()  # nobody is connected, and what runs in it calls out: it works
        else:
            self._sleeper.doze(channel)
        return True

    def _paused(self) -> None:
        if self._machine is not None:
            self.sandbox.operations.aside(self._machine.page_out())

    def _last(self, ending: Ending | None) -> tuple[SandboxState, Ending | None]:
        self._sleeper.close()
        if ending in _SLEEPS_ON and self.sandbox.state is SandboxState.SLEEPING:
            return SandboxState.SLEEPING, None
        return SandboxState.ENDING, ending

    async def _work(self) -> None:
        await self.elasticity.run(self.sandbox.channel, lambda: self.sandbox.state is SandboxState.RUNNING)
