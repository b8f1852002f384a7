"""What happens when something of ours fails (I3): before the first upstream byte the client is told, after it
the message is broken off on both sides.

mitmproxy's layers do not survive an exception. What fails in a stream's own code is caught in the stream,
and is that request's end alone; what fails around it ends the connection, with a last word where HTTP is
spoken and no answer has begun.
"""

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, override

from h2.errors import ErrorCodes
from mitmproxy import http
from mitmproxy.proxy import events, layer
from mitmproxy.proxy.layers.http import HttpStream
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.layers.http._http2 import Http2Server
from OpenSSL import SSL

from coatcheck.decision.denial import Deny, Reason
from coatcheck.planes.mitm.flow import EgressFlow
from coatcheck.planes.mitm.refusal import refusal, refusal_bytes

if TYPE_CHECKING:
    from coatcheck.planes.mitm.connection import EgressConnection
    from coatcheck.request.call import Call

logger = logging.getLogger(__name__)

type Generator = layer.CommandGenerator[None]

FAILED = Deny(Reason.INTERNAL_ERROR, "something of ours failed")
"""What is told where nothing better is known."""


class FailsClosed(HttpStream, ABC):
    """A stream whose own failures are refusals, or aborts."""

    link: "EgressConnection"
    flow: EgressFlow
    call: "Call | None"
    _answer_started = False
    _head_sent = False
    """The request's head was handed down, though it may not have been written yet (`Call.left`)."""

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        try:
            yield from super()._handle_event(event)
        except Exception:
            logger.exception("a request failed")
            self.link.plane.failed_closed()
            yield from self.fail()

    def fail(self) -> Generator:
        """A refusal while nothing was written upstream and no answer has begun; else an abort."""
        self.call = self.call or self.flow.call
        if self._answer_started or (self.call is not None and self.call.left):
            yield from self._abort(Reason.INTERNAL_ERROR)
            return
        if self._head_sent:
            self.link.take_back(self.flow.server_conn)
        yield from self._refuse(FAILED, request_done=self.client_state == self.state_done)

    @abstractmethod
    def _refuse(self, denial: Deny, *, request_done: bool) -> Generator:
        """Tell the client why, and send nothing upstream."""

    @abstractmethod
    def _abort(self, reason: Reason) -> Generator:
        """End both sides without a clean end of message."""


class ClosedLayer(layer.Layer):
    """Listens to nothing: the connection has failed, and only its end is being waited for."""

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        yield from ()


def final_response(link: "EgressConnection", denial: Deny) -> bytes:
    """The refusal, recorded, as the client can read it now; empty where it could not."""
    client, parser = link.client, link.parsers.get(link.client)
    if isinstance(parser, Http2Server):
        return _encrypted(link.client_tls, _in_http2(parser, refusal(denial, _record(link, denial))))
    if client.alpn == b"h2" or (isinstance(parser, Http1Server) and parser.response is not None):
        return b""
    if client.tls:
        readable = client.tls_established and link.client_tls is not None
    elif link.tunnel is not None:  # what comes next may be TLS
        readable = parser is not None and not _connected(parser)
    else:
        readable = parser is not None or link.peer.original is None
    if not readable:
        return b""
    answer = refusal_bytes(denial, _record(link, denial))
    return _encrypted(link.client_tls, answer) if link.client_tls is not None else answer


def _connected(parser: object) -> bool:
    """It is the parser of the CONNECT that was allowed, not the one inside the tunnel."""
    request = parser.request if isinstance(parser, Http1Server) else None
    return request is not None and request.method.upper() == "CONNECT"


def _record(link: "EgressConnection", denial: Deny) -> str:
    """In the audit log before it is told, as every refusal; the request id."""
    exchange = link.plane.exchange
    for call in link.calls:
        if call.denial is None:
            exchange.late_refusal(call, denial)
    if link.calls:  # HTTP/1: one; of several any will do, as they failed together
        return next(iter(link.calls)).request_id
    return link.plane.refuse_connection(link, denial)


def _in_http2(parser: Http2Server, answer: http.Response) -> bytes:
    """For each stream that has no answer yet; then the connection goes away."""
    connection, body = parser.h2_conn, answer.raw_content or b""
    for number, stream in tuple(connection.streams.items()):
        if stream.open and not stream.state_machine.headers_sent:
            fields = [(b":status", b"%d" % answer.status_code), *answer.headers.fields]
            connection.send_headers(number, fields)
            connection.send_data(number, body, end_stream=True)
    connection.close_connection(ErrorCodes.INTERNAL_ERROR)
    sent: bytes = connection.data_to_send()
    return sent


def _encrypted(tls: SSL.Connection | None, plain: bytes) -> bytes:
    if tls is None:
        return b""
    tls.sendall(plain)
    out = bytearray()
    while True:
        try:
            out += tls.bio_read(65_535)
        except SSL.WantReadError:
            return bytes(out)
