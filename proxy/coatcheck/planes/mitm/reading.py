"""Reading a connection's bytes only as fast as the other side takes them (I9).

Reading stops while the other side has no room, and while a verdict is being waited for (notes/mitmproxy
0.10); HTTP/2 has windows instead (`http2`).
"""

import asyncio
import logging
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, override

from mitmproxy.connection import Connection, ConnectionState
from mitmproxy.proxy import events, server
from mitmproxy.proxy.layers.http._http1 import Http1Connection
from mitmproxy.proxy.layers.http._http2 import Http2Connection

from coatcheck.decision.denial import Deny, Reason
from coatcheck.planes.mitm.failing import FAILED
from coatcheck.planes.mitm.http2 import has_room

if TYPE_CHECKING:
    from coatcheck.request.call import Call

logger = logging.getLogger(__name__)

ROOM = 262_144
"""Bytes that may wait in our memory for one receiver before its sender is paused; two HTTP/2 frames of
128 KiB, so that a single frame never stalls a stream."""
STALL_SECONDS = 60.0
"""How long a paused sender waits for room before the connection is given up."""


class RoomyReading(server.ConnectionHandler):
    """The half of `connection.EgressConnection` that takes bytes in."""

    calls: "set[Call]"
    parsers: dict[Connection, Http1Connection | Http2Connection]
    http2: bool
    told: bool
    last_activity: float
    _over: bool
    _waiting: int
    _deciding: int
    """Verdicts that are waited for: for a store, or for somebody's word. Each has a bound of its own."""
    _unsettled: int
    _progress: asyncio.Event

    @abstractmethod
    def fail(self, denial: Deny) -> None:
        """End everything, because it failed."""

    @override
    async def handle_connection(self, connection: Connection) -> None:
        try:
            await self._read(connection)
        except Exception:
            logger.exception("a connection could not be read")
            self.fail(FAILED)

    async def _read(self, connection: Connection) -> None:
        reader = self.transports[connection].reader
        assert isinstance(reader, asyncio.StreamReader)
        cancelled: asyncio.CancelledError | None = None
        from_client = connection is self.client
        await asyncio.sleep(
            0
        )  # an eager task runs before its maker can register it, if data is there already
        while not self._over:
            try:
                if self.http2 or self._waiting:
                    await self._wait_for_room(connection, from_client)
                try:
                    data = await reader.read(65_535)
                except OSError:
                    connection.error = "reset"  # no clean end, whatever came before
                    break
            except asyncio.CancelledError as error:
                cancelled = error
                break
            if not data:
                break
            self.last_activity = time.monotonic()
            if from_client:
                self._unsettled = self._unsettled + len(data) if self._waiting else 0
            try:
                await self.server_event(events.DataReceived(connection, data))
                if self._is_behind():
                    await self.drain_writers()  # type: ignore[no-untyped-call]
            except asyncio.CancelledError as error:
                cancelled = error
                break
        if from_client:
            # Who has sent its last byte is not interested in more of ours (as mitmproxy has it, too).
            for call in tuple(self.calls):
                call.client_left()
        await self._finish_connection(connection, cancelled)

    def _is_behind(self) -> bool:
        """Whether the kernel has not taken everything yet: only then is there something to wait for."""
        return any(
            isinstance(io.writer, asyncio.StreamWriter) and io.writer.transport.get_write_buffer_size()
            for io in self.transports.values()
        )

    async def _finish_connection(
        self, connection: Connection, cancelled: asyncio.CancelledError | None
    ) -> None:
        if cancelled is None:
            connection.state &= ~ConnectionState.CAN_READ
        else:
            connection.state = ConnectionState.CLOSED
        await self.server_event(events.ConnectionClosed(connection))
        if connection.state is ConnectionState.CAN_WRITE:
            # The peer is done sending, and we may still send to it; a cancel ends that (as upstream does).
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                cancelled = error
        io = self.transports.pop(connection, None)
        if io is not None and io.writer is not None and not (self.told and connection is self.client):
            io.writer.close()
        if cancelled is not None:
            raise cancelled

    async def _wait_for_room(self, connection: Connection, from_client: bool) -> None:
        """Until what `connection` sends next has room. Gives up STALL_SECONDS after the verdict."""
        async with asyncio.timeout(STALL_SECONDS) as stall:
            try:
                while self._is_full(connection, from_client):
                    if self._deciding:
                        stall.reschedule(None)
                    elif stall.when() is None:
                        stall.reschedule(asyncio.get_running_loop().time() + STALL_SECONDS)
                    self._progress.clear()
                    await self._progress.wait()
            except asyncio.CancelledError:
                if stall.expired():
                    self.fail(Deny(Reason.UPSTREAM_TIMEOUT, "no room for what was sent"))
                raise

    def _is_full(self, connection: Connection, from_client: bool) -> bool:
        if from_client and self._waiting and self._unsettled > ROOM:
            return True
        parser = self.parsers.get(connection)
        # HTTP/2 peers are held back by their windows (planes/http2), HTTP/1 peers by not reading.
        if not isinstance(parser, Http1Connection) or parser.stream_id is None:
            return False
        return not self.has_room(connection, parser.stream_id)

    def has_room(self, connection: Connection, stream_id: int) -> bool:
        """Whether what `connection` sends on a stream, by the client's number, has somewhere to wait."""
        from_client = connection is self.client
        across = (p for peer, p in self.parsers.items() if (peer is self.client) is not from_client)
        return has_room(across, stream_id, ROOM)
