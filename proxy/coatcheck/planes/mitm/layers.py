"""mitmproxy's HTTP layer, made to use our streams and our bounded parsers."""

import logging
from typing import cast, override

from mitmproxy.connection import ConnectionState, Server
from mitmproxy.proxy import commands, events, layer, tunnel
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import http as mitm_http
from mitmproxy.proxy.layers.http import HTTPMode

from coatcheck.decision.denial import Reason
from coatcheck.planes.mitm.http1 import BoundedHttp1Client, BoundedHttp1Server, Release
from coatcheck.planes.mitm.http2 import BoundedHttp2Client, BoundedHttp2Server, Credit
from coatcheck.planes.mitm.link import Link
from coatcheck.planes.mitm.stream import EgressStream
from coatcheck.planes.mitm.time_slice import Resume
from coatcheck.planes.mitm.tls_layers import EgressClientTls, EgressServerTls
from coatcheck.planes.mitm.tunnel import OpaqueTunnel

logger = logging.getLogger(__name__)

type Generator = layer.CommandGenerator[None]
MAX_KEPT = 8
"""Upstream connections of one client connection that wait for a next request; one is what most need."""


class EgressHttpClient(layer.Layer):
    """Opens one upstream connection and speaks what TLS negotiated on it."""

    def __init__(self, context: Context, link: Link) -> None:
        super().__init__(context)
        self._link = link

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        err = yield commands.OpenConnection(self.context.server)
        if not err:
            if self.context.server.alpn == b"h2":
                child: BoundedHttp2Client | BoundedHttp1Client = BoundedHttp2Client(self.context, self._link)
            else:
                child = BoundedHttp1Client(self.context, self._link)
            self._link.parsers.add(self.context.server, child)
            self._handle_event = child.handle_event  # type: ignore[method-assign]
            yield from child.handle_event(event)
        yield mitm_http.RegisterHttpConnection(self.context.server, err)


class EgressHttpLayer(mitm_http.HttpLayer):
    """One client connection's requests. Upstream connections are always lazy and always ours to dial."""

    def __init__(self, context: Context, mode: HTTPMode, link: Link) -> None:
        super().__init__(context, mode)
        self._link = link

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        if isinstance(event, events.Start):
            client = self.context.client
            if client.alpn == b"h2":
                parser: BoundedHttp2Server | BoundedHttp1Server = BoundedHttp2Server(
                    self.context.fork(), self._link
                )
            else:
                parser = BoundedHttp1Server(self.context.fork(), self._link)
            self.connections[client] = parser
            self._link.parsers.add(client, parser)
            yield from self.event_to_child(parser, event)
            return
        if isinstance(event, events.ConnectionEvent) and event.connection not in self.connections:
            return  # closed and forgotten
        if isinstance(event, Resume):
            yield from self._resume(event)
        else:
            yield from super()._handle_event(event)
        for holding in tuple(self._link.parsers.holding):
            if holding.conn in self.connections:
                yield from self.event_to_child(self.connections[holding.conn], Release())
        for indebted in tuple(self._link.parsers.indebted):
            if indebted.conn in self.connections:  # through its TLS layer, where it has one
                yield from self.event_to_child(self.connections[indebted.conn], Credit())

    def _resume(self, event: Resume) -> Generator:
        for stream in tuple(self.streams.values()):
            if stream.child_layer in event.unfinished:
                yield from self.event_to_child(stream, event)
        for connection, child in tuple(self.connections.items()):
            if self._link.parsers.by_connection.get(connection) in event.unfinished:
                yield from self.event_to_child(child, event)  # through its TLS layer, where it has one

    @override
    def make_stream(self, stream_id: int) -> Generator:
        stream = EgressStream(self.context.fork(), stream_id, self._link, self.idle)
        self.streams[stream_id] = stream
        yield from self.event_to_child(stream, events.Start())

    def idle(self, address: tuple[str, int], secure: bool) -> Server | None:
        """A kept upstream connection that a request may use at once; forgets closed ones by the way."""
        h2_client = self.context.client.alpn == b"h2"
        for each in tuple(self.connections):
            if each is self.context.client:
                continue
            connection = cast(Server, each)  # an isinstance() of mitmproxy's abstract classes is slow
            if (
                connection.state is ConnectionState.CLOSED
                and connection not in self.waiting_for_establishment
            ):
                del self.connections[connection]
            elif (
                connection.address == address
                and connection.tls is secure
                and connection.connected
                and connection not in self.waiting_for_establishment
                # one HTTP/1 connection cannot carry two streams at once
                and (connection.alpn == b"h2" or not h2_client)
            ):
                return connection
        return None

    @override
    def get_connection(self, event: mitm_http.GetHttpConnection, *, reuse: bool = True) -> Generator:
        """Open one, or wait for one that is being opened (kept ones: `idle`). Unlike the stock method it
        takes the name to verify from the destination that policy allowed, never from the client's SNI."""
        if reuse:
            for connection in self.waiting_for_establishment:
                if event.connection_spec_matches(connection):
                    self.waiting_for_establishment[connection].append(event)
                    return
        yield from self._close_spare()
        context = self.context.fork()
        context.server = Server(address=event.address)
        stack = tunnel.LayerStack()
        if event.tls:
            context.server.sni = event.address[0]
            stack /= EgressServerTls(context)
        stack /= EgressHttpClient(context, self._link)
        self.connections[context.server] = stack[0]
        self.waiting_for_establishment[context.server].append(event)
        self._link.backpressure.waiting_for_upstream(+1)
        yield from self.event_to_child(stack[0], events.Start())

    def _close_spare(self) -> Generator:
        """Room for one more: each is a descriptor of ours, and a host with a wildcard, or many hosts, would
        give a sandbox as many as it likes on one connection of its own."""
        kept = [each for each in self.connections if each is not self.context.client]
        if len(kept) < MAX_KEPT:
            return
        used = {stream.context.server for stream in self.streams.values()}
        for each in kept:
            if each not in used and each not in self.waiting_for_establishment:
                del self.connections[each]
                yield commands.CloseConnection(each)

    @override
    def register_connection(self, command: mitm_http.RegisterHttpConnection) -> Generator:
        self._link.backpressure.waiting_for_upstream(-1)
        self._link.upstreams.opened(cast(Server, command.connection), usable=not command.err)
        yield from super().register_connection(command)


def next_layer(context: Context, data: bytes, link: Link) -> layer.Layer | Reason | None:
    """The only layers there are: HTTP, and TLS with HTTP in it. Returns a Reason when none fits, and None
    when more bytes are needed. Nothing ever becomes a raw TCP, UDP or DNS layer, as mitmproxy makes of
    CONNECT x:53."""
    if not data:
        return None
    admission = link.admission
    if admission.opaque is not None:
        return OpaqueTunnel(context, link, admission.opaque)
    if data[0] == 0x16:
        if len(data) < 3:
            return None
        if data[1] != 0x03 or admission.route.tunnel is None or context.client.tls:
            return Reason.PROTOCOL_REFUSED
        return EgressClientTls(context)
    if context.client.tls and context.client.alpn == b"h2":
        return EgressHttpLayer(context, HTTPMode.transparent, link)
    if not (0x41 <= data[0] <= 0x5A or 0x61 <= data[0] <= 0x7A or data[0] in b"\r\n"):
        return Reason.PROTOCOL_REFUSED
    mode = HTTPMode.regular if admission.route.tunnel is None else HTTPMode.transparent
    return EgressHttpLayer(context, mode, link)
