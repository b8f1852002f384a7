"""What is left of a secret in memory or on a disk: whole, or one side of it at a page's edge.

Neighbours in a guest's virtual memory need not be neighbours in its RAM, nor two blocks of a file on its
disk: a secret that crosses a page's edge there stands in two places, of which a plain search finds neither.
So a beginning that ends with a page, or an end that begins one, is a finding too, from `EDGE` bytes on. A
part elsewhere is none: it could be anybody's text.

A whole secret is found in every reading that answers are searched in (`decision.readings`). Out of reach:
what was compressed, encrypted or hashed.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from coatcheck.decision import encodings
from coatcheck.decision.scrub import Patterns, Sought

SHORTEST: Final = 16
"""Bytes. A shorter value could stand anywhere by chance, and so could a form of it; it is not looked for."""
LONGEST: Final = 256 * 1024
"""Bytes of a form, so that what two chunks share stays small. Secret stores give 1 MiB at most."""
EDGE: Final = 16
"""Bytes of a form that count at a page's edge; of one below 31 bytes its half, so that no cut hides both."""
PAGE: Final = 4096
CHUNK: Final = 1024 * 1024
"""Bytes that are searched at once: they stay in the processor's cache for all that is looked up in them."""
MOST_OF_A_FORM: Final = 64
"""Whole occurrences of one form that are told of one chunk: `0000000000000000` is a secret somewhere."""

_WORD: Final = 8
_MAX_STRIDE: Final = 64
_WIDTHS: Final = {"utf-16": 2, "utf-32": 4}


class Kind(StrEnum):
    FULL = "full"
    PAGE_EDGE = "page-edge"


@dataclass(frozen=True, slots=True)
class Value:
    """A secret to look for: exactly the text that is put into requests."""

    credential: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a secret may be written."""

    credential: str
    encoding: str
    """`plain`, `base64`, `hex`, `utf-16`, `utf-32`"""
    text: bytes = field(repr=False)
    beginning: int
    """The least bytes of its beginning that count at the end of a page."""
    end: int
    """The least bytes of its end that count at the start of a page."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Something of a secret. It says where, and nothing of what stands there."""

    credential: str
    encoding: str
    kind: Kind
    offset: int


def forms_of(value: Value) -> tuple[Form, ...]:
    """All forms of a value that a search must know: where one contains another, the shorter one is enough."""
    if len(value.secret) < SHORTEST:
        return ()
    coded = [(form.name, form.text) for form in encodings.forms_of(value.secret) if form.name != "plain"]
    named = [("plain", value.secret), *coded, *_wide(value.secret)]
    texts: dict[bytes, str] = {}
    for name, text in sorted(named, key=lambda pair: (len(pair[1]), pair)):
        if SHORTEST <= len(text) <= LONGEST and not any(shorter in text for shorter in texts):
            texts[text] = name
    public = {"plain": (armour := _armour(value.secret)), **dict.fromkeys(_WIDTHS, armour)}
    # The other forms are of the private parts alone (`encodings.forms_of`).
    return tuple(
        _form(value.credential, name, text, public.get(name, (0, 0))) for text, name in texts.items()
    )


def _wide(secret: bytes) -> Iterator[tuple[str, bytes]]:
    """As JavaScript, Java and Python keep text in memory once a character beyond latin-1 stands beside it."""
    try:
        text = secret.decode("utf-8")
    except UnicodeDecodeError:
        return
    yield "utf-16", text.encode("utf-16-le")
    yield "utf-32", text.encode("utf-32-le")


def _armour(secret: bytes) -> tuple[int, int]:
    """The bytes of a PEM key's first and last line, which stand in every TLS library."""
    if not secret.startswith(b"-----BEGIN "):
        return 0, 0
    lines = secret.strip().split(b"\n")
    return len(lines[0]) + 1, len(lines[-1]) + 1


def _form(credential: str, encoding: str, text: bytes, public: tuple[int, int]) -> Form:
    width = _WIDTHS.get(encoding, 1)
    beginning, end = (EDGE + width * lines for lines in public)
    half = (len(text) + 1) // 2
    return Form(credential, encoding, text, min(beginning, half), min(end, half))


