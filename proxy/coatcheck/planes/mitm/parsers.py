"""The HTTP parsers of one client connection and of the upstream connections made for it."""

from mitmproxy.connection import Connection
from mitmproxy.proxy.layers.http._http1 import Http1Connection
from mitmproxy.proxy.layers.http._http2 import Http2Connection


class Parsers:
    """Which parser reads and writes which connection, and which of them have something left to send."""

    def __init__(self) -> None:
        self.by_connection: dict[Connection, Http1Connection | Http2Connection] = {}
        self.holding: set[Http1Connection] = set()
        """Those that hold a head back until the first of its body."""
        self.indebted: set[Http2Connection] = set()
        """Those that owe their peer credit for what it sent."""
        self.http2 = False
        """A side speaks HTTP/2, so that what one side sends may wait for the other in our memory."""

    def add(self, connection: Connection, parser: Http1Connection | Http2Connection) -> None:
        self.by_connection[connection] = parser
        if isinstance(parser, Http2Connection):
            self.http2 = True

    def remove(self, connection: Connection) -> None:
        parser = self.by_connection.pop(connection, None)
        if isinstance(parser, Http2Connection):
            self.indebted.discard(parser)
