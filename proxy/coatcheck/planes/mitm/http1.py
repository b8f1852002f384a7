"""HTTP/1 parsers that accept one form of a message, and never hold more of it than a bound (I7, I9).

mitmproxy's parsers accept bare line feeds and odd separators, hold heads, chunk headers, trailers and
pipelined requests without a bound, and crash on trailers. They answer what they refuse without a record; here
every refusal is recorded.
"""

import re
from typing import Any, override

import h11
from h11._readers import ChunkedReader, Http10Reader
from h11._receivebuffer import ReceiveBuffer
from mitmproxy import http
from mitmproxy.connection import ConnectionState
from mitmproxy.net.http import http1
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import http as mitm_http
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Connection, Http1Server, make_body_reader

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import MAX_HEADER_BYTES
from coatcheck.planes.mitm.link import Link
from coatcheck.planes.mitm.refusal import refusal_bytes
from coatcheck.planes.mitm.time_slice import Resume

type Generator = layer.CommandGenerator[None]

_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~\x80-\xff]+ HTTP/1\.[01]")
"""One space each, nothing below 0x21: mitmproxy splits at any white space, servers at the first space.
HTTP/2.0 in it would make mitmproxy read the host elsewhere than the upstream does."""
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] [1-9][0-9][0-9](?: [^\r\n]*)?\r?\n")
"""int() would take `+200` and `2_00` for a status."""
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r\n]")
"""Of an answer before the answer (RFC 9110 15.2). A 101 is the last one on its connection."""
_CONTROLS = bytes(code for code in (*range(0x20), 0x7F) if code not in b"\t\r\n")
"""mitmproxy strips some of them from values, where others see them."""

_WITHOUT_CONTENT = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""Servers that do not read the content of these take it for the next request (RFC 9110 9.3.1; CL.0, TE.0)."""


def _says_close(message: http.Message) -> bool:
    """Whether nothing follows on its connection. mitmproxy wants a lower-case `close` (RFC 9110 7.6.1)."""
    options = {option.strip() for option in message.headers.get("connection", "").lower().split(",")}
    return "close" in options or (message.http_version == "HTTP/1.0" and "keep-alive" not in options)


class Release(events.Event):
    """What one event led to is complete: a head that waited for the first of its body need not wait on."""


_WORD = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_CHUNK_HEADER = re.compile(
    rb"[0-9A-Fa-f]{1,16}(?:;[\t ]*" + _WORD + rb"(?:[\t ]*=[\t ]*(?:" + _WORD + rb"|" + _QUOTED + rb"))?)*"
)
"""RFC 9112 7.1. h11 takes anything for an extension, also a CR at which other parsers end the line."""


class StrictChunkedReader(ChunkedReader):
    """h11's, which takes any bytes for an extension, and whose trailers may end at a bare line feed."""

    @override
    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        if not self._bytes_in_chunk and not self._reading_trailer:
            start = len(self._bytes_to_discard)
            end = buf._data.find(b"\r\n", start, start + MAX_HEADER_BYTES)
            if end >= 0 and _CHUNK_HEADER.fullmatch(buf._data, start, end) is None:
                raise h11.RemoteProtocolError("malformed chunk header")
        if self._reading_trailer:
            rest = bytes(buf)
            end = 0 if rest.startswith(b"\r\n") else rest.find(b"\r\n\r\n")
            until = len(rest) if end < 0 else end
            if rest.count(b"\n", 0, until) != rest.count(b"\r\n", 0, until):
                raise h11.RemoteProtocolError("bare line feed")
        return super().__call__(buf)


