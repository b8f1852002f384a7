"""Where messages end in a body that is a row of them, each after its length: gRPC, Connect, AWS streams.

The scrubber holds a body's last bytes back until it is known what follows. A stream of lines does not
notice, as a line's end lets all before it go; a message in an envelope ends with any byte, and would wait
for the next one. Its receiver waits for the whole message, so at an envelope's end everything leaves.
"""

from typing import Final, Self

_EVENT_STREAM: Final = "application/vnd.amazon.eventstream"
_SHORTEST_EVENT: Final = 16
"""Bytes: two lengths, a checksum of them, and one of the whole message."""


class Envelopes:
    """Follows the envelopes through a body's chunks."""

    __slots__ = ("_event_stream", "_header", "_left", "_size")

    def __init__(self, *, event_stream: bool) -> None:
        self._event_stream = event_stream
        self._size = 4 if event_stream else 5  # gRPC's: a flag, then four bytes of length
        self._header = b""
        self._left: int | None = 0
        """Bytes of the message that are still to come; None: not envelopes after all."""

    @classmethod
    def of(cls, content_type: str) -> Self | None:
        """None for bodies that are no such rows."""
        media = content_type.partition(";")[0].strip(" \t").lower()
        if media == _EVENT_STREAM:
            return cls(event_stream=True)
        if media.startswith("application/grpc-web-text"):
            return None  # base64 of the envelopes
        if media.startswith(("application/grpc", "application/connect+")):
            return cls(event_stream=False)
        return None

    def last_end(self, chunk: bytes) -> int:
        """After how many bytes of `chunk` the last message ends that ends in it; 0: none does."""
        at = end = 0
        while self._left is not None:
            step = min(self._left, len(chunk) - at)
            at, self._left = at + step, self._left - step
            if self._left:
                break
            if step:
                end = at
            if at == len(chunk):
                break
            header = chunk[at : at + self._size - len(self._header)]
            self._header += header
            at += len(header)
            if len(self._header) == self._size:
                self._left = self._length()
                self._header = b""
                if self._left == 0:
                    end = at
        return end

    def _length(self) -> int | None:
        """How many bytes follow this header."""
        length = int.from_bytes(self._header[-4:], "big")
        if not self._event_stream:
            return length
        return length - self._size if length >= _SHORTEST_EVENT else None
