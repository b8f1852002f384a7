"""In the supervisor: reads and writes the guest protocol's frames and fields, one at a time, without
state.

docs/guest-protocol.md says what each means. What comes from a guest is hostile until `mux` has judged it.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum

PROTOCOL = "2"
"""The version that both HELLOs name."""
MAX_PAYLOAD = 32768
"""Bytes in one frame: small enough that a big transfer never keeps a small one waiting for long."""
WINDOW = 256 * 1024
"""Credit that each side of a stream starts with, and never holds more of."""
FRAME_COST = 64
"""Credit that a DATA frame costs beyond its payload: what one queued frame costs its keeper. Without
it a window of one-byte frames would take a hundred times its size in memory."""
MAX_NOTE = 4096
"""Bytes of fields in a NOTE or RESET, and in an OPEN or HELLO of the guest: they are not under credit."""
MAX_FIELDS = 16
"""Pairs in them. The longest that an agent sends has four; 4,096 bytes of empty ones cost 100 KB."""
MAX_OPEN = 256 * 1024
"""Bytes of fields in an OPEN of the host, over all its frames: argv and environment of a command."""

STDERR = 1
"""Flag of a DATA frame: these bytes were written to standard error."""
MORE = 1
"""Flag of an OPEN frame of the host: the fields go on in the next OPEN frame of the same stream."""
RESYNC = 1
"""Flag of a HELLO of the host: it speaks first, to a saved guest whose streams it never heard of."""

_HEADER = struct.Struct(">BBHI")
HEADER_SIZE = _HEADER.size

type Fields = tuple[tuple[str, str], ...]
"""Names and values in order; a name may come more than once (`arg`, `env`)."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    OPEN = 2
    DATA = 3
    WINDOW = 4
    END = 5
    RESET = 6
    NOTE = 7


class Rule(StrEnum):
    """What a violation broke."""

    UNKNOWN_FRAME = "unknown_frame"
    OVERSIZED_FRAME = "oversized_frame"
    UNEXPECTED_FLAGS = "unexpected_flags"
    MALFORMED_FIELDS = "malformed_fields"
    MALFORMED_FRAME = "malformed_frame"
    PROTOCOL_VERSION = "protocol_version"
    HELLO_FIRST = "hello_first"
    HELLO_ONCE = "hello_once"
    STREAM_ID = "stream_id"
    STREAM_NEVER_OPENED = "stream_never_opened"
    TOO_MANY_STREAMS = "too_many_streams"
    WINDOW_EXCEEDED = "window_exceeded"
    CREDIT_EXCEEDED = "credit_exceeded"
    AFTER_END = "after_end"
    TOO_MANY_NOTES = "too_many_notes"
    TOO_MANY_FIELDS = "too_many_fields"
    NOT_READING = "not_reading"


class Violation(Exception):
    """The peer broke a rule of the protocol; nothing that it says afterwards counts."""

    def __init__(self, rule: Rule, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it stood on the wire; `kind` is known, the rest is not judged."""

    kind: Kind
    flags: int
    stream: int
    payload: bytes


def encode(kind: Kind, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """One frame. ValueError when `payload` is longer than a frame may be."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a frame carries at most {MAX_PAYLOAD} bytes, not {len(payload)}")
    return _HEADER.pack(kind, flags, len(payload), stream) + payload


def encode_fields(fields: Iterable[tuple[str, str]]) -> bytes:
    """`name NUL value NUL` for each. ValueError for a NUL inside or an empty name.

    A value may hold surrogate escapes: a file name or argument need not be UTF-8.
    """
    encoded = bytearray()
    for name, value in fields:
        if not name or "\0" in name or "\0" in value:
            raise ValueError("a field's name is not empty, and no field holds a NUL byte")
        encoded += name.encode() + b"\0" + value.encode("utf-8", "surrogateescape") + b"\0"
    return bytes(encoded)


def decode_fields(payload: bytes, most: int | None = None) -> Fields:
    """The fields of a payload; Violation when it is not a sequence of them in UTF-8, or has over `most`."""
    if not payload:
        return ()
    try:
        words = payload.decode("utf-8").split("\0")
    except UnicodeDecodeError as error:
        raise Violation(Rule.MALFORMED_FIELDS, "not UTF-8") from error
    if words.pop() or len(words) % 2:
        raise Violation(Rule.MALFORMED_FIELDS, "not a sequence of names and values")
    if most is not None and len(words) > 2 * most:
        raise Violation(Rule.TOO_MANY_FIELDS, f"{len(words) // 2}, {most} are allowed")
    if "" in words[::2]:
        raise Violation(Rule.MALFORMED_FIELDS, "a field without a name")
    return tuple(zip(words[::2], words[1::2], strict=True))


def first(fields: Fields, name: str, default: str = "") -> str:
    """The first value of `name`."""
    return next((value for key, value in fields if key == name), default)


class FrameReader:
    """Cuts a byte stream into frames, however it was split. Keeps less than one frame."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes, one by one; Violation for a header that no frame has."""
        self.rest += data
        at = 0
        try:
            while len(self.rest) - at >= HEADER_SIZE:
                number, flags, length, stream = _HEADER.unpack_from(self.rest, at)
                if length > MAX_PAYLOAD:
                    raise Violation(Rule.OVERSIZED_FRAME, f"{length} bytes, {MAX_PAYLOAD} are allowed")
                if not Kind.HELLO <= number <= Kind.NOTE:
                    raise Violation(Rule.UNKNOWN_FRAME, f"type {number}")
                end = at + HEADER_SIZE + length
                if end > len(self.rest):
                    return
                with memoryview(self.rest) as view:
                    payload = bytes(view[at + HEADER_SIZE : end])
                at = end
                yield Frame(Kind(number), flags, stream, payload)
        finally:
            del self.rest[:at]
