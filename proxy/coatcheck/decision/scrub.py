"""Takes secrets out of what goes to the sandbox, chunk by chunk (I1).

A character is masked if and only if it stands in `RUN` characters of a secret in a row, in some reading of
the stream (`readings`). A mask has the length of what it covers, so that Content-Length framing holds, and
blanks and line breaks between masked characters stay, so that the text around keeps its syntax.

A part of a secret is found in the same way as the whole, so it does not matter where a chunk, a message or a
quotation was cut. What was released last is searched again with what follows (`CONTEXT`). At a message's end
at most `RUN` - 1 characters of a secret can have left; the rest is masked in the next message.

What is held back must not tell what a secret begins with. So the trailing bytes that wait, at most `HELD`,
are chosen by their kind: letters, digits, and the kinds that occur in a secret. If the longest suffix that
begins a secret waited instead, a sandbox could send guesses through any upstream that returns them, see where
the chunks are cut, and learn a secret letter by letter (docs/adr/0024). A line's end, a brace or a blank ends
the run of bytes that wait, so events and lines leave at once.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from coatcheck.decision.encodings import RUN, Form, forms_of
from coatcheck.decision.readings import INTRODUCERS, REACH, Members, Places, Reading, readings, texts_of

MIN_SECRET_BYTES: Final = 16
"""Shorter secrets would be found in innocent text; policy must say `scrub: off` for them."""
CONTEXT: Final = REACH
"""Bytes before a chunk in which a run may have begun."""
CONTEXT_OF_MESSAGES: Final = 4096
"""The same in a row of messages: eleven characters in as many messages of 370 bytes."""
HELD: Final = 144
"""The most bytes that may wait: eleven characters that are written with up to thirteen bytes each."""
MOST_RUNS: Final = 64
"""Whole secrets that a scrubber keeps until they are taken, and as many parts: a stream of echoes must not
fill the memory, nor push out a part, which is counted."""

_MASK = b"*"
_WIDTHS: Final = (4, 8)
"""Bytes of a word: 4 for plain text, 8 for encodings, whose runs are longer because each letter says less."""
_STEP: Final = 8
"""Bytes between two words that are looked up: one of them lies within any `RUN` bytes."""
_SPREAD: Final = 0x9E3779B97F4A7C15
_SPARSE: Final = 32
"""Entries of the table for each word, so that few others fall on one that is taken."""
_MOST_HEADS: Final = 1 << 16
"""Words of which a set is made as well, which is faster than the table for a small text."""
_LONG: Final = 8192
"""Of a longer text only some runs are kept, so that a secret of a megabyte does not take hundreds of them."""
_SPARSEST: Final = 8
_NESTED: Final = 8
"""Echoes before one that may reach over it: what messages say under so many keys at once."""
# Kinds of bytes. Letters, digits and what encodings write may always continue a secret; of the others a
# whole kind does as soon as one of it stands in a secret, so that no cut tells which one it is.
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
    """All of the secret, or of one of its parts, and not what a cut or a quotation left."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A secret to look for, exactly as it is put into requests."""

    name: str
    """What a `Run` calls it. It appears in events and logs."""
    text: str | bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Found:
    """A run, and the indexes of all bytes that it was read from, in order."""

    run: Run
    encoding: str
    total: int
    """Characters of the secret, or of the part of it to which the run belongs."""
    places: Places


class SecretTooShort(ValueError):
    """A secret of fewer than `MIN_SECRET_BYTES` bytes cannot be scrubbed. The message does not hold it."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose text a run is taken from."""

    secret: str
    form: Form

    @property
    def run(self) -> int:
        """Characters of the text that say as much as `RUN` of the secret."""
        return math.ceil(RUN / self.form.density) if self.form.density < 1 else RUN


type _Words = NDArray[np.uint32 | np.uint64]
type _Runs = tuple[int, dict[bytes, _Owner]]


