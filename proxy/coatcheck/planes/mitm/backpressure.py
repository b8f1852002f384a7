"""Reading a connection's bytes only as fast as the other side takes them (I9).

mitmproxy reads on while a hook waits and while a receiver is slow, and queues what it reads without a bound.
Here reading stops while the other side has no room, and while a verdict is waited for. HTTP/2 peers are held
back by their windows instead (`http2`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from mitmproxy.connection import Connection
from mitmproxy.proxy.layers.http._base import HttpConnection
from mitmproxy.proxy.layers.http._http1 import Http1Connection
from mitmproxy.proxy.layers.http._http2 import Http2Client, Http2Connection

from coatcheck.planes.mitm.parsers import Parsers

ROOM = 262_144
"""Bytes that may wait in our memory for one receiver before its sender is paused; two HTTP/2 frames of
128 KiB, so that a single frame never stalls a stream."""
STALL_SECONDS = 60.0
"""How long a paused sender waits for room before the connection is given up."""


class Backpressure:
    """Says when a connection's next bytes may be read."""

    def __init__(self, client: Connection, parsers: Parsers) -> None:
        self._client = client
        self._parsers = parsers
        self._waiting = 0
        """Verdicts and upstream connections that are waited for."""
        self._deciding = 0
        """Of those the verdicts: from a store, or from a person. Each has a bound of its own."""
        self.unsettled = 0
        """Bytes that the client sent since."""
        self._progress = asyncio.Event()

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """While a verdict is waited for."""
        self._waiting += 1
        self._deciding += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._deciding -= 1

    def waiting_for_upstream(self, by: int) -> None:
        """+1 when a stream begins to wait for an upstream connection, -1 when it no longer does."""
        self._waiting += by

    def received(self, connection: Connection, size: int) -> None:
        """`size` bytes came from `connection`."""
        if connection is self._client:
            self.unsettled = self.unsettled + size if self._waiting else 0

    def note_progress(self) -> None:
        """An event was handled: there may be room again."""
        self._progress.set()

    @property
    def may_pause(self) -> bool:
        """Whether `wait_for_room` might have to wait at all."""
        return self._parsers.http2 or self._waiting > 0

    async def wait_for_room(self, connection: Connection, give_up: Callable[[], None]) -> None:
        """Wait until what `connection` sends next has room. `give_up` is called STALL_SECONDS after
        the verdict."""
        async with asyncio.timeout(STALL_SECONDS) as stall:
            try:
                while self._is_full(connection):
                    if self._deciding:
                        stall.reschedule(None)
                    elif stall.when() is None:
                        stall.reschedule(asyncio.get_running_loop().time() + STALL_SECONDS)
                    self._progress.clear()
                    await self._progress.wait()
            except asyncio.CancelledError:
                if stall.expired():
                    give_up()
                raise

    def _is_full(self, connection: Connection) -> bool:
        if connection is self._client and self._waiting and self.unsettled > ROOM:
            return True
        parser = self._parsers.by_connection.get(connection)
        # HTTP/2 peers are held back by their windows, HTTP/1 peers by not reading.
        if not isinstance(parser, Http1Connection) or parser.stream_id is None:
            return False
        return not self.has_room(connection, parser.stream_id)

    def has_room(self, connection: Connection, stream_id: int) -> bool:
        """Whether what `connection` sends on a stream, by the client's number, has somewhere to wait."""
        from_client = connection is self._client
        parsers = self._parsers.by_connection.items()
        across = (parser for peer, parser in parsers if (peer is self._client) is not from_client)
        return has_room(across, stream_id, ROOM)


def has_room(receivers: Iterable[HttpConnection], stream_id: int, room: int) -> bool:
    """Whether a stream's data, by the client's number, may wait for its receiver: when nothing of it waits
    yet, always; otherwise while all that waits for the `receivers` together is not above `room` bytes."""
    own = everything = 0
    for parser in receivers:
        if not isinstance(parser, Http2Connection):
            continue
        number = parser.our_stream_id.get(stream_id) if isinstance(parser, Http2Client) else stream_id
        for stream, chunks in parser.h2_conn.stream_buffers.items():
            waiting = sum(len(chunk.data) for chunk in chunks)
            everything += waiting
            own += waiting if stream == number else 0
    return not own or everything <= room
