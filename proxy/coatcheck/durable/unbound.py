"""In the supervisor: holds a machine that has booted and belongs to nobody: no session, no handle, no
egress. It is frozen.

It waits for one line of its daemon, on the socket that is our standard input: the spec of the sandbox that
claims it. An end of file there means that the daemon has ended, or that nobody will claim it; it is then
removed. Only the daemon has the other end, and nothing else is open until the machine is claimed.
"""

import asyncio
import logging
import shutil
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from coatcheck.durable.freeze import freeze
from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.spec import CLAIMED, READY, DurableSpec, loads
from coatcheck.launcher.agent import AgentError
from coatcheck.launcher.channel import Channel, ChannelBroken, Stream, StreamReset
from coatcheck.launcher.preparing import hello, prepare
from coatcheck.launcher.trust import digest, for_browsers
from coatcheck.sandbox.machine import Machine, MachineError

PREPARE_SECONDS: Final = 30.0

logger = logging.getLogger(__name__)


class Unbound:
    """`wait` for its owner, then `take` what was waited with. Belongs to one event loop."""

    def __init__(
        self,
        spec: DurableSpec,
        machine: Machine,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """`reader`, `writer`: the daemon."""
        self.trusts = ""
        """`trust.digest` of what it was given to trust."""
        self._spec = spec.sandbox
        self._machine = machine
        self._reader, self.writer = reader, writer
        self._accept: Callable[[Stream], Awaitable[None]] = _refuse
        self._channel: Channel | None = None
        self._talking: asyncio.Task[None] | None = None

    async def wait(self, starting: "asyncio.Task[socket.socket]") -> DurableSpec | None:
        """Whose it is; None: nobody's, and nothing is left of it. `starting`: its machine's start."""
        said = asyncio.create_task(self._reader.readline())
        parking = asyncio.create_task(self._park(starting))
        claimed: DurableSpec | None = None
        try:
            await asyncio.wait({said, parking}, return_when=asyncio.FIRST_COMPLETED)
            if not said.done():
                talking = await parking
                self.writer.write(READY)
                await asyncio.wait({said, talking}, return_when=asyncio.FIRST_COMPLETED)
                # A line that was cut off is no word: the daemon died while it said it.
                if said.done() and (line := said.result()).endswith(b"\n") and not talking.done():
                    claimed = loads(line)
        except _FAILURES as error:
            logger.warning("a sandbox of the warm pool did not come up: %s", error)
        finally:
            if claimed is None:
                await self._end(starting, said, parking)
        if claimed is not None and isinstance(self._machine, DurableMicroVM):
            self._machine.bind(claimed.sandbox.machine, claimed.saving)
        return claimed

    def take(self, accept: Callable[[Stream], Awaitable[None]]) -> "tuple[Channel, asyncio.Task[None]]":
        """Its channel and the task that serves it; from now on `accept` decides what its streams reach.
        MachineError when it was lost."""
        if self._channel is None or self._talking is None or self._talking.done():
            raise MachineError("the claimed machine has ended")
        self._accept = accept
        self._channel.go_on()  # it still stands still; what it is given to trust is no order
        return self._channel, self._talking

    def acknowledge(self) -> None:
        """It is somebody's, and its commands may run."""
        self.writer.write(CLAIMED)
        self.writer.close()

    async def _park(self, starting: "asyncio.Task[socket.socket]") -> "asyncio.Task[None]":
        spec = self._spec
        browsers = asyncio.create_task(for_browsers(spec.identities, ()))
        self.trusts = await asyncio.to_thread(digest, spec.identities)
        sock = await starting
        channel = self._channel = Channel(sock, lambda stream: self._accept(stream), hello(spec))
        talking = self._talking = asyncio.create_task(channel.run())
        await channel.ready(spec.machine.boot_seconds)
        async with asyncio.timeout(PREPARE_SECONDS):
            await prepare(channel, spec, await browsers)
            await freeze(channel)
        if isinstance(self._machine, DurableMicroVM):  # a kernel of its own would have something to do
            await self._machine.pause()
        return talking

    async def _end(self, *tasks: "asyncio.Task[Any]") -> None:
        everything = [*tasks, *([self._talking] if self._talking is not None else [])]
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)
        try:
            await self._machine.stop()
        except MachineError as error:
            logger.error("a sandbox of the warm pool did not stop: %s", error)
        await asyncio.to_thread(shutil.rmtree, self._spec.directory, ignore_errors=True)
        self.writer.close()


async def _refuse(stream: Stream) -> None:
    stream.reset("frozen", "it has no network access before it is claimed")


_FAILURES = (MachineError, ChannelBroken, StreamReset, AgentError, TimeoutError, OSError)
