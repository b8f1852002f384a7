"""The resolver of sandboxes: names become synthetic addresses, and no question ever goes further (I6).

So DNS is no way out: nothing is forwarded, what is asked is only counted, and an answer is a function of the
question alone. What is malformed, oversized or too much gets no answer.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import override

from coatcheck.decision.ratelimit import Rate, Rates
from coatcheck.planes.dns.message import MAX_QUERY, Malformed, answer, read_query
from coatcheck.telemetry.metrics.metrics import DnsOutcome

logger = logging.getLogger(__name__)

RATE = Rate(count=100, period=1.0, burst=400)
"""Questions of one source: a package manager asks dozens at once, no client hundreds a second."""
SOURCES = 4096
"""Whose rate is remembered; beyond it the one that asked longest ago starts anew."""
MAX_STREAMS = 64
"""Connections of one source; a resolver uses one, our mux one a question."""
IDLE_SECONDS = 10.0
"""Between two questions on one connection (RFC 7766 6.2.3 has "a few seconds")."""
UNSENT_BYTES = 65_536
"""Answers that may wait for the network; more are dropped, as UDP may."""

type Count = Callable[[DnsOutcome, str], None]


class Resolver:
    """Answers questions, from wherever they come. Belongs to the plane's loop."""

    def __init__(self, count: Count) -> None:
        """`count` is called with each question's outcome and its type in letters ("" if unknown)."""
        self._count = count
        self.rates: Rates[str] = Rates(RATE, SOURCES)
        self._streams: dict[str, int] = {}

    def wait(self, source: str) -> float:
        """Seconds until `source` may ask its next question; 0.0 takes it."""
        return self.rates.wait(source, time.monotonic())

    def drop(self, outcome: DnsOutcome) -> None:
        """A question got no answer."""
        self._count(outcome, "")

    def answer(self, data: bytes) -> bytes | None:
        """The response to one query; None: it gets none."""
        if len(data) > MAX_QUERY:
            self.drop(DnsOutcome.OVERSIZED)
            return None
        try:
            query = read_query(data)
        except Malformed:
            self.drop(DnsOutcome.MALFORMED)
            return None
        except Exception:
            logger.exception("a DNS query was dropped")
            self.drop(DnsOutcome.MALFORMED)
            return None
        response, found = answer(query)
        outcome = DnsOutcome.ANSWERED if found else DnsOutcome.NO_DATA
        self._count(outcome, query.kind.name if query.kind is not None else "other")
        return response

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str) -> None:
        """Questions over a stream, each with its length before it (RFC 7766 8), until one is not served."""
        if self._streams.get(source, 0) >= MAX_STREAMS:
            self.drop(DnsOutcome.LIMITED)
            writer.transport.abort()
            return
        self._streams[source] = self._streams.get(source, 0) + 1
        try:
            while (response := await self._next(reader, source)) is not None:
                writer.write(len(response).to_bytes(2) + response)
                async with asyncio.timeout(IDLE_SECONDS):
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client is done, or gone, or slow
        finally:
            writer.close()
            self._streams[source] -= 1
            if not self._streams[source]:
                del self._streams[source]

    async def _next(self, reader: asyncio.StreamReader, source: str) -> bytes | None:
        async with asyncio.timeout(IDLE_SECONDS):
            size = int.from_bytes(await reader.readexactly(2))
            if size > MAX_QUERY:
                self.drop(DnsOutcome.OVERSIZED)
                return None
            data = await reader.readexactly(size)
        while (seconds := self.wait(source)) > 0:  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(seconds)
        return self.answer(data)


class Datagrams(asyncio.DatagramProtocol):
    """Questions over UDP. The transport is the loop's, which reads one datagram a turn."""

    _transport: asyncio.DatagramTransport

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    @override
    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    @override
    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        unsent = self._transport.get_write_buffer_size()  # type: ignore[attr-defined]
        if self._resolver.wait(addr[0]) > 0 or unsent > UNSENT_BYTES:
            self._resolver.drop(DnsOutcome.LIMITED)
            return
        response = self._resolver.answer(data)
        if response is not None:
            self._transport.sendto(response, addr)
