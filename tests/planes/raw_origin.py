"""An upstream under the attacker's control: TLS, then bytes exactly as a test wants them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.upstreams import UpstreamTls

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Visit:
    """One connection to the origin, and one request at a time on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: bytearray = field(default_factory=bytearray)
    """Every byte that came out of TLS."""

    async def head(self) -> bytes:
        """The next request's head; empty when the connection ends instead."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError) as error:
            self.received += getattr(error, "partial", b"")
            return b""
        self.received += head
        return head

    async def read(self, count: int = 65_536) -> bytes:
        data = await self.reader.read(count)
        self.received += data
        return data

    async def until_closed(self) -> None:
        """Reads until the proxy ends the connection."""
        try:
            while await self.read():
                pass
        except (ConnectionError, ssl.SSLError):
            pass

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()


type Behaviour = Callable[[Visit, bytes], Awaitable[None]]


def answering(data: bytes, *, close: bool = False) -> Behaviour:
    """Sends `data` to each request, whatever it asks."""

    async def behave(visit: Visit, _: bytes) -> None:
        await visit.send(data)
        if close:
            visit.writer.close()

    return behave


class RawOrigin:
    """`accepted` counts TCP connections, `visits` the ones whose handshake was completed."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.behave: Behaviour = answering(OK)
        self.visits: list[Visit] = []
        self.names: list[str] = []
        """The server names of the hellos."""
        self.port = 0
        self.tls = tls
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._front: asyncio.Server | None = None
        self.accepted = 0

    @property
    def heads(self) -> list[bytes]:
        """What arrived on each connection."""
        return [bytes(visit.received) for visit in self.visits]

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return len(self.tasks)

    @property
    def saw_nothing(self) -> bool:
        """No connection was even tried."""
        return self.accepted == 0

    async def start(self) -> None:
        if self.tls is not None:
            self.tls.sni_callback = lambda _conn, name, _context: self.names.append(name or "")
        loop = asyncio.get_running_loop()

        def connected() -> asyncio.StreamReaderProtocol:
            self.accepted += 1
            reader = asyncio.StreamReader(limit=1 << 20, loop=loop)
            return asyncio.StreamReaderProtocol(reader, self._serve, loop=loop)

        self._server = await loop.create_server(connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            if self.tls is not None:
                await writer.start_tls(self.tls, ssl_handshake_timeout=5)
            visit = Visit(reader, writer)
            self.visits.append(visit)
            while head := await visit.head():
                await self.behave(visit, head)
                if writer.is_closing():
                    break
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(task)
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@asynccontextmanager
async def running_origin(
    upstream_tls: UpstreamTls | None, *, alpn: tuple[str, ...] = ("http/1.1",)
) -> AsyncIterator[RawOrigin]:
    """An origin with a certificate for all of `tests.upstreams.NAMES`; None: without TLS."""
    tls = None
    if upstream_tls is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(upstream_tls.certificate, upstream_tls.key)
        tls.set_alpn_protocols(list(alpn))
    origin = RawOrigin(tls)
    await origin.start()
    try:
        yield origin
    finally:
        await origin.stop()