class Residues:
    """All forms of all values, compiled. It holds secrets, and is neither printed nor serialised.

    How it searches: of every `stride` bytes one aligned word is looked up in a set of all words that can
    stand there within an occurrence (as `scrub.Patterns` does), so time does not depend on how many forms
    there are. The words are taken from the forms' ends: their beginnings (`sk-ant-api03-`) are everybody's.
    """

    __slots__ = ("edge_ends", "edge_starts", "forms", "longest", "patterns", "stride", "words")

    def __init__(self, values: Iterable[Value]) -> None:
        values = tuple(values)
        self.forms = tuple(form for value in values for form in forms_of(value))
        self.patterns = Patterns.of(
            Sought(value.credential, value.secret) for value in values if len(value.secret) >= SHORTEST
        )
        shortest = min((len(form.text) for form in self.forms), default=SHORTEST)
        self.longest = max((len(form.text) for form in self.forms), default=SHORTEST)
        self.stride = min((shortest - _WORD + 1) // _WORD * _WORD, _MAX_STRIDE)
        words: set[int] = set()
        starts: set[int] = set()
        ends: set[int] = set()
        for form in self.forms:
            size = len(form.text)
            words.update(_words(form, size - _WORD - self.stride + 1, size - _WORD))
            starts.update(_words(form, 1, size - max(form.end, _WORD)))
            ends.update(_words(form, max(form.beginning, _WORD) - _WORD, size - 1 - _WORD))
        self.words, self.edge_starts, self.edge_ends = frozenset(words), frozenset(starts), frozenset(ends)

    def __repr__(self) -> str:
        return f"Residues({len(self.forms)} forms)"

    def __reduce__(self) -> str:
        raise TypeError("Residues hold secrets and are never serialised")


def _words(form: Form, first: int, last: int) -> Iterator[int]:
    """The words that begin at `first` … `last` and that can stand where a word is looked up.

    Wide characters stand at multiples of their width. Their other words begin with zeros, and would make
    looking up a zero, which most of a guest's memory is, five times as long.
    """
    width = _WIDTHS.get(form.encoding, 1)
    for at in range(-(-first // width) * width, last + 1, width):
        yield int.from_bytes(form.text[at : at + _WORD], sys.byteorder)


class Search:
    """One search through runs of bytes: `begin` a run, put bytes into `room`, `search` them, `end` the run.

    Memory is bounded: one chunk, and before it what the chunk shares with the one before.
    """

    def __init__(self, residues: Residues, page: int = PAGE) -> None:
        """`page`: bytes between two edges, a divisor of PAGE."""
        self._residues = residues
        self._page = page
        self._before = -(-residues.longest // PAGE) * PAGE
        self._buffer = bytearray(self._before + CHUNK)
        self._view = memoryview(self._buffer)
        self._kept = 0
        self._offset = 0
        self._held: list[tuple[int, Form, Hit]] = []

    @property
    def room(self) -> memoryview:
        """Where the next bytes of the run go: CHUNK bytes."""
        return self._view[self._before :]

    def begin(self, offset: int) -> None:
        """A run that starts at `offset`, a multiple of PAGE. The bytes before it are unknown."""
        if offset % PAGE:
            raise ValueError("a run starts at a page")
        self._offset, self._kept = offset, 0
        self._held.clear()

    def search(self, size: int) -> list[Hit]:
        """What is in the `size` bytes that were put into `room`. Fewer than CHUNK: they end the run."""
        start, stop = self._before, self._before + size
        padded = -(-size // PAGE) * PAGE
        self._buffer[stop : start + padded] = bytes(start + padded - stop)
        whole = self._whole(start - self._kept, start, start + padded)
        known = {(id(form), hit.offset) for form, hit in whole}
        hits = [hit for _, hit in whole]
        hits += self._read(start - self._kept, start, stop, {hit.offset for hit in hits})
        hits += [hit for begins, form, hit in self._held if (id(form), begins) not in known]
        self._held.clear()
        for begins, form, hit in self._edges(start, start + padded):
            if begins + len(form.text) > self._offset + padded:
                self._held.append((begins, form, hit))  # it may be whole, once the next chunk is there
            elif (id(form), begins) not in known:
                hits.append(hit)
        if size == CHUNK:
            self._buffer[: self._before] = self._buffer[stop - self._before : stop]
            self._kept = self._before
            self._offset += size
        return hits

    def end(self) -> list[Hit]:
        """The last findings of the run, which another chunk might have made whole."""
        held = [hit for _, _, hit in self._held]
        self._held.clear()
        return held

    def _whole(self, first: int, start: int, stop: int) -> list[tuple[Form, Hit]]:
        """Occurrences in `first` … `stop` that do not end before `start`: those were told before."""
        residues = self._residues
        sampled = self._view[first:stop].cast("Q")[:: residues.stride // _WORD]
        if residues.words.isdisjoint(sampled):
            return []
        found = []
        for form in residues.forms:
            at = self._buffer.find(form.text, max(first, start - len(form.text) + 1), stop)
            for _ in range(MOST_OF_A_FORM):
                if at < 0:
                    break
                offset = self._offset + at - start
                found.append((form, Hit(form.credential, form.encoding, Kind.FULL, offset)))
                at = self._buffer.find(form.text, at + 1, stop)
        return found

    def _read(self, first: int, start: int, stop: int, known: set[int]) -> Iterator[Hit]:
        """Whole secrets in other readings, escaped or encoded twice, that end in `start` … `stop`."""
        for found in self._residues.patterns.find(bytes(self._view[first:stop])):
            begins, ends = int(found.places[0]) + first, int(found.places[-1]) + first
            offset = self._offset + begins - start
            if (
                found.run.whole
                and ends >= start
                and not any(offset <= each <= offset + ends - begins for each in known)
            ):
                yield Hit(found.run.secret, f"{found.encoding}, read", Kind.FULL, offset)

    def _edges(self, start: int, stop: int) -> Iterator[tuple[int, Form, Hit]]:
        """Where the form would begin, and the finding, for each part at an edge."""
        page, residues = self._page, self._residues
        words = self._view[start:stop].cast("Q")
        firsts, lasts = words[:: page // _WORD], words[page // _WORD - 1 :: page // _WORD]
        if not residues.edge_starts.isdisjoint(firsts):
            for index, word in enumerate(firsts):
                if word in residues.edge_starts:
                    yield from self._ends_of_forms(start + index * page, start)
        if not residues.edge_ends.isdisjoint(lasts):
            for index, word in enumerate(lasts):
                if word in residues.edge_ends:
                    yield from self._beginnings_of_forms(start + (index + 1) * page, start)

    def _ends_of_forms(self, at: int, start: int) -> Iterator[tuple[int, Form, Hit]]:
        """Forms whose end begins at the page at `at` in the buffer."""
        word = bytes(self._buffer[at : at + _WORD])
        for form in self._residues.forms:
            cut = form.text.find(word, 1)
            while 0 < cut <= len(form.text) - form.end:
                # Of an end longer than a page, what follows may be anywhere: its first page counts.
                if self._buffer.startswith(form.text[cut : cut + self._page], at):
                    offset = self._offset + at - start
                    yield offset - cut, form, Hit(form.credential, form.encoding, Kind.PAGE_EDGE, offset)
                    break
                cut = form.text.find(word, cut + 1)

    def _beginnings_of_forms(self, end: int, start: int) -> Iterator[tuple[int, Form, Hit]]:
        """Forms whose beginning ends with the page that ends at `end` in the buffer."""
        word = bytes(self._buffer[end - _WORD : end])
        for form in self._residues.forms:
            cut = form.text.find(word) + _WORD
            while _WORD <= cut < len(form.text):
                size = min(cut, self._page)
                if cut >= form.beginning and self._buffer.startswith(form.text[cut - size : cut], end - size):
                    offset = self._offset + end - start - cut
                    yield offset, form, Hit(form.credential, form.encoding, Kind.PAGE_EDGE, offset)
                    break
                cut = form.text.find(word, cut - _WORD + 1) + _WORD
        return
