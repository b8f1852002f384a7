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
from coatcheck.decision.outside import OutsideBytes
from coatcheck.decision.policy import Shape
from coatcheck.decision.search import MARK, Known, never

MAX_REPORTED: Final = 64
"""Different texts reported a body, since each may cost a signature check. A session has few handles; a body
with more is `crowded`, and the caller decides about it without knowing whether any of them is genuine."""
SHORTEST: Final = 200
"""Bytes of the shortest signed handle: where marks are denser than this, most of them begin nothing. The rest
of such a chunk is not looked at one by one, at a microsecond a byte, and the body counts as crowded."""
_MARK: Final = MARK.encode()
_RUN: Final = re.compile(rb"[A-Za-z0-9_.-]*")
_SIGNED: Final = re.compile(re.escape(MARK) + r"[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}")
"""A handle to the end of its Ed25519 signature, whose 64 bytes are 86 characters (RFC 8037)."""


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
    marks = [_mark(_MARK, rb"[A-Za-z0-9_.-]|\Z", 0)]
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


def _run_end(data: bytes, start: int) -> int:
    run = _RUN.match(data, start)
    return run.end() if run else start


def _stars(data: bytes, done: int, kept: int, masked: int, stop: int) -> bytes:
    """`data[done:stop]` with stars from `kept` to `masked`."""
    stars = b"*" * (min(masked, stop) - max(kept, done))
    return data[done : min(kept, stop)] + stars + data[max(masked, done) : stop]


class BodySearch:
    """Feed it a body's chunks in order, then `close`.

    Without `masking` every chunk is returned as it came, at once. With it, handles become `cch_***…` of
    the same length, so that framing and Content-Length stay true; held back is only what may be the
    beginning of a handle, at most MAX_CHARS bytes.

    Characters of a handle may stand right before and right behind one. So every mark begins a candidate of
    its own, also inside what began at an earlier mark: a decoy in front once hid the handle behind it.
    """

    def __init__(
        self, references: tuple[Shape, ...] = (), known: Known = never, *, masking: bool = False
    ) -> None:
        self._known = known
        self._masking = masking
        self._held = b""
        self._kept = self._masked = 0
        """Of what is held: up to where an earlier handle's prefix reaches, and where that handle ends."""
        self.crowded = False
        """Whether there were more different texts than MAX_REPORTED: any of the rest may be a handle."""
        self._reported: set[bytes] = set()
        self._new: list[str] = []
        self._marks, self._beginnings, self._longest_beginning = _marks(references)

    def feed(self, chunk: OutsideBytes) -> bytes:
        if self.crowded and not self._masking:
            return chunk  # it is known already that a handle may be in it
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
        out: list[bytes] = []
        done, kept, masked = 0, self._kept, self._masked
        run = reference = 0  # where the last run of a handle's characters ends, and the last reference
        rest = len(data)
        looks = 2 * MAX_REPORTED + len(data) // SHORTEST
        for start, mark in self._candidates(data):
            if start < reference:
                continue
            if not mark.length and run <= start:
                run = _run_end(data, start)  # once for all marks in it: looking again for each is quadratic
            stop = self._stop(data, start, mark, run, end=end)
            if stop is None:
                rest = start
                break
            if not stop:
                continue
            looks -= 1
            self.crowded = self.crowded or looks < 0
            if not self.crowded:
                self._report(data[start:stop])
            elif not self._masking:
                self._held = b""
                return b""
            if start >= masked:
                out.append(_stars(data, done, kept, masked, start))
                done = start
                kept = start + (len(PREFIX) if data.startswith(_MARK, start) else 0)
            masked = max(masked, stop)
            if mark.length:
                reference = stop
        else:
            if not end:
                rest = max(reference, len(data) - self._beginning(data))
        out.append(_stars(data, done, kept, masked, rest))
        self._held = data[rest:]
        self._kept, self._masked = max(kept - rest, 0), max(masked - rest, 0)
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

    def _stop(self, data: bytes, start: int, mark: _Mark, run: int, *, end: bool) -> int | None:
        """Where the handle that begins at `start` ends; 0: there is none; None: what follows decides."""
        first = start + len(mark.text)
        if mark.length:
            stop = first + mark.length
            if stop > len(data):
                return 0 if end else None
            return stop if self._known(data[start:stop].decode()) else 0
        stop = min(run, start + MAX_CHARS)
        if stop == len(data) and stop - start < MAX_CHARS and not end:
            return None
        return stop if stop > first else 0

    def _beginning(self, data: bytes) -> int:
        """How many last bytes may be the beginning of a mark."""
        for length in range(min(self._longest_beginning, len(data)), 0, -1):
            if data[-length:] in self._beginnings:
                return length
        return 0

    def _report(self, found: bytes) -> None:
        text = found.decode()
        signed = _SIGNED.match(text)
        if signed is not None:  # what stands behind the signature is no part of the handle
            text = signed[0]
        digest = sha256(text.encode()).digest()
        if digest in self._reported:
            return
        if len(self._reported) == MAX_REPORTED:
            self.crowded = True
            return
        self._reported.add(digest)
        self._new.append(text)
