"""TLS that is forwarded unopened, for clients that pin certificates (`tunnel: true` on a rule).

Nothing in it can be checked: no path, no handle, no answer. So the name in its hello must be the CONNECT
target, no credential is ever injected, bytes are counted and limited, and the policy's linter warns.
"""

from typing import override

from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.tls import parse_client_hello

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.host import HostRefused
from coatcheck.planes.mitm.client_hello import is_whole, server_name
from coatcheck.planes.mitm.link import Link
from coatcheck.request.call import Call

type Generator = layer.CommandGenerator[None]

ENCRYPTED_CLIENT_HELLO = 0xFE0D
"""With this extension the visible name is not the name of the server (RFC 9849)."""


class OpaqueTunnel(layer.Layer):
    """Waits for the whole ClientHello, checks its name, connects, and relays bytes both ways."""

    def __init__(self, context: Context, link: Link, call: Call) -> None:
        super().__init__(context)
        self._link = link
        self._call = call
        self._hello = bytearray()
        self._open = False

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        if isinstance(event, events.DataReceived):
            if self._open:
                yield from self._relay(event)
            elif event.connection is self.context.client:
                yield from self._read_hello(event.data)
        elif isinstance(event, events.ConnectionClosed):
            self._call.complete(None if self._open else Reason.CLIENT_GONE)
            yield commands.CloseConnection(self.context.client)
            if self._open:
                yield commands.CloseConnection(self.context.server)

    def _read_hello(self, data: bytes) -> Generator:
        self._hello += data
        denial = self._judge_hello()
        if denial is not None:
            yield from self._refuse(denial)
        elif self._hello_complete:
            yield from self._connect()

    _hello_complete = False

    def _judge_hello(self) -> Deny | None:
        if self._hello[:1] != b"\x16":
            return Deny(Reason.PROTOCOL_REFUSED, "not TLS in a tunnel that may only carry TLS")
        try:
            hello = parse_client_hello(bytes(self._hello)) if is_whole(self._hello) else None
        except ValueError:
            return Deny(Reason.PROTOCOL_REFUSED, "malformed or endless ClientHello")
        if hello is None:
            return None
        self._hello_complete = True
        assert self._link.admission.route.tunnel is not None
        if any(kind == ENCRYPTED_CLIENT_HELLO for kind, _ in hello.extensions):
            return Deny(Reason.AUTHORITY_MISMATCH, "encrypted ClientHello")
        try:
            same = server_name(hello) == self._link.admission.route.tunnel[0]
        except HostRefused:
            same = False
        if not same:
            detail = "the TLS server name differs from the CONNECT target"
            return Deny(Reason.AUTHORITY_MISMATCH, detail, alarm=True)
        return None

    def _connect(self) -> Generator:
        self.context.server.address = self._link.admission.route.tunnel
        err = yield commands.OpenConnection(self.context.server)
        if err:
            self._link.upstreams.opened(self.context.server, usable=False)
            yield from self._refuse(self._link.upstreams.denial())
            return
        denial = self._call.commit_tunnel()
        denial = denial or self._call.sent(len(self._hello))
        if denial is not None:
            yield from self._refuse(denial)
            return
        self._open = True
        self._link.outbox.depart(self._call, self.context.server)
        yield commands.SendData(self.context.server, bytes(self._hello))
        self._hello.clear()

    def _relay(self, event: events.DataReceived) -> Generator:
        from_client = event.connection is self.context.client
        denial = self._call.sent(len(event.data)) if from_client else self._call.received(len(event.data))
        if denial is not None:
            self._link.ending.abort(denial.reason)
            return
        yield commands.SendData(self.context.server if from_client else self.context.client, event.data)

    def _refuse(self, denial: Deny) -> Generator:
        """There is no HTTP to answer in: the reason is in the audit log, the connection ends."""
        self._link.admission.refuse_tunnel(self._call, denial)
        self._link.ending.abort(denial.reason)
        yield from ()
