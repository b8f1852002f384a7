"""One request and its answer, between mitmproxy's HTTP parsers: deny first, inject last, scrub always.

All bytes of a request leave through `EgressStream`, and all bytes of an answer come back through it. It asks
`Call` for every verdict and decides nothing itself:

    head in -> hook `requestheaders` -> refuse, or open the upstream -> `call.commit` (revalidates, injects
    secrets) -> head out -> body chunks through `call.upload` -> answer's head through `call.respond` -> body
    chunks through `call.download` -> end, or abort without a clean end
"""

import asyncio
import logging
from collections.abc import Callable
from typing import override

from mitmproxy import http
from mitmproxy.connection import Connection, Server
from mitmproxy.net.http.validate import validate_headers
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import http as mitm_http
from mitmproxy.proxy.layers.http import (
    ErrorCode,
    HTTPMode,
    HttpRequestHook,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)
from mitmproxy.proxy.layers.http._base import HttpEvent

from coatcheck.decision.denial import Deny, Reason
from coatcheck.planes.mitm.flow import EgressFlow
from coatcheck.planes.mitm.hooks import EnterTunnel, VerdictHook
from coatcheck.planes.mitm.http1 import BoundedHttp1Client, BoundedHttp1Server
from coatcheck.planes.mitm.link import Link
from coatcheck.planes.mitm.refusal import FAILED, refusal
from coatcheck.planes.mitm.translate import apply_edits, frame_body, response_head, set_response_headers
from coatcheck.planes.mitm.websocket import EgressWebsocket
from coatcheck.request.call import Call

logger = logging.getLogger(__name__)

type Generator = layer.CommandGenerator[None]
DISCARD_BYTES = 4_194_304
"""How much of a refused upload is thrown away: closing at once would show a reset, not the reason."""

