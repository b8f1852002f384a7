"""HTTP/2 on both sides with flow control that reaches from one end to the other (I9).

mitmproxy opens every window to 2 GiB, takes in what a fast peer sends and keeps it for a slow one. Here a
peer gets credit for what it sent only once the other side has room, so a slow receiver stalls its own stream.
Reading goes on meanwhile: were it paused, the credit that the other direction waits for would not be read,
and two full directions would hold each other up for ever.
"""

from collections.abc import Callable
from typing import override

import h2.errors
import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.frame_buffer import FrameBuffer
from hyperframe.frame import Frame
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http._http2 import Http2Client, Http2Connection, Http2Server
from mitmproxy.proxy.layers.http._http_h2 import BufferedH2Connection

from coatcheck.decision.denial import Deny, Reason
from coatcheck.planes.mitm.link import Link
from coatcheck.planes.mitm.time_slice import Resume

STREAM_WINDOW = 262_144
"""Bytes that a peer may send on one stream without credit: 5 MB/s at 50 ms, and a bound for us."""
CONNECTION_WINDOW = 1_048_576
"""The same for all streams of a connection together: what one connection can make us hold at most."""
FRAME = 16_384
"""The protocol's smallest maximum: 64 CONTINUATION frames, as many as h2 takes, are then 1 MiB of head."""
FRAMES = 16
"""Handled before the time is looked at; the smallest ones take a twentieth of a millisecond each."""
RESETS = 200
"""Streams that a client may cancel before it has finished as many: rapid resets (CVE-2023-44487) cost the
client nothing and us a decision and a connection each."""


class Credit(events.Event):
    """A receiver may have room again."""


class _Frames(FrameBuffer):
    """Yields at most FRAMES each time it is iterated over; `more` is set when some may be left."""

    more = False
    _left = 0

    @override
    def __iter__(self) -> "_Frames":
        self._left, self.more = FRAMES, False
        return self

    @override
    def __next__(self) -> Frame:
        if not self._left:
            self.more = bool(self._data)
            raise StopIteration
        self._left -= 1
        return super().__next__()


class WindowedConnection(BufferedH2Connection):
    """Gives credit for received data only when `has_room(stream_id)`; the rest is in `owed`."""

    def __init__(self, config: H2Configuration, has_room: Callable[[int], bool]) -> None:
        super().__init__(config)
        self._has_room = has_room
        self.owed: dict[int, int] = {}
        self.incoming_buffer = self.frames = _Frames(server=not config.client_side)
        self.local_settings.initial_window_size = STREAM_WINDOW
        self.local_settings.max_frame_size = FRAME
        self.max_inbound_frame_size = FRAME
        self.local_settings.acknowledge()

    @override
    def initiate_connection(self) -> None:
        H2Connection.initiate_connection(self)
        self.increment_flow_control_window(CONNECTION_WINDOW - self.inbound_flow_control_window)

    @override
    def acknowledge_received_data(self, acknowledged_size: int, stream_id: int) -> None:
        if self._has_room(stream_id):
            super().acknowledge_received_data(acknowledged_size, stream_id)
        else:
            self.owed[stream_id] = self.owed.get(stream_id, 0) + acknowledged_size

    @override
    def receive_data(self, data: bytes) -> list[h2.events.Event]:
        """Data of one stream in one piece: each costs a way through all layers, and may wait in a queue."""
        pieces: list[h2.events.Event] = []
        for event in super().receive_data(data):
            last = pieces[-1] if pieces else None
            if (
                isinstance(event, h2.events.DataReceived)
                and isinstance(last, h2.events.DataReceived)
                and event.stream_id == last.stream_id
            ):
                last.data += event.data
                last.flow_controlled_length += event.flow_controlled_length
                last.stream_ended = event.stream_ended
            else:
                pieces.append(event)
        return pieces

    def give_owed_credit(self) -> None:
        """Give the credit that there is room for now. That of closed streams counts for the connection."""
        for stream_id in tuple(self.owed):
            if self._has_room(stream_id):
                super().acknowledge_received_data(self.owed.pop(stream_id), stream_id)


class _Windowed(Http2Connection):
    h2_conn: WindowedConnection
    _link: Link
    _end: events.ConnectionClosed | None = None
    """The connection's end, held back until what came before it is handled."""

    @override
    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, Credit):
            self.h2_conn.give_owed_credit()
            data = self.h2_conn.data_to_send()
            if data:
                yield commands.SendData(self.conn, data)
        elif isinstance(event, events.DataReceived | Resume):
            yield from self._read(event.data if isinstance(event, events.DataReceived) else b"")
            if self._end is not None and not self._link.time_slice.has_left(self):
                end, self._end = self._end, None
                yield from super()._handle_event(end)
        elif isinstance(event, events.ConnectionClosed) and self._link.time_slice.has_left(self):
            self._end = event
        else:
            yield from super()._handle_event(event)
        if self.h2_conn.owed:
            self._link.parsers.indebted.add(self)
        else:
            self._link.parsers.indebted.discard(self)

    def _read(self, data: bytes) -> layer.CommandGenerator[None]:
        yield from super()._handle_event(events.DataReceived(self.conn, data))
        while self.h2_conn.frames.more and not self._link.time_slice.is_over(self):
            yield from super()._handle_event(events.DataReceived(self.conn, b""))

    @override
    def close_connection(self, msg: str) -> layer.CommandGenerator[None]:
        self.h2_conn.owed.clear()
        self.h2_conn.frames.more = False
        self._link.parsers.indebted.discard(self)
        yield from super().close_connection(msg)


class BoundedHttp2Server(_Windowed, Http2Server):
    """The client's side."""

    def __init__(self, context: Context, link: Link) -> None:
        super().__init__(context)
        self._link = link
        self.h2_conn = WindowedConnection(
            self.h2_conf, lambda stream: link.backpressure.has_room(self.conn, stream)
        )
        self._requests = self._resets = 0

    @override
    def handle_h2_event(self, event: h2.events.Event) -> layer.CommandGenerator[bool]:
        if isinstance(event, h2.events.RequestReceived):
            self._requests += 1
        elif isinstance(event, h2.events.StreamReset):
            self._resets += 1
            if self._resets > RESETS and self._resets * 2 > self._requests:
                yield from self.protocol_error("too many resets", h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
                return True
        return (yield from super().handle_h2_event(event))

    @override
    def protocol_error(
        self, message: str, error_code: int = h2.errors.ErrorCodes.PROTOCOL_ERROR
    ) -> layer.CommandGenerator[None]:
        """Record it, and answer without the library's text, which quotes what was received."""
        self._link.admission.refuse_connection(
            Deny(Reason.FRAMING_REFUSED, "HTTP/2 that breaks its protocol")
        )
        yield from super().protocol_error("refused", error_code)


class BoundedHttp2Client(_Windowed, Http2Client):
    """The upstream's side."""

    def __init__(self, context: Context, link: Link) -> None:
        super().__init__(context)
        self._link = link
        self.h2_conn = WindowedConnection(self.h2_conf, self._has_room)
        self.h2_conn.local_settings.enable_push = 0
        self.h2_conn.local_settings.acknowledge()

    def _has_room(self, stream_id: int) -> bool:
        theirs = self.their_stream_id.get(stream_id)
        return theirs is None or self._link.backpressure.has_room(self.conn, theirs)
