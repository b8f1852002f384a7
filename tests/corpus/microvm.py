"""The mode `microvm`: the same steps from inside a real guest, which all cases of a daemon share.

A connection is bash's /dev/tcp inside, with cat(1) in both directions: to the proxy's port on the guest's
loopback, or (`redirected`) to a name or address as a program dials it that knows of no proxy.
"""

import asyncio
import socket
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Process, Sandbox, SandboxClient
from tests.corpus.driver import DIALS, Driver
from tests.corpus.proxies import Coatcheck, Inside

PROXY: Final = ("127.0.0.1", 3128)
"""As the guest's environment names it."""
RELAY: Final = 'exec 3<>"/dev/tcp/$0/$1" && { cat <&3 & cat >&3; wait; }'
_guests: WeakKeyDictionary[Coatcheck, "Guest"] = WeakKeyDictionary()


class Guest:
    """One sandbox, for as long as its daemon runs."""

    def __init__(self, sandbox: Sandbox, inside: Inside) -> None:
        self.inside = inside
        self._sandbox = sandbox
        self._carrying: set[asyncio.Task[None]] = set()

    async def dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that a program inside makes."""
        process = await self._sandbox.start(["bash", "-c", RELAY, host, str(port)])
        ours, theirs = socket.socketpair()
        task = asyncio.create_task(_carry(process, theirs))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return await asyncio.open_connection(sock=ours, limit=1 << 20)


async def _carry(process: Process, theirs: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=theirs)

    async def inwards() -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await process.write(data)
            await process.end_input()

    sending = asyncio.create_task(inwards())
    try:
        async with process:
            with suppress(ControlError, ConnectionError):
                async for output in process:
                    if not output.stderr:
                        writer.write(output.data)
                        await writer.drain()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def guest_of(proxy: Any) -> Guest:
    """The guest beside that daemon, started if there is none yet."""
    assert isinstance(proxy, Coatcheck)
    if proxy not in _guests:
        client = SandboxClient(proxy.daemon.settings.control)
        wanted: dict[str, Any] = {
            "tenant": "acme",
            "subject": "corpus",
            "policy": "vendor",
            "backend": "microvm",
        }
        sandbox = await client.create(**wanted)
        session = str(next(iter(sandbox.shown["sessions"].values())))
        handles = {}
        for name, variable in (("vendor", "VENDOR_API_KEY"), ("second", "SECOND_API_KEY")):
            handles[name] = (await sandbox.run(["printenv", variable])).stdout.decode().strip()
        outside = await proxy.open("vendor", {})
        inside = Inside(
            session, PROXY, outside.ca, handles, {}, outside.foreign, outside.signing, outside.now
        )
        _guests[proxy] = Guest(sandbox, inside)
    return _guests[proxy]


async def _dial(driver: Driver, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await (await guest_of(driver.proxy)).dial(host, port)


DIALS["microvm"] = _dial
