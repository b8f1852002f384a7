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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Self

from coatcheck.decision.encodings import encodings

MIN_SECRET_BYTES = 16
"""Shorter secrets would be found in innocent text; policy must say `scrub: off` for them."""

MOST_RUNS = 64
"""Runs that a scrubber keeps until they are taken. A stream of echoes must not fill the memory."""

_MASK = b"*"
_WORD = 4
_MAX_STRIDE = 16  # words; longer steps save little and make the table larger
_SMALL_STRIDE = 4
# Kinds of bytes. Letters, digits and what encodings write may always continue a pattern; of the others a
# whole kind does as soon as one of it stands in a pattern, so that no cut tells which one it is.
_ALWAYS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_.~%\\&#;"
_KINDS = (
    bytes(code for code in range(0x20, 0x7F) if code not in _ALWAYS),
    bytes((*range(0x20), 0x7F)),
    bytes(range(0x80, 0x100)),
)


@dataclass(frozen=True, slots=True)
class Run:
    """Characters of a secret in a row that stood in an answer and were masked. It holds nothing of them."""

    secret: str
    """The name under which the secret is looked for; empty if it was given none."""
    length: int
    """Characters of the secret. Public structure (a prefix such as `ghp_`) does not count."""
    whole: bool
    """All of the secret, not a part that a cut or a quotation left."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A secret to look for, exactly as it is put into requests."""

    name: str
    """What a `Run` calls it. It appears in events and logs."""
    text: str | bytes = field(repr=False)


class SecretTooShort(ValueError):
    """A secret of fewer than `MIN_SECRET_BYTES` bytes cannot be scrubbed. The message does not hold it."""


@dataclass(frozen=True, slots=True)
class _Index:
    """Which patterns may be near: the words that can stand at each `stride`-th place, and whose they are."""

    words: frozenset[int]
    tables: tuple[dict[int, tuple[bytes, ...]], ...]
    stride: int

    def near(self, words: memoryview) -> Iterable[bytes]:
        """Of the patterns, those of which a word stands in the data."""
        hits = self.words.intersection(words[:: self.stride])
        return (pattern for table in self.tables for word in hits if word in table for pattern in table[word])


class Patterns:
    """Every form of every secret of one session, compiled. Build it once for a set of secrets and keep it.

    How it searches: if all patterns have 4n+3 bytes or more, every occurrence fully covers n consecutive
    aligned 4-byte words, of which exactly one has an index that n divides. So one word in n is looked
    up in a set of all words that can stand there: time does not depend on the number of patterns, and
    it is bounded whatever bytes an upstream sends. Patterns of which a word was found are searched for as
    a whole, which costs the same wherever and however often the word stands.
    """

    __slots__ = ("_indexes", "_inside", "_kinds", "_longest", "_lower_case", "_parts", "_patterns", "_runs")

    def __init__(
        self,
        patterns: Iterable[bytes],
        most_stride: int = _MAX_STRIDE,
        runs: Mapping[bytes, Run] | None = None,
    ) -> None:
        """Compile `patterns` as they are; `of` makes them from secrets. Each has 16 bytes or more. `runs`:
        what an occurrence of each is told as."""
        self._runs = dict(runs or {})
        self._patterns = sorted(set(patterns))
        lengths = [len(pattern) for pattern in self._patterns] or [MIN_SECRET_BYTES]
        if min(lengths) < MIN_SECRET_BYTES:
            raise SecretTooShort(f"a secret has {min(lengths)} bytes; scrubbing needs {MIN_SECRET_BYTES}")
        stride = min((min(lengths) - _WORD + 1) // _WORD, most_stride)
        table: dict[int, set[bytes]] = {}
        for pattern in self._patterns:
            for offset in range(stride * _WORD):
                word = int.from_bytes(pattern[offset : offset + _WORD], sys.byteorder)
                table.setdefault(word, set()).add(pattern)
        whole = {word: tuple(owners) for word, owners in table.items()}
        present: set[int] = set().union(*self._patterns)
        kinds = frozenset(kind for kind in _KINDS if not present.isdisjoint(kind))
        self._complete((_Index(frozenset(whole), (whole,), stride),), max(lengths), kinds, ())

    def _complete(
        self,
        indexes: "tuple[_Index, ...]",
        longest: int,
        kinds: frozenset[bytes],
        parts: "tuple[Patterns, ...]",
    ) -> None:
        self._indexes = indexes
        self._longest = longest
        self._kinds = kinds
        self._inside = _ALWAYS + b"".join(kinds)
        self._parts = parts
        self._lower_case: Patterns | None = None

    @classmethod
    def small(cls, secret: str, name: str = "") -> Self:
        """For one of many that are kept a short while: a quarter of the table, looked up more often."""
        forms = encodings(secret.encode(), ())
        return cls(forms, _SMALL_STRIDE, dict.fromkeys(forms, Run(name, len(secret), True)))

    @classmethod
    def together(cls, parts: "tuple[Patterns, ...]") -> Self:
        """`parts`, which are small, searched in one pass. Nothing is compiled again."""
        indexes = [index for part in parts for index in part._indexes]
        words = frozenset[int]().union(*(index.words for index in indexes))
        tables = tuple(table for index in indexes for table in index.tables)
        return cls._of_parts((_Index(words, tables, min(index.stride for index in indexes)),), parts)

    def beside(self, other: "Patterns") -> "Patterns":
        """This and `other`, each searched in a pass of its own. Nothing is compiled again."""
        return Patterns._of_parts((*self._indexes, *other._indexes), (self, other))

    @classmethod
    def _of_parts(cls, indexes: "tuple[_Index, ...]", parts: "tuple[Patterns, ...]") -> Self:
        made = cls.__new__(cls)
        made._patterns = []
        made._runs = {pattern: run for part in parts for pattern, run in part._runs.items()}
        kinds = frozenset[bytes]().union(*(part._kinds for part in parts))
        made._complete(indexes, max(part._longest for part in parts), kinds, parts)
        return made

    @classmethod
    def of(cls, secrets: Iterable[str | bytes | Sought], basic_usernames: Iterable[str] = ()) -> Self:
        """The patterns for all encodings of `secrets`, given exactly as they are put into requests.

        `basic_usernames` are the user names under which they are sent by Basic. Raises SecretTooShort.
        """
        usernames = tuple(basic_usernames)
        found: dict[bytes, Run] = {}
        for secret in secrets:
            sought = secret if isinstance(secret, Sought) else Sought("", secret)
            raw = sought.text.encode("utf-8") if isinstance(sought.text, str) else sought.text
            forms = encodings(raw, usernames) if len(raw) >= MIN_SECRET_BYTES else (raw,)
            found.update(dict.fromkeys(forms, Run(sought.name, len(sought.text), True)))
        return cls(found, runs=found)

    @property
    def lower_case(self) -> "Patterns":
        """The same forms in lower case, for header names, which planes deliver so."""
        if self._lower_case is None:
            if len(self._indexes) == 1 and self._parts:
                self._lower_case = Patterns.together(tuple(part.lower_case for part in self._parts))
            elif self._parts:
                one, other = self._parts
                self._lower_case = one.lower_case.beside(other.lower_case)
            else:
                lower = {pattern.lower() for pattern in self._patterns}
                runs = {pattern.lower(): run for pattern, run in self._runs.items()}
                self._lower_case = Patterns(lower, self._indexes[0].stride, runs)
        return self._lower_case

    def __bool__(self) -> bool:
        return bool(self._patterns) or any(self._parts)

    def __len__(self) -> int:
        return len(self._patterns) + sum(map(len, self._parts))

    def __repr__(self) -> str:
        return f"Patterns({len(self)} patterns)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Patterns hold secrets and are never serialised")

    def occurrences(self, data: bytes) -> list[tuple[int, int]]:
        """Start and end of every occurrence of every pattern in `data`, overlapping ones too, by start."""
        words = memoryview(data)[: len(data) & ~(_WORD - 1)].cast("I")
        found = []
        for pattern in {pattern for index in self._indexes for pattern in index.near(words)}:
            start = data.find(pattern)
            while start >= 0:
                found.append((start, start + len(pattern)))
                start = data.find(pattern, start + 1)
        found.sort()
        return found

    def run(self, occurrence: bytes) -> Run:
        """What an occurrence of a pattern is told as."""
        return self._runs.get(occurrence) or Run("", len(occurrence), True)

    def undecided(self, data: bytes) -> int:
        """How many last bytes of `data` wait for what follows: by their kinds, never by their values."""
        if not self:
            return 0
        tail = data[1 - self._longest :]
        return len(tail) - len(tail.rstrip(self._inside))


