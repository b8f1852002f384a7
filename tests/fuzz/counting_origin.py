"""An upstream that reads by the grammar alone and writes down each request it was sent."""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.fuzz.strict_http1 import Reading, Refused, Unfinished, read
from tests.upstreams import UpstreamTls

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class CountingOrigin:
    """Every host of the policy. `answer` says what it sends; after anything but OK it closes."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: Counter[tuple[str, str]] = Counter()
        """(host, method) -> complete requests."""
        self.unreadable: list[bytes] = []
        """What no strict server would take for a request."""
        self.readings: list[Reading] = []
        self.answer: Callable[[Reading], bytes] = lambda _: OK
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        wire = b""
        try:
            while data := await reader.read(65_536):
                wire += data
                while wire:
                    try:
                        request, end = read(wire)
                    except Unfinished:
                        break
                    except Refused:
                        self.unreadable.append(wire)
                        return
                    wire = wire[end:]
                    if not await self._answered(request, writer):
                        return
        except (OSError, ssl.SSLError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answered(self, request: Reading, writer: asyncio.StreamWriter) -> bool:
        (host,) = request.get(b"host")
        self.seen[host.decode("latin-1").partition(":")[0], request.method.decode("latin-1")] += 1
        self.readings.append(request)
        answer = self.answer(request)
        writer.write(answer)
        await writer.drain()
        return answer == OK

    def forget(self) -> None:
        """What was seen so far, and the connections that are open."""
        self.seen.clear()
        self.readings.clear()
        for writer in tuple(self._writers):
            writer.transport.abort()


@asynccontextmanager
async def counting_origin(upstream_tls: UpstreamTls | None) -> AsyncIterator[CountingOrigin]:
    """Behind TLS, or without for None; HTTP/1.1 only, so that HTTP/2 requests are translated."""
    tls = None
    if upstream_tls is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(upstream_tls.certificate, upstream_tls.key)
        tls.set_alpn_protocols(["http/1.1"])
    origin = CountingOrigin()
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0, ssl=tls)
    origin.port = server.sockets[0].getsockname()[1]
    try:
        yield origin
    finally:
        server.close()
        origin.forget()
