"""In the supervisor: keeps the state of all streams in one channel, without I/O: bytes in, events out.

Symmetric: the host's side judges a guest, and the guest's side lets a test be one. Every rule that the peer
breaks is a `Violation`; after it the channel is over, so no state needs mending.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from coatcheck.launcher.frames import (
    FRAME_COST,
    MAX_FIELDS,
    MAX_NOTE,
    MAX_OPEN,
    MAX_PAYLOAD,
    MORE,
    PROTOCOL,
    RESYNC,
    STDERR,
    WINDOW,
    Fields,
    Frame,
    FrameReader,
    Kind,
    Rule,
    Violation,
    decode_fields,
    encode,
    encode_fields,
    first,
)

MAX_GUEST_STREAMS = 512
"""Streams that a guest holds open at a time: more than a browser opens, and at most 128 MiB unread."""
LAST_STREAM = 2**32 - 1

_CREDIT = struct.Struct(">I")


class Side(Enum):
    """Whose mux it is. Streams of the host have odd numbers, the guest's even ones, each increasing."""

    HOST = 1
    GUEST = 2

    @property
    def other(self) -> "Side":
        return Side.GUEST if self is Side.HOST else Side.HOST


@dataclass(frozen=True, slots=True)
class Greeted:
    """The peer's HELLO: its first frame, and its only one on stream 0."""

    fields: Fields


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream."""

    stream: int
    kind: str
    fields: Fields


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes on a stream, within the credit that we gave; give it back with `Mux.consumed`."""

    stream: int
    data: bytes
    flags: int


@dataclass(frozen=True, slots=True)
class Credited:
    """The peer takes more bytes on a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The peer sends no more bytes on a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class WasReset:
    """The peer dropped a stream: nothing goes either way any more."""

    stream: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Fields beside a stream's bytes: a signal, a size, how a command ended."""

    stream: int
    fields: Fields


type Event = Greeted | Opened | Data | Credited | Ended | WasReset | Noted


@dataclass(slots=True)
class _Flow:
    """One stream that is open in at least one direction."""

    may_send: int = WINDOW
    may_receive: int = WINDOW
    we_ended: bool = False
    peer_ended: bool = False


def cost(length: int) -> int:
    """Credit that a DATA frame of `length` bytes takes."""
    return length + FRAME_COST


