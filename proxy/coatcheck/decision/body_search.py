"""Finds handles in a streamed body, across any split into chunks, and masks them where policy says so.

In a body a handle is inert text (I4): an agent that prints its environment puts its handles into the
model's context, and refusing that would break every later request. So bodies are watched, not judged.
Only verbatim handles are looked for: their characters need no escape in JSON, forms or multipart.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from heapq import merge
from typing import Final, NamedTuple

from coatcheck.decision.handle import MAX_CHARS, PREFIX
from coatcheck.decision.policy import Shape
from coatcheck.decision.search import MARK, Known, never

MAX_REPORTED: Final = 64
"""Different handles reported a body; a session has few, and past this the alarm was raised anyway."""
_RUN: Final = re.compile(rb"[A-Za-z0-9_.-]{0,%d}" % (MAX_CHARS - len(MARK)))


class _Mark(NamedTuple):
    """How a kind of handle begins."""

    text: bytes
    candidates: re.Pattern[bytes]
    """Finds where a handle begins, or where the data ends too early to tell. It takes one step for each mark.
    Searching all that follows for every one of them once froze the daemon for 31 s."""
    length: int
    """Of what follows the mark of a reference; 0: a signed handle, whose length varies."""


@lru_cache(maxsize=64)
def _marks(references: tuple[Shape, ...]) -> tuple[tuple[_Mark, ...], frozenset[bytes], int]:
    """All marks, every proper beginning of one, and the longest beginning's length."""
    marks = [_mark(MARK.encode(), rb"[A-Za-z0-9_.-]|\Z", 0)]
    for shape in references:
        follows = rb"[A-Za-z0-9]{%d}|[A-Za-z0-9]{0,%d}+\Z" % (shape.length, shape.length - 1)
        marks.append(_mark(shape.prefix.encode(), follows, shape.length))
    beginnings = frozenset(mark.text[:length] for mark in marks for length in range(1, len(mark.text)))
    return tuple(marks), beginnings, max(map(len, beginnings))


def _mark(text: bytes, follows: bytes, length: int) -> _Mark:
    # One byte is consumed, the rest is looked at: marks may overlap themselves.
    rest = re.escape(text[1:])
    return _Mark(text, re.compile(re.escape(text[:1]) + rb"(?=%b(?:%b))" % (rest, follows)), length)


def _starts(mark: _Mark, index: int, data: bytes, first: int) -> Iterator[tuple[int, int]]:
    for match in mark.candidates.finditer(data, first):
        yield match.start(), index


class BodySearch:
    """Feed it a body's chunks in order, then `close`.

    Without `masking` every chunk is returned as it came, at once. With it, handles become `cch_***…` of
    the same length, so that framing and Content-Length stay true; held back is only what may be the
    beginning of a handle, at most MAX_CHARS bytes.
    """

    def __init__(
        self, references: tuple[Shape, ...] = (), known: Known = never, *, masking: bool = False
    ) -> None:
        self._known = known
        self._masking = masking
        self._held = b""
        self._reported: set[bytes] = set()
        self._new: list[str] = []
        self._marks, self._beginnings, self._longest_beginning = _marks(references)

    def feed(self, chunk: bytes) -> bytes:
        out = self._scan(chunk, end=False)
        return out if self._masking else chunk

    def close(self) -> bytes:
        """The rest of a masked body, nothing otherwise."""
        out = self._scan(b"", end=True)
        return out if self._masking else b""

    def take(self) -> tuple[str, ...]:
        """The handles found since the last call, each once a body. Ask `claims_of` what they are."""
        new = tuple(self._new)
        self._new.clear()
        return new

    def _scan(self, chunk: bytes, *, end: bool) -> bytes:
        data = self._held + chunk if self._held else chunk
        self._held = b""
        out: list[bytes] = []
        done = 0
        for start, mark in self._candidates(data):
            if start < done:
                continue
            stop = self._stop(data, start, mark, end=end)
            if stop is None:
                self._held = data[start:]
                out.append(data[done:start])
                return b"".join(out)
            if not stop:
                continue
            text = data[start:stop].decode()
            self._report(text)
            kept = start + (len(PREFIX) if text.startswith(MARK) else 0)
            out.append(data[done:kept] + b"*" * (stop - kept))
            done = stop
        rest = len(data) if end else max(done, len(data) - self._beginning(data))
        self._held = data[rest:]
        out.append(data[done:rest])
        return b"".join(out)

    def _candidates(self, data: bytes) -> Iterator[tuple[int, _Mark]]:
        """Where handles may begin, in order. Several marks may begin at one place (`sk-` and `sk-ant-`); the
        first of them that makes a handle counts."""
        found = [
            _starts(mark, index, data, first)
            for index, mark in enumerate(self._marks)
            if (first := data.find(mark.text)) >= 0
        ]
        return ((start, self._marks[index]) for start, index in merge(*found))

    def _stop(self, data: bytes, start: int, mark: _Mark, *, end: bool) -> int | None:
        """Where the handle that begins at `start` ends; 0: there is none; None: what follows decides."""
        first = start + len(mark.text)
        if mark.length:
            stop = first + mark.length
            if stop > len(data):
                return 0 if end else None
            return stop if self._known(data[start:stop].decode()) else 0
        run = _RUN.match(data, first)
        stop = run.end() if run else first
        if stop == len(data) and stop - start < MAX_CHARS and not end:
            return None
        return stop if stop > first else 0

    def _beginning(self, data: bytes) -> int:
        """How many last bytes may be the beginning of a mark."""
        for length in range(min(self._longest_beginning, len(data)), 0, -1):
            if data[-length:] in self._beginnings:
                return length
        return 0

    def _report(self, text: str) -> None:
        digest = sha256(text.encode()).digest()
        if digest not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(digest)
            self._new.append(text)
