"""Takes secrets out of what goes to the sandbox, chunk by chunk (I1).

A byte is masked if and only if some occurrence of some pattern covers it. That is a property of the
whole stream, so every split of it gives the same output, and where occurrences overlap nothing of
either remains. A mask has the length of what it covers, so that Content-Length framing holds.

What is held back says nothing about a secret: the trailing run of bytes that could stand in a pattern by
their kind, at most `longest pattern - 1`. Were it the longest suffix that begins a pattern, a sandbox could
send guesses through any upstream that shows them, look where its chunks are cut, and spell a secret letter by
letter (docs/adr/0024). A line's end, a brace or a blank ends such a run: events and lines leave at once.
"""

import sys
from collections.abc import Iterable
from typing import NoReturn, Self

from coatcheck.decision.encodings import encodings

MIN_SECRET_BYTES = 16
"""Shorter secrets would be found in innocent text; policy must say `scrub: off` for them."""

_MASK = b"*"
_WORD = 4
_MAX_STRIDE = 16  # words; longer steps save little and make the table larger
# Kinds of bytes. Letters, digits and what encodings write may always continue a pattern; of the others a
# whole kind does as soon as one of it stands in a pattern, so that no cut tells which one it is.
_ALWAYS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_.~%\\&#;"
_KINDS = (
    bytes(code for code in range(0x20, 0x7F) if code not in _ALWAYS),
    bytes((*range(0x20), 0x7F)),
    bytes(range(0x80, 0x100)),
)


class SecretTooShort(ValueError):
    """A secret of fewer than `MIN_SECRET_BYTES` bytes cannot be scrubbed. The message does not hold it."""


class Patterns:
    """Every form of every secret of one session, compiled. Build it once for a set of secrets and keep it.

    How it searches: if all patterns have 4n+3 bytes or more, every occurrence fully covers n consecutive
    aligned 4-byte words, of which exactly one has an index that n divides. So one word in n is looked
    up in a set of all words that can stand there: time does not depend on the number of patterns, and
    it is bounded whatever bytes an upstream sends. Patterns of which a word was found are searched for as
    a whole, which costs the same wherever and however often the word stands.
    """

    __slots__ = ("_inside", "_longest", "_lower_case", "_patterns", "_stride", "_table", "_words")

    def __init__(self, patterns: Iterable[bytes]) -> None:
        """Compile `patterns` as they are; `of` makes them from secrets. Each has 16 bytes or more."""
        self._patterns = sorted(set(patterns))
        self._lower_case: Patterns | None = None
        lengths = [len(pattern) for pattern in self._patterns] or [MIN_SECRET_BYTES]
        if min(lengths) < MIN_SECRET_BYTES:
            raise SecretTooShort(f"a secret has {min(lengths)} bytes; scrubbing needs {MIN_SECRET_BYTES}")
        self._longest = max(lengths)
        self._stride = min((min(lengths) - _WORD + 1) // _WORD, _MAX_STRIDE)
        table: dict[int, set[bytes]] = {}
        for pattern in self._patterns:
            for offset in range(self._stride * _WORD):
                word = int.from_bytes(pattern[offset : offset + _WORD], sys.byteorder)
                table.setdefault(word, set()).add(pattern)
        self._table = {word: tuple(owners) for word, owners in table.items()}
        self._words = frozenset(table)
        present = set().union(*self._patterns)
        self._inside = _ALWAYS + b"".join(kind for kind in _KINDS if not present.isdisjoint(kind))

    @classmethod
    def of(cls, secrets: Iterable[str | bytes], basic_usernames: Iterable[str] = ()) -> Self:
        """The patterns for all encodings of `secrets`, given exactly as they are put into requests.

        `basic_usernames` are the user names under which they are sent by Basic. Raises SecretTooShort.
        """
        usernames = tuple(basic_usernames)
        found: set[bytes] = set()
        for secret in secrets:
            raw = secret.encode("utf-8") if isinstance(secret, str) else secret
            found.update(encodings(raw, usernames) if len(raw) >= MIN_SECRET_BYTES else (raw,))
        return cls(found)

    @property
    def lower_case(self) -> "Patterns":
        """The same forms in lower case, for header names, which planes deliver so."""
        if self._lower_case is None:
            self._lower_case = Patterns(pattern.lower() for pattern in self._patterns)
        return self._lower_case

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def __len__(self) -> int:
        return len(self._patterns)

    def __repr__(self) -> str:
        return f"Patterns({len(self)} patterns)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Patterns hold secrets and are never serialised")

    def occurrences(self, data: bytes) -> list[tuple[int, int]]:
        """Start and end of every occurrence of every pattern in `data`, overlapping ones too, by start."""
        words = memoryview(data)[: len(data) & ~(_WORD - 1)].cast("I")[:: self._stride]
        hits = self._words.intersection(words)
        if not hits:
            return []
        found = []
        for pattern in {pattern for word in hits for pattern in self._table[word]}:
            start = data.find(pattern)
            while start >= 0:
                found.append((start, start + len(pattern)))
                start = data.find(pattern, start + 1)
        found.sort()
        return found

    def undecided(self, data: bytes) -> int:
        """How many last bytes of `data` wait for what follows: by their kinds, never by their values."""
        if not self._patterns:
            return 0
        tail = data[1 - self._longest :]
        return len(tail) - len(tail.rstrip(self._inside))


