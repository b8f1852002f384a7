"""Finds handles in a streamed body, across any split into chunks, and masks them where policy says so.

In a body a handle is inert text (I4): an agent that prints its environment puts its handles into the
model's context, and refusing that would break every later request. So bodies are watched, not judged.
Only verbatim handles are looked for: their characters need no escape in JSON, forms or multipart.
"""

from hashlib import sha256
from typing import Final

from coatcheck.decision.handle import BASE64URL, MAX_CHARS, PREFIX
from coatcheck.decision.policy import Shape
from coatcheck.decision.search import MARK, Known, never

MAX_REPORTED: Final = 64
"""Different handles reported a body; a session has few, and past this the alarm was raised anyway."""
_RUN: Final = (BASE64URL + ".").encode()
_ALNUM: Final = BASE64URL[:62].encode()


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
        # mark, its alphabet, how many characters follow at most, how many must
        self._marks: list[tuple[bytes, bytes, int, int]] = [(MARK.encode(), _RUN, MAX_CHARS - len(MARK), 1)]
        self._marks += [(s.prefix.encode(), _ALNUM, s.length, s.length) for s in references]
        self._longest_mark = max(len(mark) for mark, *_ in self._marks)

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
        position = 0
        while (start := self._next(data, position)) >= 0:
            length = self._length_at(data, start, end=end)
            if length is None:
                self._held = data[start:]
                out.append(data[done:start])
                return b"".join(out)
            if not length:
                position = start + 1
                continue
            text = data[start : start + length].decode()
            self._report(text)
            kept = len(PREFIX) if text.startswith(MARK) else 0
            out.append(data[done : start + kept] + b"*" * (length - kept))
            done = position = start + length
        rest = len(data) if end else max(done, len(data) - self._beginning(data))
        self._held = data[rest:]
        out.append(data[done:rest])
        return b"".join(out)

    def _next(self, data: bytes, position: int) -> int:
        """Where the first mark at or after `position` begins; negative: there is none."""
        first = -1
        for mark, *_ in self._marks:
            start = data.find(mark, position, len(data) if first < 0 else first + len(mark))
            if start >= 0:
                first = start
        return first

    def _length_at(self, data: bytes, start: int, *, end: bool) -> int | None:
        """Of the handle that begins at `start`; 0: none does; None: what follows decides.

        Several marks may begin there (`sk-` and `sk-ant-`); the first that makes a handle counts.
        """
        for mark, alphabet, most, least in self._marks:
            if not data.startswith(mark, start):
                continue
            first = start + len(mark)
            run = data[first : first + most]
            length = len(run) - len(run.lstrip(alphabet))
            if length < most and first + length == len(data) and not end:
                return None
            if length < least:
                continue
            if alphabet is _RUN or self._known(data[start : first + length].decode()):
                return len(mark) + length
        return 0

    def _beginning(self, data: bytes) -> int:
        """How many last bytes may be the beginning of a mark."""
        for length in range(min(self._longest_mark - 1, len(data)), 0, -1):
            tail = data[-length:]
            if any(mark.startswith(tail) and mark != tail for mark, *_ in self._marks):
                return length
        return 0

    def _report(self, text: str) -> None:
        digest = sha256(text.encode()).digest()
        if digest not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(digest)
            self._new.append(text)
