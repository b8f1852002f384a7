"""In the supervisor: boots a machine until a sandbox can be used."""

import asyncio
import socket
from pathlib import PurePosixPath
from typing import Final, Protocol

from coatcheck.launcher.channel import Channel
from coatcheck.launcher.egress import Egress
from coatcheck.launcher.preparing import hello, prepare
from coatcheck.launcher.spec import SupervisorSpec
from coatcheck.launcher.trust import BrowserTrust, for_browsers
from coatcheck.sandbox.machine import Machine
from coatcheck.sandbox.sandbox import Ending

CONFIGURE_SECONDS: Final = 30.0


class Beginning(Protocol):
    """From a machine to a sandbox that can be used: `Boot`, and `durable.rebinding.Rebind`."""

    lost: Ending
    """Of a sandbox whose machine did not come up."""
    failed: Ending
    """Of one whose guest could not be prepared."""

    @property
    def closed(self) -> bool:
        """Whether nothing leaves it before it is prepared."""

    async def connect(self, egress: Egress) -> "tuple[Channel, asyncio.Task[None]]":
        """The guest's channel and the task that serves it. MachineError."""

    async def prepare(self, channel: Channel, egress: Egress) -> None:
        """It may run commands when this returns. StreamReset, ChannelBroken, TimeoutError, AgentError,
        MachineError: it is not to be used."""

    def why(self, error: Exception) -> str:
        """Why it could not be prepared, for a person."""

    def done(self) -> None:
        """It can be used."""


class Boot:
    """Of a machine that starts from nothing."""

    lost = failed = Ending.START_FAILED
    closed = False

    def __init__(
        self,
        spec: SupervisorSpec,
        machine: Machine,
        starting: "asyncio.Task[socket.socket] | None" = None,
    ) -> None:
        """`starting`: the machine's start, where it has begun already."""
        self._spec = spec
        self._machine = machine
        self._starting = starting
        self._browsers: asyncio.Task[BrowserTrust] | None = None

    async def connect(self, egress: Egress) -> "tuple[Channel, asyncio.Task[None]]":
        volumes = [PurePosixPath(each.at) for each in self._spec.machine.volumes]
        self._browsers = asyncio.create_task(for_browsers(self._spec.identities, volumes))  # while it boots
        try:
            sock = await (self._starting or self._machine.start())
        except BaseException:
            self._browsers.cancel()
            raise
        channel = Channel(sock, egress.accept, hello(self._spec))
        return channel, asyncio.create_task(channel.run())

    async def prepare(self, channel: Channel, egress: Egress) -> None:
        await channel.ready(self._spec.machine.boot_seconds)
        async with asyncio.timeout(CONFIGURE_SECONDS):
            await prepare(channel, self._spec, await self._browsers if self._browsers is not None else {})

    def why(self, error: Exception) -> str:
        return str(error) or "the sandbox's agent did not answer in time"

    def done(self) -> None:
        pass