class _Bounded(Http1Connection):
    """Bodies: chunk headers and trailers end within MAX_HEADER_BYTES; trailers are events, not a crash.

    A head leaves together with the first of its body, when both come at once: each piece sent costs a
    TLS record and a way down all layers, a tenth of a small answer's time.
    """

    _link: Link
    _held = b""
    _chunked = False

    def _hold(self, head: bytes) -> None:
        self._held += head
        self._link.parsers.holding.add(self)

    def forget_held(self) -> None:
        self._held = b""
        self._link.parsers.holding.discard(self)

    def release(self) -> Generator:
        """Send what was held."""
        yield from self._with_held()

    def _with_held(self, data: bytes = b"") -> Generator:
        """Send what was held, and `data`."""
        if self._held:
            data, self._held = self._held + data, b""
            self._link.parsers.holding.discard(self)
        if data:
            yield commands.SendData(self.conn, data)

    def _body(self, data: bytes) -> Generator:
        if data:  # an empty chunk would be the last one
            yield from self._with_held(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        if isinstance(event, Release):
            yield from self.release()
        elif isinstance(event, Resume):
            if self.state == self.read_body:
                yield from self.read_body(events.DataReceived(self.conn, b""))
            if self._end is not None and not self._link.time_slice.has_left(self):
                end, self._end = self._end, None
                yield from super()._handle_event(end)
        elif isinstance(event, events.ConnectionClosed) and self._link.time_slice.has_left(self):
            self._end = event
        else:
            yield from super()._handle_event(event)

    _end: events.ConnectionClosed | None = None
    """The connection's end, held back until what came before it is handled."""

    _last = False
    """The message asked for the connection's end. Remembered, as headers are edited on their way."""

    @override
    def mark_done(self, *, request: bool = False, response: bool = False) -> Generator:
        done = (self.request_done or request) and (self.response_done or response)
        if done and self._last and self.state != self.passthrough:
            yield commands.CloseConnection(self.conn)
            self.state = self.done
            return
        yield from super().mark_done(request=request, response=response)

    @override
    def read_body(self, event: events.Event) -> Generator:
        assert self.stream_id is not None
        from_client = isinstance(self, Http1Server)
        gathered: list[bytes] = []
        """Chunks that are there leave as one: each costs a way through all layers, and may wait there."""
        while True:
            try:
                if isinstance(event, events.DataReceived):
                    part = self.body_reader(self.buf)
                else:
                    part = self._end_of_input()
                if part is None and len(self.buf) > MAX_HEADER_BYTES:
                    raise h11.RemoteProtocolError("endless chunk header or trailers")
            except h11.ProtocolError:
                if from_client and isinstance(event, events.DataReceived) and self._link.admission.calls:
                    denial = Deny(Reason.FRAMING_REFUSED, "the request's body has no single end")
                    self._link.admission.refuse_connection(denial)
                yield commands.CloseConnection(self.conn)
                error = self.ReceiveProtocolError(
                    self.stream_id, "malformed body", code=self.ReceiveProtocolError.code
                )
                yield mitm_http.ReceiveHttp(error)
                return
            if isinstance(part, h11.Data):
                gathered.append(bytes(part.data))
                if not self.buf or not self._link.time_slice.is_over(self):
                    continue
                part = None
            if data := b"".join(gathered):
                yield mitm_http.ReceiveHttp(self.ReceiveData(self.stream_id, data))
            gathered.clear()
            if part is None:
                return
            assert isinstance(part, h11.EndOfMessage)
            if part.headers and from_client:
                # A response's are dropped (RFC 9110 6.5.1); a request's could matter to the upstream.
                trailers = http.Headers([(bytes(name), bytes(value)) for name, value in part.headers])
                yield mitm_http.ReceiveHttp(mitm_http.RequestTrailers(self.stream_id, trailers))
            yield from self._end_of_message(from_client)
            return

    def _end_of_input(self) -> Any:
        return self.body_reader.read_eof()

    def _end_of_message(self, from_client: bool) -> Generator:
        assert self.request is not None
        assert self.stream_id is not None
        ended = mitm_http.ReceiveHttp(self.ReceiveEndOfMessage(self.stream_id))
        pipe = self.response is not None and self.response.status_code == 101
        if not from_client and not pipe:
            # Ready for the next request first: a client that sent ahead has it answered from in there.
            yield from self.mark_done(response=True)
            yield ended
            return
        if self.request.data.method.upper() != b"CONNECT":
            yield ended
        yield from self.mark_done(request=from_client, response=not from_client)


class BoundedHttp1Server(_Bounded, Http1Server):
    """The client's side. What it cannot read in exactly one way is refused, recorded, and ends it."""

    def __init__(self, context: Context, link: Link) -> None:
        super().__init__(context)
        self._link = link

    @override
    def send(self, event: HttpEvent) -> Generator:
        if isinstance(event, mitm_http.ResponseData):
            yield from self._body(event.data)
        elif isinstance(event, mitm_http.ResponseEndOfMessage):
            assert self.request is not None
            ends = self._chunked and self.request.data.method != b"HEAD"
            yield from self._with_held(b"0\r\n\r\n" if ends else b"")
            yield from self.mark_done(response=True)
        else:
            final = isinstance(event, mitm_http.ResponseHeaders) and event.response.status_code >= 200
            for command in super().send(event):
                if final and isinstance(command, commands.SendData):
                    self._hold(command.data)
                else:
                    yield from self._with_held()
                    yield command
            if isinstance(event, mitm_http.ResponseHeaders):
                self._chunked = "transfer-encoding" in event.response.headers

    @override
    def read_headers(self, event: events.ConnectionEvent) -> Generator:
        if not isinstance(event, events.DataReceived):
            yield commands.CloseConnection(self.conn)
            return
        try:
            request = self._head()
            size = None if request is None else http1.expected_http_body_size(request)
        except ValueError:
            yield from self._refuse()
            return
        if request is None:
            if self.buf:
                self._link.deadlines.head_begins()
            return
        self._link.deadlines.head_is_read()
        self.request = request
        self._last = _says_close(request)
        yield mitm_http.ReceiveHttp(mitm_http.RequestHeaders(self.stream_id, request, size == 0))
        self.body_reader = StrictChunkedReader() if size is None else make_body_reader(size)
        self.state = self.read_body
        yield from self.state(event)

    def _head(self) -> http.Request | None:
        """The next head, or None while it has not ended. ValueError: not one reading."""
        raw = bytes(self.buf)
        start = 2 if raw.startswith(b"\r\n") else 0  # one empty line may come first (RFC 9112 2.2)
        end = raw.find(b"\r\n\r\n", start)
        until = len(raw) if end < 0 else end + 2
        if raw.count(b"\n", start, until) != raw.count(b"\r\n", start, until):
            raise ValueError("bare line feed")
        if until > MAX_HEADER_BYTES:
            raise ValueError("endless head")
        if end < 0:
            first, ended, _ = raw[start:].partition(b"\r\n")
            if ended and _REQUEST_LINE.fullmatch(first) is None:
                raise ValueError("malformed request line")  # SSH and others say one line, and wait
            return None
        self.buf.maybe_extract_at_most(end + 4)
        head = raw[start:end]
        if head.count(b"\r") != head.count(b"\r\n"):
            raise ValueError("bare carriage return")  # at a value's end it would be stripped unseen
        lines = head.split(b"\r\n")
        if _REQUEST_LINE.fullmatch(lines[0]) is None or len(head.translate(None, _CONTROLS)) != len(head):
            raise ValueError("malformed request line")
        return http1.read_request_head(lines)

    def _refuse(self) -> Generator:
        denial = Deny(Reason.FRAMING_REFUSED, "the request's head has no single reading")
        request_id = self._link.admission.refuse_connection(denial)
        yield commands.SendData(self.conn, refusal_bytes(denial, request_id))
        yield commands.CloseConnection(self.conn)
        self.state = self.done

    @override
    def wait(self, event: events.Event) -> Generator:
        """Requests sent ahead wait here for the answer to the one before; few clients do that, with heads."""
        if isinstance(event, events.DataReceived) and len(self.buf) > MAX_HEADER_BYTES:
            self._link.ending.abort(Reason.FRAMING_REFUSED)
            return
        yield from super().wait(event)


class BoundedHttp1Client(_Bounded, Http1Client):
    """The upstream's side; an answer's head that does not end is an error, not a buffer."""

    _alone = False
    """No other request may follow on this connection."""
    _interim = 0
    """Bytes of interim answers to this request."""

    def __init__(self, context: Context, link: Link) -> None:
        super().__init__(context)
        self._link = link

    @override
    def send(self, event: HttpEvent) -> Generator:
        if isinstance(event, mitm_http.RequestData):
            yield from self._body(event.data)
            return
        if isinstance(event, mitm_http.RequestHeaders) and not event.end_stream:
            fields = event.request.headers
            if ("content-length" in fields) == ("transfer-encoding" in fields):
                # Without a length, or with two, the body would be another request to the upstream.
                raise ValueError("a request's body needs Content-Length or Transfer-Encoding, and not both")
        for command in super().send(event):
            if isinstance(command, commands.SendData):
                self._hold(command.data)
            else:
                yield from self._with_held()
                yield command
        if isinstance(event, mitm_http.RequestHeaders):
            self._chunked = "transfer-encoding" in event.request.headers
            self._alone = not event.end_stream and event.request.method in _WITHOUT_CONTENT
        else:
            yield from self._with_held()

    @override
    def _end_of_input(self) -> Any:
        """A body that has no length ends with its connection: with a whole one, not with one that was cut."""
        if self.conn.error and isinstance(self.body_reader, Http10Reader):
            raise h11.RemoteProtocolError("cut off (RFC 9112 9.8)")
        return super()._end_of_input()

    @override
    def read_headers(self, event: events.ConnectionEvent) -> Generator:
        asked = isinstance(event, events.DataReceived) and self.request is not None
        if asked:
            try:
                self._drop_interim_answers()
            except ValueError:
                yield from self._fail()
                return
            raw = bytes(self.buf)
            if b"\n" in raw and _STATUS_LINE.match(raw) is None:
                yield from self._fail()
                return
            if _INTERIM.match(raw):
                return  # half of one
        for command in super().read_headers(event):
            received = command.event if isinstance(command, mitm_http.ReceiveHttp) else None
            if isinstance(received, mitm_http.ResponseHeaders):
                response = received.response
                self._last = self._alone or _says_close(response)
                self._interim = 0
            yield command
        # `==`, not `is`: each access makes a new bound method.
        if self.state == self.read_headers and len(self.buf) > MAX_HEADER_BYTES:
            yield from self._fail()

    def _drop_interim_answers(self) -> None:
        """Nothing of them is for the client: it had a 100 of our own, hints about other hosts lead nowhere,
        and any of them may hold an echo. mitmproxy would take the first for the last. ValueError: not one
        reading, or no end of them."""
        while _INTERIM.match(bytes(self.buf)):
            before = len(self.buf)
            lines = self.buf.maybe_extract_lines()
            self._interim += before - len(self.buf)
            if self._interim + (before if lines is None else 0) > MAX_HEADER_BYTES:
                raise ValueError("endless interim answers")
            if lines is None:
                return
            headers = http1.read_response_head([bytes(line) for line in lines]).headers
            if "content-length" in headers or "transfer-encoding" in headers:
                raise ValueError("an interim answer that announces content (RFC 9110 8.6, 9112 6.1)")

    def _fail(self) -> Generator:
        assert self.stream_id is not None
        self.state = self.done
        if self.conn.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.conn)
        code = mitm_http.ErrorCode.GENERIC_SERVER_ERROR
        error = mitm_http.ResponseProtocolError(self.stream_id, "malformed head", code)
        yield mitm_http.ReceiveHttp(error)
