"""WebSocket messages on allowed routes: relayed fragment by fragment, scrubbed towards the sandbox.

Not mitmproxy's WebsocketLayer: that one buffers whole messages without a bound, keeps every message,
and relays ping payloads and close reasons unread. Extensions are not negotiated
(the request loses `Sec-WebSocket-Extensions`), so no frame is compressed and none can be a bomb.
"""

import codecs
from typing import Any, override

import wsproto
from mitmproxy import http
from mitmproxy.connection import Connection
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, Pong, TextMessage
from wsproto.utilities import ProtocolError

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.scrub import Patterns, Scrubber
from coatcheck.planes.mitm.time_slice import Resume, TimeSlice
from coatcheck.request.call import Call

type Generator = layer.CommandGenerator[None]


class MessageFilter:
    """The messages of one direction, fragment by fragment. The end of one message is searched together with
    the beginning of the next, because a secret may come in pieces."""

    def __init__(self, call: Call, *, from_client: bool) -> None:
        self._call = call
        self._from_client = from_client
        self._patterns: Patterns | None = None
        self._scrubber: Scrubber | None = None

    def feed(self, data: bytes) -> bytes | Deny:
        if self._from_client:
            return self._call.upload(data)
        denial = self._call.received(len(data))
        if denial is not None:
            return denial
        self._update_patterns()
        return self._call.message(self._scrubber.feed(data)) if self._scrubber else data

    def _update_patterns(self) -> None:
        """The session may have been served another secret since the last fragment."""
        patterns = self._call.answer.patterns
        if patterns is None or patterns is self._patterns:
            return
        self._patterns = patterns
        if self._scrubber is None:
            self._scrubber = self._call.answer.messages = Scrubber(patterns, in_messages=True)
        else:
            self._scrubber.look_for(patterns)

    def end_message(self) -> bytes | Deny:
        if self._from_client:
            return self._call.upload_end()
        return self._call.message(self._scrubber.flush()) if self._scrubber else b""


class _Side:
    """One direction's receiving end."""

    def __init__(self, kind: wsproto.ConnectionType, conn: Connection, filter_: MessageFilter) -> None:
        self.ws = wsproto.Connection(kind)
        self.conn = conn
        self.filter = filter_
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="strict")


class EgressWebsocket(layer.Layer):
    """Relays between the two sides until one closes, or the session's right to it ends."""

    def __init__(self, context: Context, flow: http.HTTPFlow, call: Call, turn: TimeSlice) -> None:
        super().__init__(context)
        self._turn = turn
        self._ends: list[events.ConnectionClosed] = []
        """Ends of connections, held back until the frames from before them are handled."""
        self._flow = flow
        self._call = call
        self._client = _Side(
            wsproto.ConnectionType.SERVER, context.client, MessageFilter(call, from_client=True)
        )
        self._server = _Side(
            wsproto.ConnectionType.CLIENT, context.server, MessageFilter(call, from_client=False)
        )

    @override
    def _handle_event(self, event: events.Event) -> Generator:
        if isinstance(event, Resume):
            for side in (self._client, self._server):
                if self._handle_event != self._done:
                    yield from self._read(side, b"")
            while self._ends and not self._turn.has_left(self) and self._handle_event != self._done:
                yield from self._handle_event(self._ends.pop(0))
            return
        if not isinstance(event, (events.DataReceived, events.ConnectionClosed)):
            return
        from_client = event.connection is self.context.client
        if isinstance(event, events.ConnectionClosed) and self._turn.has_left(self):
            self._ends.append(event)
            return
        if isinstance(event, events.ConnectionClosed):
            # No Close frame is forwarded: it would be a clean end (I3, RFC 6455 7.1.5).
            yield from self._end(Reason.CLIENT_GONE if from_client else Reason.UPSTREAM_RESPONSE_REFUSED)
            return
        yield from self._read(self._client if from_client else self._server, event.data)

    def _read(self, source: _Side, data: bytes) -> Generator:
        from_client = source is self._client
        target = self._server if from_client else self._client
        try:
            source.ws.receive_data(data)
            for received in source.ws.events():
                if isinstance(received, CloseConnection) and source.ws.state is ConnectionState.OPEN:
                    raise ProtocolError("wsproto reports a frame that breaks the rules in this way")
                sent = self._relay(received, source, from_client)
                if isinstance(sent, Deny):
                    yield from self._end(sent.reason)
                    return
                if sent is not None:
                    yield commands.SendData(target.conn, target.ws.send(sent))
                if isinstance(received, CloseConnection):
                    answer = CloseConnection(code=received.code)
                    yield commands.SendData(source.conn, source.ws.send(answer))
                    yield from self._end(None)
                    return
                if self._turn.is_over(self):
                    return
        except (ProtocolError, UnicodeError):
            yield from self._end(Reason.PROTOCOL_REFUSED)

    def _relay(
        self, received: wsproto.events.Event, source: _Side, from_client: bool
    ) -> wsproto.events.Event | Deny | None:
        if isinstance(received, Message):
            return self._fragment(received, source)
        if isinstance(received, Ping | Pong):
            payload = self._call.websocket_control(bytes(received.payload), from_client=from_client)
            if isinstance(payload, Deny):
                return payload
            return type(received)(payload=payload)
        if isinstance(received, CloseConnection):
            reason = self._call.websocket_control((received.reason or "").encode(), from_client=from_client)
            if isinstance(reason, Deny):
                return reason
            return CloseConnection(code=received.code, reason=reason.decode(errors="replace") or None)
        return None

    def _fragment(self, received: Message[Any], source: _Side) -> wsproto.events.Event | Deny | None:
        """One fragment in, at most one out."""
        is_text = isinstance(received.data, str)
        raw = received.data.encode() if isinstance(received.data, str) else bytes(received.data)
        out = source.filter.feed(raw)
        if isinstance(out, Deny):
            return out
        if received.message_finished:
            rest = source.filter.end_message()
            if isinstance(rest, Deny):
                return rest
            out += rest
        elif not out:
            return None
        if is_text:
            text = source.decoder.decode(out, received.message_finished)
            return TextMessage(data=text, message_finished=received.message_finished)
        return BytesMessage(data=out, message_finished=received.message_finished)

    def _end(self, reason: Reason | None) -> Generator:
        self._call.complete(reason)
        self._flow.live = False
        self._handle_event = self._done  # type: ignore[method-assign,assignment]
        yield commands.CloseConnection(self.context.server)
        yield commands.CloseConnection(self.context.client)

    def _done(self, _: events.Event) -> Generator:
        yield from ()
