"""In the supervisor: carries the only egress of a sandbox: streams of its guest, each to a socket of its
own session.

Which session is decided here, from the identity that the guest's kernel told and that we ourselves named; an
address or a name that the guest sent is carried as evidence and never dialled.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from coatcheck.launcher.channel import ChannelBroken, Chunk, Stream, StreamReset
from coatcheck.launcher.spec import Identity
from coatcheck.sandbox.limits import TokenBucket

CHUNK: Final = 128 * 1024
"""Bytes read from a session's socket at once."""
CONNECT_SECONDS: Final = 10.0
"""For a connection to the daemon's own socket: only a daemon that hangs takes longer."""

_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_PROXY_V2: Final = 0x21
"""Version 2, command PROXY (PROXY protocol, 2.2)."""

_log = logging.getLogger(__name__)

type Metadata = Callable[[socket.socket, Identity], Awaitable[None]]
"""Takes one end of a connection."""


class Egress:
    """Belongs to one channel. `metadata` answers the metadata service's connections; `rate` is in bytes a
    second, of all connections and both directions together."""

    def __init__(
        self, identities: tuple[Identity, ...], metadata: Metadata, rate: int, *, closed: bool = False
    ) -> None:
        """`closed`: a copy's, which nothing leaves before it is somebody of its own; until `open`."""
        self._closed = closed
        self._identities: Mapping[str, Identity] = {each.name: each for each in identities}
        self._metadata = metadata
        self._bucket = TokenBucket(rate)

    def open(self) -> None:
        """Its rebind was acknowledged."""
        self._closed = False

    async def accept(self, stream: Stream) -> None:
        """One stream that the guest opened, until it is over."""
        if self._closed:
            stream.reset("frozen", "a copy has no network access before it has its own identity")
            return
        who = self._identities.get(stream.get("identity"))
        if who is None:
            # Never a default: an identity that was not named must not get another's authority.
            stream.reset("unknown_identity")
            return
        match stream.kind:
            case "proxy":
                await self._lead(stream, who.socket)
            case "transparent":
                try:
                    head = proxy_header(stream.get("destination"), stream.get("port"))
                except ValueError:
                    stream.reset("bad_request", "the destination is not an address and port")
                    return
                await self._lead(stream, Path(f"{who.socket}.t"), head)
            case "dns":
                await self._lead(stream, Path(f"{who.socket}.d"))
            case "metadata":
                ours, theirs = socket.socketpair()
                await self._metadata(theirs, who)
                await splice(stream, *await asyncio.open_connection(sock=ours, limit=CHUNK))
            case _:
                stream.reset("bad_request", "no such egress")

    async def _lead(self, stream: Stream, path: Path, head: bytes = b"") -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(path, limit=CHUNK)
        except (OSError, TimeoutError):
            # The session is over, or the daemon is restarting: a program sees a refused connection.
            stream.reset("refused", "the proxy is not reachable")
            return
        if head:
            writer.write(head)
        await splice(stream, reader, writer, self._bucket)


def proxy_header(destination: str, port: str) -> bytes:
    """A PROXY protocol v2 header: where a connection was going. ValueError for what is no address."""
    address = ipaddress.ip_address(destination)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("not a port")
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise ValueError("a scope is not part of a destination")
    family = 0x11 if address.version == 4 else 0x21  # TCP over IPv4, IPv6
    nobody = bytes(len(address.packed))  # the source is in the guest, and says nothing
    body = nobody + address.packed + struct.pack(">HH", 0, int(port))
    return _SIGNATURE + struct.pack(">BBH", _PROXY_V2, family, len(body)) + body


async def splice(
    stream: Stream,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    bucket: TokenBucket | None = None,
) -> None:
    """Carry bytes both ways, no faster than `bucket`, until both have ended or one failed. Closes `writer`,
    and drops `stream` if it failed."""

    async def hold_back(count: int) -> None:
        if bucket is not None and (delay := bucket.delay(count, time.monotonic())):
            await asyncio.sleep(delay)

    async def outwards() -> None:
        while (item := await stream.read()) is not None:
            if isinstance(item, Chunk):
                writer.write(item.data)
                await writer.drain()
                await hold_back(len(item.data))
        if writer.can_write_eof():
            writer.write_eof()

    async def inwards() -> None:
        while data := await reader.read(CHUNK):
            await stream.write(data)
            await hold_back(len(data))
        await stream.end()

    whole = False
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(outwards())
            tasks.create_task(inwards())
        whole = True
    except* (OSError, StreamReset, ChannelBroken):
        stream.reset("closed")
    finally:
        if not whole:
            # Whichever side broke it off, the other side must not take it for a clean end of a message. Nor
            # may what it does not read hold us here: the guest's channel ends when all of its connections
            # have.
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