class Mux:
    """One side of a channel."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._reader = FrameReader()
        self.flows: dict[int, _Flow] = {}
        self._greeted = False
        self.last = {side: 0, side.other: 0}
        self._opening: tuple[int, bytearray] | None = None

    # ------------------------------------------------------------------------------------ receiving

    def receive(self, data: bytes) -> Iterator[Event]:
        """Events of the frames that `data` completes. Violation ends it, and the channel."""
        for frame in self._reader.feed(data):
            event = self._judge(frame)
            if event is not None:
                yield event

    def _judge(self, frame: Frame) -> Event | None:
        if frame.kind is Kind.HELLO:
            return self._hello(frame)
        if not self._greeted:
            raise Violation(Rule.HELLO_FIRST, f"{frame.kind.name} came before HELLO")
        if frame.kind is Kind.OPEN:
            return self._open(frame)
        if self._opening is not None:
            raise Violation(Rule.MALFORMED_FRAME, "an OPEN was not finished")
        if frame.flags & ~(STDERR if frame.kind is Kind.DATA and frame.stream % 2 else 0):
            raise Violation(Rule.UNEXPECTED_FLAGS, f"{frame.flags:#x} on {frame.kind.name}")
        flow = self.flows.get(frame.stream)
        if flow is None:
            # What crossed our RESET or last END on its way is no lie; a number never used is one.
            if not 0 < frame.stream <= self.last[self._owner(frame.stream)]:
                raise Violation(Rule.STREAM_NEVER_OPENED, f"{frame.kind.name} on {frame.stream}")
            return None
        match frame.kind:
            case Kind.DATA:
                return self._data(frame, flow)
            case Kind.WINDOW:
                return self._window(frame, flow)
            case Kind.END:
                return self._end(frame, flow)
            case Kind.RESET:
                fields = _small(frame)
                del self.flows[frame.stream]
                return WasReset(frame.stream, first(fields, "reason"), first(fields, "message"))
            case _:
                fields = _small(frame)
                if self._owner(frame.stream) is Side.GUEST:
                    # They are about commands and files, which the host asks for. Nobody would read them here.
                    raise Violation(Rule.TOO_MANY_NOTES, f"one on {frame.stream}, which the guest opened")
                return Noted(frame.stream, fields)

    def _owner(self, stream: int) -> Side:
        return Side.HOST if stream % 2 else Side.GUEST

    def _hello(self, frame: Frame) -> Event:
        resync = self._side is Side.GUEST and frame.flags == RESYNC
        if self._greeted and not resync:
            raise Violation(Rule.HELLO_ONCE, "a second HELLO")
        if frame.stream or (frame.flags and not resync):
            raise Violation(Rule.STREAM_ID, f"HELLO on stream {frame.stream}")
        fields = _small(frame)
        if first(fields, "protocol") != PROTOCOL:
            raise Violation(Rule.PROTOCOL_VERSION, f"not {PROTOCOL}; build its image again")
        if resync:
            self.flows.clear()
            self.last = dict.fromkeys(Side, 0)
        self._greeted = True
        return Greeted(fields)

    def _open(self, frame: Frame) -> Event | None:
        peer = self._side.other
        # Only the host's OPEN is long enough to need a second frame.
        if frame.flags & ~(MORE if peer is Side.HOST else 0):
            raise Violation(Rule.UNEXPECTED_FLAGS, f"{frame.flags:#x} on OPEN")
        if self._opening is None:
            if self._owner(frame.stream) is not peer or frame.stream <= self.last[peer]:
                raise Violation(Rule.STREAM_ID, f"OPEN {frame.stream} after {self.last[peer]}")
            if peer is Side.GUEST and self.open_by(peer) >= MAX_GUEST_STREAMS:
                raise Violation(Rule.TOO_MANY_STREAMS, f"{MAX_GUEST_STREAMS} are open")
            self._opening = (frame.stream, bytearray())
        stream, collected = self._opening
        if frame.stream != stream:
            raise Violation(Rule.MALFORMED_FRAME, "an OPEN was not finished")
        collected += frame.payload
        if len(collected) > (MAX_OPEN if peer is Side.HOST else MAX_NOTE):
            raise Violation(Rule.OVERSIZED_FRAME, f"OPEN with {len(collected)} bytes of fields")
        if frame.flags & MORE:
            return None
        self._opening = None
        fields = decode_fields(bytes(collected), None if peer is Side.HOST else MAX_FIELDS)
        if not fields or fields[0][0] != "kind":
            raise Violation(Rule.MALFORMED_FIELDS, "an OPEN begins with its kind")
        self.last[peer] = stream
        self.flows[stream] = _Flow()
        return Opened(stream, fields[0][1], fields[1:])

    def _data(self, frame: Frame, flow: _Flow) -> Event:
        if not frame.payload:
            raise Violation(Rule.MALFORMED_FRAME, "DATA without bytes")
        if flow.peer_ended:
            raise Violation(Rule.AFTER_END, f"DATA on {frame.stream}")
        flow.may_receive -= cost(len(frame.payload))
        if flow.may_receive < 0:
            raise Violation(Rule.WINDOW_EXCEEDED, f"{-flow.may_receive} too many on {frame.stream}")
        return Data(frame.stream, frame.payload, frame.flags)

    def _window(self, frame: Frame, flow: _Flow) -> Event:
        if len(frame.payload) != _CREDIT.size:
            raise Violation(Rule.MALFORMED_FRAME, "a WINDOW has four bytes")
        (credit,) = _CREDIT.unpack(frame.payload)
        flow.may_send += credit
        if flow.may_send > WINDOW:
            raise Violation(Rule.CREDIT_EXCEEDED, f"{credit} more on {frame.stream}")
        return Credited(frame.stream)

    def _end(self, frame: Frame, flow: _Flow) -> Event:
        if frame.payload:
            raise Violation(Rule.MALFORMED_FRAME, "an END with bytes")
        if flow.peer_ended:
            raise Violation(Rule.AFTER_END, f"a second END on {frame.stream}")
        flow.peer_ended = True
        self._forget_if_over(frame.stream, flow)
        return Ended(frame.stream)

    def _forget_if_over(self, stream: int, flow: _Flow) -> None:
        if flow.we_ended and flow.peer_ended:
            del self.flows[stream]

    # -------------------------------------------------------------------------------------- sending

    def open_by(self, side: Side) -> int:
        """How many streams that `side` opened are not over."""
        return sum(1 for stream in self.flows if self._owner(stream) is side)

    def is_open(self, stream: int) -> bool:
        """Whether anything can still be sent or come on it."""
        return stream in self.flows

    def may_send(self, stream: int) -> int:
        """Bytes that a DATA frame may carry on `stream` now; 0 when it has to wait, or is over."""
        flow = self.flows.get(stream)
        if flow is None or flow.we_ended:
            return 0
        return max(0, min(MAX_PAYLOAD, flow.may_send - FRAME_COST))

    def hello(self, fields: Iterable[tuple[str, str]], flags: int = 0) -> bytes:
        """Our HELLO; the protocol's version is put in front."""
        return encode(Kind.HELLO, 0, encode_fields((("protocol", PROTOCOL), *fields)), flags)

    def open(self, kind: str, fields: Iterable[tuple[str, str]]) -> tuple[int, bytes]:
        """A new stream's number, and its OPEN. ValueError when the fields are longer than allowed."""
        payload = encode_fields((("kind", kind), *fields))
        most = MAX_OPEN if self._side is Side.HOST else MAX_NOTE
        if len(payload) > most:
            raise ValueError(f"arguments and environment take {len(payload)} bytes, {most} are allowed")
        stream = self.last[self._side] + (2 if self.last[self._side] else self._side.value)
        if stream > LAST_STREAM:
            raise ValueError("this channel has opened all the streams that it can")
        self.last[self._side] = stream
        self.flows[stream] = _Flow()
        pieces = [payload[at : at + MAX_PAYLOAD] for at in range(0, len(payload), MAX_PAYLOAD)]
        *earlier, last = pieces
        return stream, b"".join(
            [*(encode(Kind.OPEN, stream, piece, MORE) for piece in earlier), encode(Kind.OPEN, stream, last)]
        )

    def data(self, stream: int, data: bytes, flags: int = 0) -> bytes:
        """DATA, of at most `may_send(stream)` bytes."""
        if not 0 < len(data) <= self.may_send(stream):
            raise ValueError(f"{len(data)} bytes, and {self.may_send(stream)} may be sent")
        self.flows[stream].may_send -= cost(len(data))
        return encode(Kind.DATA, stream, data, flags)

    def consumed(self, stream: int, credit: int) -> bytes:
        """WINDOW: `credit` (see `cost`) of received DATA was used up. Empty when nobody waits for it."""
        flow = self.flows.get(stream)
        if flow is None or flow.peer_ended:
            return b""
        flow.may_receive += credit
        return encode(Kind.WINDOW, stream, _CREDIT.pack(credit))

    def end(self, stream: int) -> bytes:
        """END, once; empty when there is nothing to end."""
        flow = self.flows.get(stream)
        if flow is None or flow.we_ended:
            return b""
        flow.we_ended = True
        self._forget_if_over(stream, flow)
        return encode(Kind.END, stream)

    def reset(self, stream: int, reason: str, message: str = "") -> bytes:
        """RESET; empty when the stream is over already."""
        if self.flows.pop(stream, None) is None:
            return b""
        fields = [("reason", reason), *([("message", message[:1024])] if message else [])]
        return encode(Kind.RESET, stream, encode_fields(fields))

    def note(self, stream: int, fields: Iterable[tuple[str, str]]) -> bytes:
        """NOTE; empty when the stream is over. ValueError when the fields are longer than allowed."""
        payload = encode_fields(fields)
        if len(payload) > MAX_NOTE:
            raise ValueError(f"a note holds {MAX_NOTE} bytes, not {len(payload)}")
        return encode(Kind.NOTE, stream, payload) if stream in self.flows else b""


def _small(frame: Frame) -> Fields:
    if len(frame.payload) > MAX_NOTE:
        raise Violation(Rule.OVERSIZED_FRAME, f"{frame.kind.name} with {len(frame.payload)} bytes of fields")
    return decode_fields(frame.payload, MAX_FIELDS)
