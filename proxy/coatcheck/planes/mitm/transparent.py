"""The first bytes of a redirected connection, whose client knows of no proxy, show where it is going.

A ClientHello has a server name, plain HTTP a Host. From there on the connection is a tunnel as after an
allowed CONNECT: the same policy, equalities, certificates and limits. A refusal is sent in the client's own
protocol: TLS is completed with a certificate for the requested name, and each request in it is refused.
"""

from typing import override

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.modes import HttpProxy
from mitmproxy.proxy.layers.tls import parse_client_hello

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.host import HostRefused
from coatcheck.planes.mitm.client_hello import is_whole, server_name
from coatcheck.planes.mitm.layers import EgressHttpLayer
from coatcheck.planes.mitm.link import Link
from coatcheck.planes.mitm.refusal import refusal_bytes
from coatcheck.planes.mitm.tls_layers import EgressClientTls
from coatcheck.planes.mitm.tunnel import OpaqueTunnel

type Generator = layer.CommandGenerator[None]

HANDSHAKE = 0x16
"""The first byte of a ClientHello's record (RFC 8446 5.1)."""
_ALERT = b"\x15\x03\x03\x00\x02\x02"
"""A fatal alert; its description follows (RFC 8446 6)."""
_DECODE_ERROR, _UNRECOGNIZED_NAME = b"\x32", b"\x70"


def first_layer(context: Context, link: Link) -> layer.Layer:
    """What reads a new connection: HTTP where the client knows of its proxy, else `Redirected`."""
    return HttpProxy(context) if link.admission.peer.original is None else Redirected(context, link)


class Redirected(layer.Layer):
    """Collects the first bytes and hands over to the layer that fits them."""

    def __init__(self, context: Context, link: Link) -> None:
        super().__init__(context)
        self._link = link
        self._first = bytearray()

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        if isinstance(event, events.DataReceived):
            self._first += event.data
            yield from self._read()
        elif isinstance(event, events.ConnectionClosed):
            yield commands.CloseConnection(self.context.client)

    def _read(self) -> Generator:
        first = self._first[0]
        if first == HANDSHAKE:
            yield from self._read_hello()
        elif 0x41 <= first <= 0x5A or 0x61 <= first <= 0x7A:
            # The Host comes with the head; `destination` takes it from there.
            yield from self._hand_over(EgressHttpLayer(self.context, HTTPMode.transparent, self._link))
        else:
            denial = Deny(Reason.PROTOCOL_REFUSED, "a redirected connection that is neither TLS nor HTTP")
            request_id = self._link.admission.refuse_connection(denial)
            yield from self._end(refusal_bytes(denial, request_id))

    def _read_hello(self) -> Generator:
        try:
            hello = parse_client_hello(bytes(self._first)) if is_whole(self._first) else None
            name = server_name(hello) if hello is not None else None
        except HostRefused as refused:
            yield from self._refuse_hello(Deny(Reason.HOST_FORM_REFUSED, str(refused)), _UNRECOGNIZED_NAME)
            return
        except ValueError:
            yield from self._refuse_hello(Deny(Reason.PROTOCOL_REFUSED, "malformed or endless ClientHello"))
            return
        if hello is not None:
            yield from self._enter(name)

    def _enter(self, name: str | None) -> Generator:
        admission = self._link.admission
        original = admission.peer.original
        assert original is not None
        if name is None:
            denial = Deny(Reason.AUTHORITY_MISMATCH, "no TLS server name, so the destination is unknown")
            admission.route.tunnel = (original.address, original.port)
            admission.refuse_connection(denial)
        else:
            admission.route.tunnel = (name, original.port)
            admission.open_tunnel(admission.route.tunnel)
        if admission.opaque is not None:
            yield from self._hand_over(OpaqueTunnel(self.context, self._link, admission.opaque))
        else:
            yield from self._hand_over(EgressClientTls(self.context))

    def _hand_over(self, to: layer.Layer) -> Generator:
        # As mitmproxy's NextLayer does: this layer is passed over from now on.
        self.handle_event = self._handle_event = to.handle_event  # type: ignore[method-assign]
        self._link.deadlines.await_head()
        yield from to.handle_event(events.Start())
        yield from to.handle_event(events.DataReceived(self.context.client, bytes(self._first)))

    def _refuse_hello(self, denial: Deny, alert: bytes = _DECODE_ERROR) -> Generator:
        self._link.admission.refuse_connection(denial)
        yield from self._end(_ALERT + alert)

    def _end(self, answer: bytes) -> Generator:
        if self.context.client.state & ConnectionState.CAN_WRITE:
            yield commands.SendData(self.context.client, answer)
        yield commands.CloseConnection(self.context.client)
