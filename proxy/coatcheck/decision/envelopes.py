"""Bodies that are a row of messages, each after its length: gRPC, Connect, AWS event streams.

The scrubber holds a body's last bytes back until it knows what follows. That does not delay a stream of
lines, because everything up to a line's end leaves. A message in an envelope may end with any byte, and would
wait for the next message while its receiver waits for it. So at an envelope's end everything leaves.

gRPC and Connect compress messages one by one and mark that with a bit in the envelope. Such a message is
decompressed, since no secret could be found in it otherwise, and leaves in an envelope without that bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from coatcheck.decision.content_coding import CodingRefused, Decoder

_EVENT_STREAM: Final = "application/vnd.amazon.eventstream"
_SHORTEST_EVENT: Final = 16
"""Bytes: two lengths, a checksum of them, and one of the whole message."""
LONGEST_COMPRESSED: Final = 4 * 1024 * 1024
"""Bytes of one compressed message: what receivers of gRPC take by default. It is kept until it is whole."""
LONGEST: Final = 0x1FFF_FFFF
"""Bytes of a message. A longer one is no message: the length's first byte would be a character of a text, and
an envelope that a forged length puts into a secret would leave with five of its letters."""
_COMPRESSED: Final = 1
_UNCOMPRESSED: Final = frozenset({0, 2, 0x80})
"""Flags of messages that are not compressed; Connect's last message has 2, the trailers of gRPC-Web 0x80."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What comes next: the envelope, which leaves as it is, some of the message in it, and whether it
    ends."""

    envelope: bytes
    message: bytes
    ends: bool


class Envelopes:
    """Follows the envelopes through a body's chunks."""

    __slots__ = ("_coding", "_compressed", "_event_stream", "_header", "_kept", "_left", "_size")

    def __init__(self, *, event_stream: bool, coding: tuple[str, ...] = ()) -> None:
        self._event_stream = event_stream
        self._size = 4 if event_stream else 5  # gRPC's: a flag, then four bytes of length
        self._coding = coding
        self._header = b""
        self._left: int | None = 0
        """Bytes of the message that are still to come; None: not envelopes after all."""
        self._compressed = False
        self._kept = bytearray()

    @classmethod
    def of(cls, content_type: str, coding: tuple[str, ...] = ()) -> Self | None:
        """None for bodies that are no such rows. `coding`: of messages that are compressed."""
        media = content_type.partition(";")[0].strip(" \t").lower()
        if media == _EVENT_STREAM:
            return cls(event_stream=True)
        if media.startswith("application/grpc-web-text"):
            return None  # base64 of the envelopes
        if media.startswith(("application/grpc", "application/connect+")):
            return cls(event_stream=False, coding=coding)
        return None

    def pieces(self, chunk: bytes) -> Iterator[Piece]:
        """`chunk` in pieces. Raises CodingRefused for a compressed message that cannot be undone."""
        at = 0
        while at < len(chunk):
            if self._left is None:
                yield Piece(b"", chunk[at:], ends=False)
                return
            envelope = b""
            if not self._left:
                header = chunk[at : at + self._size - len(self._header)]
                self._header += header
                at += len(header)
                if len(self._header) < self._size:
                    return
                envelope = self._opened()
                if self._is_no_row:  # what was read is no envelope: it is searched like the rest
                    yield Piece(b"", envelope + chunk[at:], ends=False)
                    return
            message = chunk[at : at + self._left]
            at += len(message)
            self._left -= len(message)
            if self._compressed:
                yield from self._keep(message)
            elif envelope or message:
                yield Piece(envelope, message, ends=self._left == 0)

    @property
    def _is_no_row(self) -> bool:
        return self._left is None

    def rest(self) -> bytes:
        """An envelope that never became whole."""
        return self._header

    def _opened(self) -> bytes:
        """The envelope of the message that begins, as it leaves: nothing yet, if the message is
        compressed."""
        envelope, self._header = self._header, b""
        length = int.from_bytes(envelope[-4:], "big")
        if self._event_stream:
            self._left = length - self._size if _SHORTEST_EVENT <= length <= LONGEST else None
            return envelope
        self._left = length
        self._compressed = bool(envelope[0] & _COMPRESSED)
        if not self._compressed:
            if envelope[0] not in _UNCOMPRESSED or length > LONGEST:
                self._left = None
            return envelope
        if not self._coding:
            raise CodingRefused("a compressed message of which no coding was named")
        if length > LONGEST_COMPRESSED:
            raise CodingRefused("a compressed message is too long")
        self._kept = bytearray([envelope[0] & ~_COMPRESSED])
        return b""

    def _keep(self, message: bytes) -> Iterator[Piece]:
        self._kept += message
        if self._left:
            return
        flag, coded = bytes(self._kept[:1]), bytes(self._kept[1:])
        self._compressed, self._kept = False, bytearray()
        decoder = Decoder(self._coding)
        plain = b"".join(decoder.decode(coded))
        decoder.finish()
        yield Piece(flag + len(plain).to_bytes(4, "big"), plain, ends=True)
