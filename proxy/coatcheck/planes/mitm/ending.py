"""How a client connection ends that may not finish: reset on every side, never closed cleanly."""

import asyncio
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from mitmproxy.connection import Connection
from mitmproxy.proxy.server import ConnectionIO

from coatcheck.decision.denial import Reason
from coatcheck.planes.mitm.time_slice import TimeSlice
from coatcheck.planes.sockets import reset
from coatcheck.request.call import Call

logger = logging.getLogger(__name__)


class Ending:
    """The end of one client connection and of all that depends on it. Made in the task that serves it."""

    def __init__(
        self,
        client: Connection,
        transports: Mapping[Connection, ConnectionIO],
        calls: AbstractSet[Call],
        time_slice: TimeSlice,
    ) -> None:
        self._client = client
        self._transports = transports
        self._calls = calls
        self._time_slice = time_slice
        self._serving = asyncio.current_task()
        self.over = False
        self.told = False
        """The client was told why the connection failed; it may read that before the connection ends."""

    def abort(self, reason: Reason) -> None:
        """End everything at once without a clean end of message: reset, not close (I3, I5)."""
        self._time_slice.take_unfinished()
        self.over = True
        for call in tuple(self._calls):
            call.complete(reason)
        for connection, io in tuple(self._transports.items()):
            if io.writer is not None and not (self.told and connection is self._client):
                reset(io.writer)
            # A handler would wait for a layer to close what is closed; until the client's handler reads, the
            # task that serves the connection stands in for it.
            handler = io.handler or (self._serving if connection is self._client else None)
            if handler is not None:
                handler.cancel("aborted")

    def cut(self) -> None:
        """`abort`, whatever fails on its way: the sockets are reset in any case (I3)."""
        try:
            self.abort(Reason.INTERNAL_ERROR)
        except Exception:
            logger.exception("a connection could not be aborted in order")
            self.over = True
            for io in tuple(self._transports.values()):
                if io.writer is not None:
                    reset(io.writer)

    def tell(self, response: bytes) -> None:
        """Write the last response that the client gets."""
        writer = self._transports[self._client].writer
        if response and writer is not None:
            writer.write(response)
            self.told = True

    def reset_client(self) -> None:
        """End the client's side alone: a FIN would be a clean end of an answer without a length."""
        io = self._transports.get(self._client)
        if io is not None and io.writer is not None:
            reset(io.writer)
            if io.handler is not None:
                io.handler.cancel("reset")