RETRIED_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Sent once more when a kept connection turns out stale before an answer (RFC 9110 9.2.2)."""


class EgressStream(mitm_http.HttpStream):
    """mitmproxy's stream with our decisions at each of its steps. Its failures are refusals, or aborts."""

    flow: EgressFlow

    def __init__(
        self, context: Context, stream_id: int, link: Link, idle: Callable[..., Server | None]
    ) -> None:
        super().__init__(context, stream_id)
        self.link = link
        self._idle = idle
        self.call: Call | None = None
        self._discarded = 0
        self._retried = self._reused = False
        self._answer_started = False
        self._head_sent = False
        """The request's head was handed down, though it may not have been written yet (`Call.left`)."""

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        try:
            yield from super()._handle_event(event)
        except Exception:
            logger.exception("a request failed")
            self.link.shared.failed_closed()
            yield from self._fail()

    def _fail(self) -> Generator:
        """A refusal while nothing was written upstream and no answer has begun; else an abort (I3)."""
        self.call = self.call or self.flow.call
        if self._answer_started or (self.call is not None and self.call.left):
            yield from self._abort(Reason.INTERNAL_ERROR)
            return
        if self._head_sent:
            upstream = self.flow.server_conn
            self.link.outbox.take_back(upstream)
            parser = self.link.parsers.by_connection.get(upstream)
            if isinstance(parser, BoundedHttp1Client):
                parser.forget_held()
        yield from self._refuse(FAILED, request_done=self.client_state == self.state_done)

    # --- the request --------------------------------------------------------------------------------

    @override
    def state_wait_for_request_headers(self, event: HttpEvent) -> Generator:
        assert isinstance(event, RequestHeaders)
        self.flow = EgressFlow(self.context.client, self.context.server, event.request)
        if event.request.method.upper() == "CONNECT":
            yield from self._connect()
            return
        self.flow.request.stream = not event.end_stream
        waiting = self.link.admission.requestheaders(self.flow)
        if waiting is not None:
            yield VerdictHook(waiting)
            if (yield from self.check_killed(False)):
                return self._client_gone()
        self.call = self.flow.call
        denial = self.call.refusal if self.call is not None else Deny(Reason.INTERNAL_ERROR, "no verdict")
        if denial is not None:
            yield from self._refuse(denial, request_done=event.end_stream)
            return
        assert self.call is not None
        if self.flow.request.headers.pop("expect", None) is not None:
            proceed = http.Response.make(100)
            proceed.headers.clear()
            yield mitm_http.SendHttp(ResponseHeaders(self.stream_id, proceed), self.context.client)
        self.server_state = self.state_wait_for_response_headers
        if event.end_stream or self.call.body_limit:
            self.client_state = self.state_consume_request_body
        elif (yield from self._open_upstream(end_stream=False)):
            self.client_state = self.state_stream_request_body

    def _connect(self) -> Generator:
        if self.mode is not HTTPMode.regular:
            yield from self._refuse(Deny(Reason.PROTOCOL_REFUSED, "CONNECT in a tunnel"), request_done=True)
            return
        denial = self.link.admission.connect(self.flow)
        if denial is not None:
            yield from self._refuse(denial, request_done=True)
            return
        self.client_state = self.state_done
        self.flow.live = False
        assert self.link.admission.route.tunnel is not None
        self.context.server.address = self.link.admission.route.tunnel
        version = self.flow.request.data.http_version
        yield commands.SendData(self.context.client, version + b" 200 Connection established\r\n\r\n")
        yield EnterTunnel(self.context)

    def _open_upstream(self, *, end_stream: bool, body: bytes = b"") -> layer.CommandGenerator[bool]:
        """Connect, revalidate, inject the secrets, send the head. False when refused."""
        assert self.call is not None
        request_done = end_stream or bool(self.call.body_limit)
        address = (self.flow.request.host, self.flow.request.port)
        secure = self.flow.request.scheme == "https"
        connection, err = self._idle(address, secure), None
        if connection is None:
            connection, err = yield mitm_http.GetHttpConnection(address, secure, None)
        if err:
            yield from self._refuse(self.link.upstreams.denial(), request_done=request_done)
            return False
        self.context.server = self.flow.server_conn = connection
        if self.call.over:  # the connection was refused meanwhile: a body that began could not be read
            self.client_state = self.server_state = self.state_errored
            yield from self._drop_upstream()
            yield mitm_http.DropStream(self.stream_id)
            return False
        # The last check: no await and no yield lies between it and the first upstream byte (I5).
        committed = self.call.commit(body)
        if isinstance(committed, Deny):
            yield from self._refuse(committed, request_done=request_done)
            return False
        self._reused = self.link.upstreams.use(connection)
        apply_edits(self.flow.request, committed)
        if committed.body is not None:
            body = committed.body
        ended = request_done and not body
        if not ended and connection.alpn != b"h2":
            frame_body(self.flow.request, length=len(body) if request_done else None)
        self._head_sent = True
        self.link.outbox.depart(self.call, connection)
        yield mitm_http.SendHttp(
            RequestHeaders(self.stream_id, self.flow.request, ended), self.context.server
        )
        if body:
            yield mitm_http.SendHttp(RequestData(self.stream_id, body), self.context.server)
        if request_done:
            yield mitm_http.SendHttp(RequestEndOfMessage(self.stream_id), self.context.server)
        return True

    @override
    def state_consume_request_body(self, event: events.Event) -> Generator:
        """Collect the whole body: of requests with a credential in the body, and of requests without a
        body."""
        assert self.call is not None
        if isinstance(event, RequestData):
            if (full := self.call.buffer(len(event.data))) is not None:
                yield from self._refuse(full, request_done=False)
                return
            self.request_body_buf += event.data
        elif isinstance(event, RequestTrailers):
            yield from self._refuse(Deny(Reason.FRAMING_REFUSED, "request trailers"), request_done=False)
        elif isinstance(event, RequestEndOfMessage):
            body = bytes(self.request_body_buf)
            self.request_body_buf.clear()
            self.client_state = self.state_done
            if self.call.body_limit:
                self.flow.request.data.content = body
                yield HttpRequestHook(self.flow)
                if (yield from self.check_killed(False)):
                    self._client_gone()
                    return
                if self.call.denial is not None:
                    yield from self._refuse(self.call.denial, request_done=True)
                    return
            yield from self._open_upstream(end_stream=not body, body=body)

    @override
    def state_stream_request_body(self, event: events.Event) -> Generator:
        assert self.call is not None
        if isinstance(event, RequestData):
            sent = self.call.upload(event.data)
            if isinstance(sent, Deny):
                yield from self._abort(sent.reason)
                return
            yield mitm_http.SendHttp(RequestData(self.stream_id, sent), self.context.server)
        elif isinstance(event, RequestTrailers):
            yield from self._abort(Reason.FRAMING_REFUSED)
        elif isinstance(event, RequestEndOfMessage):
            rest = self.call.upload_end()
            if isinstance(rest, Deny):
                yield from self._abort(rest.reason)
                return
            if rest:
                yield mitm_http.SendHttp(RequestData(self.stream_id, rest), self.context.server)
            self.client_state = self.state_done
            yield mitm_http.SendHttp(event, self.context.server)

    # --- the answer ---------------------------------------------------------------------------------

    @override
    def state_wait_for_response_headers(self, event: events.Event) -> Generator:
        assert isinstance(event, ResponseHeaders)
        assert self.call is not None
        response = self.flow.response = event.response
        self.link.shared.upstream_tls.answered(self.flow.server_conn)
        try:
            validate_headers(response)
        except ValueError:
            plan: object = Deny(Reason.UPSTREAM_RESPONSE_REFUSED, "ambiguous framing")
        else:
            plan = self.call.respond(response_head(response), end_stream=event.end_stream)
        if isinstance(plan, Deny):
            yield from self._drop_upstream()
            yield from self._refuse(plan, request_done=self.client_state == self.state_done)
            return
        set_response_headers(
            response,
            plan,  # type: ignore[arg-type]
            end_stream=event.end_stream,
            to_h2=self.context.client.alpn == b"h2",
            to_http10=self.flow.request.http_version == "HTTP/1.0",
        )
        self._answer_started = True
        if self.call.answer.over:  # 416: nothing of the body is in the range
            yield mitm_http.SendHttp(ResponseHeaders(self.stream_id, response, True), self.context.client)
            yield from self._finish_early()
            return
        if response.status_code == 101:
            self.server_state = self.state_switching
        else:
            self.server_state = self.state_stream_response_body
            yield mitm_http.SendHttp(
                ResponseHeaders(self.stream_id, response, event.end_stream), self.context.client
            )

    def state_switching(self, event: events.Event) -> Generator:
        """A 101 that `respond` allowed: hand both sides to the WebSocket layer."""
        if not isinstance(event, ResponseEndOfMessage):
            yield from self._abort(Reason.UPSTREAM_RESPONSE_REFUSED)
            return
        assert self.call is not None
        assert self.flow.response is not None
        self.server_state = self.state_done
        yield mitm_http.SendHttp(ResponseHeaders(self.stream_id, self.flow.response), self.context.client)
        self.flow.websocket = mitm_http.WebSocketData()
        self.child_layer = EgressWebsocket(self.context, self.flow, self.call, self.link.time_slice)
        self._handle_event = self.passthrough  # type: ignore[method-assign]
        yield from self.child_layer.handle_event(events.Start())
        yield mitm_http.SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    @override
    def state_stream_response_body(self, event: events.Event) -> Generator:
        assert self.call is not None
        if isinstance(event, ResponseData):
            out = self.call.download(event.data)
        elif isinstance(event, ResponseEndOfMessage):
            out = self.call.download_end()
        else:
            assert isinstance(event, ResponseTrailers)
            trailers = self.call.trailers(tuple(event.trailers.items(multi=True)))
            if isinstance(trailers, Deny) or self.context.client.alpn != b"h2":
                return  # HTTP/1 trailers are not forwarded
            assert self.flow.response is not None
            self.flow.response.trailers = http.Headers(
                [(name.encode("latin-1"), value.encode("latin-1")) for name, value in trailers]
            )
            return
        if isinstance(out, Deny):
            yield from self._abort(out.reason)
            return
        for chunk in out:
            if chunk:
                yield mitm_http.SendHttp(ResponseData(self.stream_id, chunk), self.context.client)
        if isinstance(event, ResponseData) and self.call.answer.over:
            yield from self._finish_early()
        elif isinstance(event, ResponseEndOfMessage):
            self.server_state = self.state_done
            assert self.flow.response is not None
            if self.flow.response.trailers:
                yield mitm_http.SendHttp(
                    ResponseTrailers(self.stream_id, self.flow.response.trailers), self.context.client
                )
            yield from self._finish()

    def _finish_early(self) -> Generator:
        """All that was asked for has come: the answer ends cleanly, and the rest of it is not read."""
        self.server_state = self.state_errored
        if self.client_state == self.state_done:
            yield from self._drop_upstream()
        yield from self._finish()

    def _finish(self) -> Generator:
        assert self.call is not None
        # Recorded once the answer is out: the client need not wait for it.
        asyncio.get_running_loop().call_soon(self.call.complete, None)
        self.flow.live = False
        if self.client_state == self.state_done:
            yield mitm_http.DropStream(self.stream_id)
            yield mitm_http.SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
            return
        # An early answer (say 413): its end goes out, as the client may wait for it; nothing more is
        # uploaded.
        self.server_state = self.state_errored
        self.client_state = self.state_discard
        yield mitm_http.SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        yield from self._drop_upstream()

    # --- endings ------------------------------------------------------------------------------------

    def _refuse(self, denial: Deny, *, request_done: bool) -> Generator:
        """Answer with the refusal. What is left of the request is thrown away, up to a bound."""
        request_id = self.link.admission.refused(self.flow, self.call, denial)
        response = self.flow.response = refusal(denial, request_id, self.flow.request)
        client, inside = self.context.client, self.link.admission.refused_inside
        # While draining: the client's next connection goes to another daemon, where there is one.
        if client.alpn != b"h2" and (not request_done or denial.reason is Reason.DRAINING or inside):
            response.headers["connection"] = "close"
        content = b"" if self.flow.request.method == "HEAD" else response.raw_content or b""
        self._answer_started = True
        self.server_state = self.state_errored
        yield mitm_http.SendHttp(ResponseHeaders(self.stream_id, response, not content), client)
        if content:
            yield mitm_http.SendHttp(ResponseData(self.stream_id, content), client)
        self.flow.live = False
        if request_done:
            self.client_state = self.state_errored
            yield mitm_http.DropStream(self.stream_id)
            yield mitm_http.SendHttp(ResponseEndOfMessage(self.stream_id), client)
            if inside:
                yield commands.CloseConnection(client)
        else:
            self.client_state = self.state_discard
            yield mitm_http.SendHttp(ResponseEndOfMessage(self.stream_id), client)
            if client.alpn == b"h2":  # stop the upload; the answer is already complete (RFC 9113 8.1)
                yield mitm_http.DropStream(self.stream_id)
                yield mitm_http.SendHttp(
                    ResponseProtocolError(self.stream_id, "refused", ErrorCode.CANCEL), client
                )

    def state_discard(self, event: events.Event) -> Generator:
        if isinstance(event, RequestData):
            self._discarded += len(event.data)
            if self._discarded > DISCARD_BYTES:
                self.client_state = self.state_errored
                yield commands.CloseConnection(self.context.client)
        elif isinstance(event, RequestEndOfMessage):
            yield mitm_http.DropStream(self.stream_id)

    def _abort(self, reason: Reason) -> Generator:
        """After the first upstream byte: end both sides without a clean end of message (I3)."""
        if self.call is not None:
            self.call.complete(reason)
        self.client_state = self.server_state = self.state_errored
        self.flow.live = False
        yield from self._drop_upstream()
        yield mitm_http.DropStream(self.stream_id)
        if self.context.client.alpn == b"h2":
            yield mitm_http.SendHttp(
                ResponseProtocolError(self.stream_id, reason.value, ErrorCode.KILL), self.context.client
            )
        else:
            # TLS tells its end with the last bytes, so the head may have come in this very read: the client
            # gets what came before the end, however it was cut into reads.
            parser = self.link.parsers.by_connection[self.context.client]
            assert isinstance(parser, BoundedHttp1Server)
            yield from parser.release()
            self.link.outbox.flush()
            # A FIN would be a clean end where the body's end is the connection's; a reset never is.
            self.link.ending.reset_client()

    def _drop_upstream(self) -> Generator:
        """Cancel the upstream half: HTTP/1 closes the connection, HTTP/2 resets the stream."""
        server: Connection = self.flow.server_conn
        if server.connected:
            yield mitm_http.SendHttp(
                RequestProtocolError(self.stream_id, "cancelled", ErrorCode.CANCEL), self.context.server
            )

    def _client_gone(self) -> None:
        call = self.call or self.flow.call
        if call is not None:
            call.complete(Reason.CLIENT_GONE)

    @override
    def handle_protocol_error(self, event: RequestProtocolError | ResponseProtocolError) -> Generator:
        """A side broke off or broke the protocol. mitmproxy's messages quote bytes: they go nowhere."""
        if isinstance(event, RequestProtocolError):
            self._client_gone()
            talking = self.server_state not in (self.state_done, self.state_errored)
            self.client_state = self.server_state = self.state_errored
            if talking and self.call is not None and self.call.committed:
                yield from self._drop_upstream()
            yield mitm_http.DropStream(self.stream_id)
            return
        if self.server_state in (self.state_done, self.state_errored):
            return
        if self._answer_started:
            yield from self._abort(Reason.UPSTREAM_RESPONSE_REFUSED)
        elif self._may_retry():
            self._retried = True
            yield from self._open_upstream(end_stream=True)
        else:
            yield from self._refuse(
                Deny(Reason.UPSTREAM_RESPONSE_REFUSED, "the upstream closed or broke the protocol"),
                request_done=self.client_state == self.state_done,
            )

    def _may_retry(self) -> bool:
        return (
            not self._retried
            and self._reused
            and self.client_state == self.state_done
            # A body that went up is gone: its head alone would promise bytes that the next request has.
            and self.call is not None
            and self.call.head.end_stream
            and self.flow.request.method in RETRIED_METHODS
        )
