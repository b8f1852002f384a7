"""In the supervisor: gives a machine from an earlier life its own identity (I10): restored, forked, or
claimed from the warm pool."""

import asyncio
import shutil
import socket
from pathlib import Path, PurePosixPath
from typing import Final

from coatcheck.durable.freeze import rebind, thaw
from coatcheck.durable.snapshots import manifest
from coatcheck.durable.spec import DurableSpec
from coatcheck.durable.unbound import Unbound
from coatcheck.launcher.channel import Channel
from coatcheck.launcher.egress import Egress
from coatcheck.launcher.trust import BrowserTrust, digest, for_browsers, provide
from coatcheck.sandbox.machine import Machine, MachineError
from coatcheck.sandbox.sandbox import Ending

ASLEEP: Final = "asleep"
"""Below a sandbox's `store`: what it fell asleep as."""


class Rebind:
    """See `launcher.boot.Beginning`. Its commands stand still until all of it is done, and what it says
    meanwhile leads nowhere."""

    failed = Ending.REBIND_FAILED
    closed = True

    def __init__(
        self,
        spec: DurableSpec,
        machine: Machine,
        starting: "asyncio.Task[socket.socket] | None" = None,
        booted: Unbound | None = None,
    ) -> None:
        """`starting`: the machine's start, where it has begun already. `booted`: the machine as it was before
        it was anybody's."""
        self.lost = Ending.START_FAILED if booted is None else Ending.REBIND_FAILED
        self._spec = spec
        self._machine = machine
        self._starting = starting
        self._booted = booted
        self._trusting: asyncio.Task[BrowserTrust | None] | None = None

    async def connect(self, egress: Egress) -> "tuple[Channel, asyncio.Task[None]]":
        self._trusting = asyncio.create_task(self._trust())  # while the machine is loaded
        try:
            if self._booted is not None:
                return self._booted.take(egress.accept)
            sock = await (self._starting or self._machine.start())
        except BaseException:
            self._trusting.cancel()
            raise
        channel = Channel(sock, egress.accept, None)
        return channel, asyncio.create_task(channel.run())

    async def prepare(self, channel: Channel, egress: Egress) -> None:
        trust = await self._trusting if self._trusting is not None else None
        identities, seconds = self._spec.sandbox.identities, self._spec.rebind_seconds
        async with asyncio.timeout(seconds):
            await self._machine.resume()
            await channel.ready(seconds)
            await rebind(channel, self._spec.sandbox)
            if trust is not None:
                await provide(channel, identities, trust)
            egress.open()
            await thaw(channel)
        await forget_sleep(self._spec.store)

    def why(self, error: Exception) -> str:
        why = str(error) or f"it took longer than {self._spec.rebind_seconds:g} s"
        return f"it could not be given its own identity, and was ended: {why}"

    def done(self) -> None:
        if self._booted is not None:
            self._booted.acknowledge()

    async def _trust(self) -> BrowserTrust | None:
        """What browsers are to trust. None: it was there before, and has all that there is to trust."""
        spec = self._spec.sandbox
        if self._booted is not None:
            known = self._booted.trusts == digest(spec.identities)
        else:
            known = not await asyncio.to_thread(self._is_trust_new)
        if known:
            return None
        return await for_browsers(spec.identities, [PurePosixPath(each.at) for each in spec.machine.volumes])

    def _is_trust_new(self) -> bool:
        """Whether a copy was saved with another CA than its sessions have now. Blocking."""
        restore, key = self._spec.saving.restore, self._spec.saving.snapshot_key
        if restore is None or key is None:
            return True
        try:
            saved = manifest.read(restore, manifest.open_key(key))
        except MachineError:
            return True  # loading it says why it cannot be used
        return saved.origin.trust != digest(self._spec.sandbox.identities)


async def forget_sleep(store: Path | None) -> None:
    """It has woken, or is over: what it fell asleep as is of the past."""
    if store is not None:
        await asyncio.to_thread(shutil.rmtree, store / ASLEEP, ignore_errors=True)