class Scrubber:
    """One stream's scrubbing: `feed` every chunk, then `finish`. `hits` counts what was masked so far,
    overlapping occurrences as one. After an abort do not call `finish`: what is held back must not leave."""

    __slots__ = ("_covered", "_patterns", "_pending", "hits")

    def __init__(self, patterns: Patterns) -> None:
        self.hits = 0
        self._patterns = patterns
        self._pending = b""
        self._covered = 0  # so many leading bytes of `_pending` belong to an occurrence already counted

    def look_for(self, patterns: Patterns) -> None:
        """From here on look for `patterns`, which hold all those from before and more."""
        self._patterns = patterns

    def feed(self, chunk: bytes) -> bytes:
        """What is decided once `chunk` has come; may be empty."""
        data = self._pending + chunk if self._pending else chunk
        return self._release(data, len(data) - self._patterns.undecided(data))

    def finish(self) -> bytes:
        """The rest, at the end of the stream."""
        return self._release(self._pending, len(self._pending))

    def _release(self, data: bytes, cut: int) -> bytes:
        """Mask and return `data[:cut]`. No occurrence that starts before `cut` can end after `data`:
        all of its bytes would be of the kinds that wait, and it is not longer than what waits."""
        occurrences = self._patterns.occurrences(data)
        self._pending = data[cut:]
        if not occurrences and not self._covered:
            return data[:cut]
        end = self._covered
        released = bytearray(data[:cut])
        released[: min(end, cut)] = _MASK * min(end, cut)
        for start, stop in occurrences:
            if start >= cut:
                break  # found again, and counted, when its bytes are released
            if start >= end:
                self.hits += 1
            end = max(end, stop)
            visible = min(stop, cut)
            released[start:visible] = _MASK * (visible - start)
        self._covered = max(0, end - cut)
        return bytes(released)


def scrub_bytes(patterns: Patterns, data: bytes) -> tuple[bytes, int]:
    """A whole message (a binary WebSocket message, a buffered body) without secrets, and the hits."""
    if not patterns.occurrences(data):
        return data, 0
    scrubber = Scrubber(patterns)
    return scrubber.feed(data) + scrubber.finish(), scrubber.hits


def scrub_text(patterns: Patterns, text: str) -> tuple[str, int]:
    """A header value, a URL or a text WebSocket message without secrets, and the hits.

    Header values are latin-1 text whose bytes may be UTF-8; both readings of a secret are patterns.
    """
    try:
        charset, data = "latin-1", text.encode("latin-1")
    except UnicodeEncodeError:
        charset, data = "utf-8", text.encode("utf-8", "surrogatepass")
    clean, hits = scrub_bytes(patterns, data)
    return (clean.decode(charset, "replace"), hits) if hits else (text, 0)