class _Index:
    """The runs of some texts, and a table that says quickly where one could be.

    Every run that stands in the data fully covers one of the words at multiples of `_STEP`. Those words are
    looked up in the table, all at once; the few that are in it are looked at in full.
    """

    __slots__ = ("_heads", "_shift", "_table", "_type", "runs", "width", "words")

    def __init__(self, width: int, words: "_Words", runs: "tuple[_Runs, ...]") -> None:
        """`width`: bytes of a word, so that `_STEP + width - 1` is no more than the shortest run."""
        self.width = width
        self._type = np.dtype(f"<u{width}")
        self.words = np.unique(words)
        self.runs = runs
        bits = max(10, (len(self.words) * _SPARSE).bit_length())
        self._shift = 8 * width - bits
        self._table = np.zeros(1 << bits, bool)
        self._table[self._entries(self.words)] = True
        self._heads: frozenset[int] | None = None

    def _entries(self, words: "_Words") -> "_Words":
        """Where words stand in the table: the upper bits of a product, which all bits of the word stir."""
        spread = words * self._type.type(_SPREAD & (1 << 8 * self.width) - 1)
        entries: _Words = np.right_shift(spread, self._type.type(self._shift))
        return entries

    @classmethod
    def of(cls, width: int, owners: Iterable[_Owner]) -> Self:
        words: list[_Words] = [np.zeros(0, np.dtype(f"<u{width}"))]
        runs: dict[int, dict[bytes, _Owner]] = {}
        seen: set[bytes] = set()
        for owner in owners:
            text, run = owner.form.text, owner.run
            if len(text) < run or text in seen:
                continue
            seen.add(text)
            step = min(_SPARSEST, 1 + len(text) // _LONG)
            starts = range(0, len(text) - run + 1, step)
            telling = [at for at in starts if len(set(text[at : at + run])) > 2]
            table = runs.setdefault(run, {})
            for at in telling or starts:
                table.setdefault(text[at : at + run], owner)
            letters = np.lib.stride_tricks.sliding_window_view(np.frombuffer(text, np.uint8), width)
            words.append(letters.copy().view(f"<u{width}").ravel())
        return cls(width, np.concatenate(words), tuple(runs.items()))

    def may_hold(self, data: bytes, words: list[int]) -> bool:
        """Whether a run stands in `data`; `words` are the first four bytes of those that are looked up."""
        if self._heads is None and len(self.words) <= _MOST_HEADS:
            self._heads = frozenset(self.words.view(np.uint32)[:: self.width // 4].tolist())
        if self._heads is not None and self._heads.isdisjoint(words):
            return False
        return bool(self.occurrences(data))

    def occurrences(self, data: bytes) -> list[tuple[int, _Owner]]:
        """Where a run begins in `data`, and whose it is, in order."""
        words = np.frombuffer(data, self._type, len(data) // self.width)[:: _STEP // self.width]
        hits = self._table.take(self._entries(words), mode="clip").nonzero()[0]
        if not len(hits):
            return []
        chosen = words[hits]
        nearest = self.words.searchsorted(chosen)
        nearest[nearest == len(self.words)] = 0
        found = {}
        for place in hits[self.words[nearest] == chosen].tolist():
            end = place * _STEP + self.width
            for length, runs in self.runs:
                for at in range(max(0, end - length), min(place * _STEP, len(data) - length) + 1):
                    owner = runs.get(data[at : at + length])
                    if owner is not None:
                        found[at] = owner
        return sorted(found.items(), key=lambda item: item[0])


class Patterns:
    """A set of secrets, compiled. Build it once and keep it."""

    __slots__ = (
        "_in_ascii",
        "_indexes",
        "_inside",
        "_kinds",
        "_literal",
        "_lower_case",
        "_owners",
        "_parts",
        "without",
    )

    def __init__(self, owners: Iterable[_Owner] = (), parts: "tuple[Patterns, ...]" = ()) -> None:
        self._owners: tuple[_Owner, ...] = tuple(owners)
        self._parts = parts
        self._lower_case: Patterns | None = None
        self.without: set[str] = set()
        """Names of headers, or their values, as they come together, that hold nothing of a secret: a host
        sends the same names with each answer, and often the same values."""
        present = frozenset[int]().union(*(owner.form.text for owner in self._owners))
        kinds = {kind for kind in _KINDS if not present.isdisjoint(kind)}
        self._kinds: frozenset[bytes] = frozenset(kinds.union(*(part._kinds for part in parts)))
        self._in_ascii = _KINDS[2] not in self._kinds
        self._inside = _ALWAYS + b"".join(self._kinds)
        literal = present.union(*(part._literal for part in parts))
        self._literal: bytes = bytes(mark for mark in INTRODUCERS if mark in literal)
        self._indexes = tuple(
            _Index.of(width, chosen)
            for width in _WIDTHS
            if (chosen := [owner for owner in self._owners if (owner.run > RUN) is (width > _WIDTHS[0])])
        )

    @classmethod
    def of(cls, secrets: Iterable[str | bytes | Sought]) -> Self:
        """`secrets`, given exactly as they are put into requests. Raises SecretTooShort."""
        owners = []
        for secret in secrets:
            sought = secret if isinstance(secret, Sought) else Sought("", secret)
            raw = sought.text.encode("utf-8") if isinstance(sought.text, str) else sought.text
            if len(raw) < MIN_SECRET_BYTES:
                raise SecretTooShort(f"a secret has {len(raw)} bytes; scrubbing needs {MIN_SECRET_BYTES}")
            owners += [_Owner(sought.name, form) for form in forms_of(raw)]
        return cls(owners)

    @classmethod
    def small(cls, secret: str, name: str = "") -> Self:
        """One of many that are kept a short while."""
        return cls.of([Sought(name, secret)])

    @classmethod
    def together(cls, parts: "tuple[Patterns, ...]") -> Self:
        """`parts`, searched in one pass. Nothing is compiled again."""
        made = cls(parts=parts)
        indexes = [index for part in parts for index in part._indexes]
        for width in _WIDTHS:
            chosen = [index for index in indexes if index.width == width]
            if chosen:
                words = np.concatenate([index.words for index in chosen])
                runs = tuple(runs for index in chosen for runs in index.runs)
                made._indexes = (*made._indexes, _Index(width, words, runs))
        return made

    def beside(self, other: "Patterns") -> "Patterns":
        """This and `other`, each looked up in tables of its own. Nothing is compiled again."""
        made = Patterns(parts=(self, other))
        made._indexes = (*self._indexes, *other._indexes)
        return made

    @property
    def lower_case(self) -> "Patterns":
        """The same forms in lower case, for header names, which planes deliver so."""
        if self._lower_case is None:
            lower = [_lower_case(owner) for owner in self._owners]
            parts = tuple(part.lower_case for part in self._parts)
            self._lower_case = Patterns.together(parts) if parts else Patterns(lower)
        return self._lower_case

    def __bool__(self) -> bool:
        return bool(self._owners) or any(self._parts)

    def __len__(self) -> int:
        return len(self._owners) + sum(map(len, self._parts))

    def __repr__(self) -> str:
        return f"Patterns({len(self)} forms)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Patterns hold secrets and are never serialised")

    def find(self, data: bytes) -> list[Found]:
        """Every run of a secret in any reading of `data`, by its first byte. What is read twice is found
        once."""
        found = self._found(data)
        return _each_once(found) if found else found

    def find_in_messages(self, data: bytes, first: int, seen: int, members: Members) -> list[Found]:
        """The same, with places in the whole of a row of messages. It goes on in `data` from `first` on, and
        `seen` bytes of that were searched before. What they say under one key is read as one text, too."""
        older = max(0, seen - CONTEXT)
        found = [replace(one, places=one.places + first + older) for one in self._found(data[older:])]
        values = members.together(data, first, seen)
        if values is not None:
            read = self._found(values.data)
            found += [replace(one, places=values.origins(one.places)) for one in read]
            if not read:
                members.hold_nothing()
        return _each_once(found) if found else found

    def _found(self, data: bytes) -> list[Found]:
        if not self._indexes or len(data) < RUN or not self._may_hold(data):
            return []
        texts = readings(data, self._literal, in_ascii=self._in_ascii)
        return [one for reading in texts for one in self._in(reading)]

    def _may_hold(self, data: bytes) -> bool:
        """False only if no reading of `data` holds a run."""
        texts = texts_of(data, self._literal, in_ascii=self._in_ascii)
        if texts is None:
            return True
        together = b"\n".join(texts)
        words = memoryview(together)[: len(together) // 4 * 4].cast("I")[:: _STEP // 4].tolist()
        return any(index.may_hold(together, words) for index in self._indexes)

    def _in(self, reading: Reading) -> Iterable[Found]:
        for index in self._indexes:
            occurrences = index.occurrences(reading.data)
            at = 0
            while at < len(occurrences):
                start, owner = occurrences[at]
                end, most = start, _SPARSEST if len(owner.form.text) >= _LONG else 1
                while (
                    at < len(occurrences) and occurrences[at][1] is owner and occurrences[at][0] <= end + most
                ):
                    end = occurrences[at][0]
                    at += 1
                yield _found(reading, start, end + owner.run, owner)

    def undecided(self, data: bytes) -> int:
        """How many last bytes of `data` wait for what follows: by their kinds, never by their values."""
        if not self:
            return 0
        tail = data[-HELD:]
        return len(tail) - len(tail.rstrip(self._inside))


def _lower_case(owner: _Owner) -> _Owner:
    form = owner.form
    return _Owner(owner.secret, Form(form.name, form.text.lower(), form.lead.lower(), form.density))


def _found(reading: Reading, start: int, end: int, owner: _Owner) -> Found:
    form = owner.form
    run = Run(owner.secret, round((end - start) * form.density), end - start >= len(form.text))
    lead = form.lead
    if (
        lead
        and form.text.startswith(reading.data[start : start + owner.run])
        and reading.data[:start].endswith(lead)
    ):
        start -= len(lead)
    return Found(run, form.name, round(len(form.text) * form.density), reading.origin(start, end))


def _each_once(found: list[Found]) -> list[Found]:
    """What is read from the same bytes is one echo: its longest run says whose, and all of it is masked. One
    that only stands between another one's letters, as keys of JSON do, is one of its own."""
    found.sort(key=lambda one: int(one.places[0]))
    merged: list[Found] = []
    for one in found:
        near = range(max(0, len(merged) - _NESTED), len(merged))
        index = next((at for at in near if _same(one.places, merged[at].places)), None)
        if index is None:
            merged.append(one)
            continue
        other = merged[index]
        longest = max(other, one, key=lambda each: (each.run.whole, each.run.length))
        merged[index] = replace(longest, places=np.union1d(other.places, one.places))
    return merged


def _same(one: Places, other: Places) -> bool:
    """Whether half of the bytes of either are the other's."""
    if one[0] > other[-1]:
        return False
    return len(np.intersect1d(one, other)) * 2 >= min(len(one), len(other))


class Scrubber:
    """One stream's scrubbing: `feed` every chunk, `flush` where a message ends, then `finish`. `hits` counts
    what was masked so far. After an abort call `break_off`, not `finish`: what waits must not leave."""

    __slots__ = (
        "_before",
        "_context",
        "_found",
        "_members",
        "_open",
        "_patterns",
        "_pending",
        "_released",
        "_runs",
        "_told",
        "hits",
    )

    def __init__(self, patterns: Patterns, *, in_messages: bool = False) -> None:
        """`in_messages`: the stream is a row of small messages, each of which may hold a piece of a text."""
        self.hits = 0
        self._members = Members() if in_messages else None
        self._context = CONTEXT_OF_MESSAGES if in_messages else CONTEXT
        self._patterns = patterns
        self._released = 0
        """Bytes of the stream that have left. All places are counted from its beginning."""
        self._before = b""
        """The last of them, as they came."""
        self._pending = b""
        self._found: list[Found] | None = None
        """What was found in `_before` and `_pending`; None: they were not searched for all there is."""
        self._open: tuple[Run, Places] | None = None
        """A part of a secret that may go on, and where it ends so far."""
        self._told: Places = np.zeros(0, np.int64)
        """Where the last run ends that was told."""
        self._runs: list[Run] = []

    @property
    def patterns(self) -> Patterns:
        return self._patterns

    @property
    def found(self) -> bool:
        """Whether something of a secret is in what is known of the stream's end."""
        return bool(self._found)

    def look_for(self, patterns: Patterns) -> None:
        """From here on look for `patterns`, which hold all those from before and more."""
        self._patterns = patterns
        if self._members is not None:
            self._members.forget()
        self._found = None

    def take_runs(self) -> tuple[Run, ...]:
        """What was masked since the last call: the first `MOST_RUNS` whole secrets and as many parts; `hits`
        counts all. A part is reported once its length is known: some bytes later, or at the end. Until then
        it is `going_on`."""
        runs = tuple(self._runs)
        self._runs.clear()
        return runs

    @property
    def going_on(self) -> Run | None:
        """A part of a secret that was masked and is not told yet."""
        return self._open[0] if self._open is not None else None

    def break_off(self) -> None:
        """Nothing more comes, or may leave: what goes on ends here. What is held back stays here."""
        if self._open is not None:
            self._tell(self._open[0])
            self._open = None

    def feed(self, chunk: bytes) -> bytes:
        """What is decided once `chunk` has come; may be empty."""
        self._pending = self._pending + chunk if self._pending else chunk
        self._search()
        return self._release(len(self._pending) - self._patterns.undecided(self._pending))

    def flush(self) -> bytes:
        """All that waits, as a message ends here. What follows is searched together with it."""
        if not self._pending:
            return b""
        if self._found is None:
            self._search()
        return self._release(len(self._pending))

    def finish(self) -> bytes:
        """The rest, at the end of the stream."""
        rest = self.flush()
        self.break_off()
        return rest

    def _search(self) -> None:
        first = self._released - len(self._before)
        data = self._before + self._pending
        if self._members is not None:
            self._found = self._patterns.find_in_messages(data, first, len(self._before), self._members)
        else:
            self._found = [replace(one, places=one.places + first) for one in self._patterns.find(data)]

    def _tell(self, run: Run) -> None:
        self.hits += 1
        if sum(one.whole is run.whole for one in self._runs) < MOST_RUNS:
            self._runs.append(run)

    def _release(self, cut: int) -> bytes:
        """Mask and return `_pending[:cut]`."""
        released = self._pending[:cut]
        found = self._found or []
        if found or self._open is not None:
            masked = np.frombuffer(released, np.uint8).copy()
            for one in found:
                places = one.places - self._released
                masked[places[(places >= 0) & (places < cut)]] = ord(_MASK)
            self._count(found, self._released + cut)
            released = masked.tobytes()
        if cut:
            self._before = (self._before + self._pending[:cut])[-self._context :]
            self._pending = self._pending[cut:]
            self._released += cut
        return released

    def _count(self, found: list[Found], end: int) -> None:
        """Tell the runs that begin before `end`, which is released. The last one may go on for a while."""
        over = self._released + len(self._pending) - self._context // (RUN - 1)
        was_open, self._open = self._open, None
        told = [self._told]
        for one in found:
            if one.places[0] >= end or _meet(one.places, self._told):
                continue  # found again when it is released, or told before
            run, places = one.run, one.places
            if was_open is not None and _meet(places, was_open[1]):
                new = int((places > was_open[1][-1]).sum())
                length = was_open[0].length + round(run.length * new / len(places))
                length = min(max(length, run.length), one.total)
                run = Run(run.secret, length, run.whole or length == one.total)
                places = np.union1d(was_open[1], places)
                was_open = None
            if run.whole or one is not found[-1] or places[-1] < over:
                self._tell(run)
                told.append(places)
            else:
                self._open = (run, places)
        if was_open is not None and (was_open[1][-1] < over or self._open is not None):
            self._tell(was_open[0])
            told.append(was_open[1])
        elif was_open is not None:
            self._open = was_open
        if len(told) > 1:
            self._told = np.sort(np.concatenate(told))
        self._told = self._told[self._told >= end - self._context]


def _meet(some: Places, others: Places) -> bool:
    """Whether they have a place in common. Both are in order."""
    if not len(others) or some[0] > others[-1] or some[-1] < others[0]:
        return False
    at = np.minimum(np.searchsorted(others, some), len(others) - 1)
    return bool((others[at] == some).any())


def scrub_bytes(patterns: Patterns, data: bytes) -> tuple[bytes, tuple[Run, ...]]:
    """A whole message (a buffered body) without secrets, and what was masked."""
    scrubber = Scrubber(patterns)
    return scrubber.feed(data) + scrubber.finish(), scrubber.take_runs()


def scrub_text(patterns: Patterns, text: str) -> tuple[str, tuple[Run, ...]]:
    """A header value, a URL or a text WebSocket message without secrets, and what was masked.

    Header values are latin-1 text whose bytes may be UTF-8; both readings of a secret are looked for.
    """
    try:
        charset, data = "latin-1", text.encode("latin-1")
    except UnicodeEncodeError:
        charset, data = "utf-8", text.encode("utf-8", "surrogatepass")
    clean, runs = scrub_bytes(patterns, data)
    return (clean.decode(charset, "replace"), runs) if runs else (text, ())
