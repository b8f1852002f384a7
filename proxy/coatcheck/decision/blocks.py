"""Cuts a decoded body into pieces that say nothing of how it was compressed.

If a page holds a secret beside what a sandbox sent, it compresses better the more of the secret the sandbox
guessed (BREACH). So decoded bytes leave in blocks of one size, whatever the size of the chunks that came, and
a shorter page leaves at its end. Streams of lines leave line by line, because their blocks might never fill.
"""

from typing import Final

BLOCK: Final = 262_144
"""Bytes. Pages that quote what was sent to them are shorter; as much as may wait for one receiver anyway."""

_LINES: Final = frozenset(
    {
        "application/json-seq",
        "application/jsonl",
        "application/ndjson",
        "application/x-ndjson",
        "text/event-stream",
    }
)


class Blocks:
    """`put` what was decoded, in order, then take the `rest`."""

    __slots__ = ("_lines", "_waiting")

    def __init__(self, content_type: str) -> None:
        self._lines = content_type.partition(";")[0].strip(" \t").lower() in _LINES
        self._waiting = bytearray()

    def put(self, piece: bytes) -> list[bytes]:
        """The pieces that are complete with this one."""
        looked_at = len(self._waiting)
        self._waiting += piece
        ready = []
        if self._lines:
            while (end := self._waiting.find(b"\n", looked_at)) >= 0:
                ready += self._take(end + 1)
                looked_at = 0
        while len(self._waiting) >= BLOCK:
            ready += self._take(BLOCK)
        return ready

    def rest(self) -> list[bytes]:
        return self._take(len(self._waiting))

    def _take(self, count: int) -> list[bytes]:
        piece = bytes(self._waiting[:count])
        del self._waiting[:count]
        return [piece[at : at + BLOCK] for at in range(0, len(piece), BLOCK)]
