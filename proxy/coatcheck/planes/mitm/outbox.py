"""What one event led to, written at once: one system call a connection, not one a piece."""

from collections.abc import Mapping

from mitmproxy.connection import Connection
from mitmproxy.proxy import commands
from mitmproxy.proxy.server import ConnectionIO

from coatcheck.planes.sockets import reset
from coatcheck.request.call import Call


class Outbox:
    """Bytes on their way to the sockets of one client connection and of its upstream connections."""

    def __init__(self, client: Connection, transports: Mapping[Connection, ConnectionIO]) -> None:
        self._client = client
        self._transports = transports
        self._pieces: list[commands.SendData] = []
        self._leaving: dict[Connection, list[Call]] = {}

    def put(self, piece: commands.SendData) -> None:
        self._pieces.append(piece)

    def depart(self, call: Call, upstream: Connection) -> None:
        """The request's head is sent to `upstream` next; once it is written, `call.left` is set."""
        self._leaving.setdefault(upstream, []).append(call)

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    def flush(self) -> None:
        """Write everything to the sockets."""
        outgoing, self._pieces = self._pieces, []
        pieces: dict[Connection, list[bytes]] = {}
        for piece in outgoing:
            pieces.setdefault(piece.connection, []).append(piece.data)
        for connection, data in pieces.items():
            io = self._transports.get(connection)
            if io is not None and io.writer is not None and not io.writer.is_closing():
                for call in self._leaving.pop(connection, ()):
                    call.left = True
                io.writer.write(data[0] if len(data) == 1 else b"".join(data))

    def drop_upstream(self) -> None:
        """Something failed: what the client was owed goes out, what would have gone upstream does not."""
        self._pieces = [piece for piece in self._pieces if piece.connection is self._client]

    def take_back(self, upstream: Connection) -> None:
        """Send nothing of what is on its way to `upstream`, which therefore cannot be used any more."""
        self._pieces = [piece for piece in self._pieces if piece.connection is not upstream]
        self._leaving.pop(upstream, None)
        io = self._transports.get(upstream)
        if io is not None and io.writer is not None:
            reset(io.writer)