class Scrubber:
    """One stream's scrubbing: `feed` every chunk, then `finish`. `hits` counts what was masked so far,
    overlapping occurrences as one. After an abort do not call `finish`: what is held back must not leave."""

    __slots__ = ("_covered", "_patterns", "_pending", "_runs", "hits")

    def __init__(self, patterns: Patterns) -> None:
        self.hits = 0
        self._runs: list[Run] = []
        self._patterns = patterns
        self._pending = b""
        self._covered = 0  # so many leading bytes of `_pending` belong to an occurrence already counted

    def look_for(self, patterns: Patterns) -> None:
        """From here on look for `patterns`, which hold all those from before and more."""
        self._patterns = patterns

    def take_runs(self) -> tuple[Run, ...]:
        """What was masked since the last call: the first `MOST_RUNS`; `hits` counts all."""
        runs = tuple(self._runs)
        self._runs.clear()
        return runs

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
                if len(self._runs) < MOST_RUNS:
                    self._runs.append(self._patterns.run(data[start:stop]))
            end = max(end, stop)
            visible = min(stop, cut)
            released[start:visible] = _MASK * (visible - start)
        self._covered = max(0, end - cut)
        return bytes(released)


def scrub_bytes(patterns: Patterns, data: bytes) -> tuple[bytes, tuple[Run, ...]]:
    """A whole message (a binary WebSocket message, a buffered body) without secrets, and what was masked."""
    if not patterns.occurrences(data):
        return data, ()
    scrubber = Scrubber(patterns)
    return scrubber.feed(data) + scrubber.finish(), scrubber.take_runs()


def scrub_text(patterns: Patterns, text: str) -> tuple[str, tuple[Run, ...]]:
    """A header value, a URL or a text WebSocket message without secrets, and what was masked.

    Header values are latin-1 text whose bytes may be UTF-8; both readings of a secret are patterns.
    """
    try:
        charset, data = "latin-1", text.encode("latin-1")
    except UnicodeEncodeError:
        charset, data = "utf-8", text.encode("utf-8", "surrogatepass")
    clean, runs = scrub_bytes(patterns, data)
    return (clean.decode(charset, "replace"), runs) if runs else (text, ())
