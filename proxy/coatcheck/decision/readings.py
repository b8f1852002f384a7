"""Readings of a response's bytes: what they say once escapes and encodings are undone.

A secret is looked for in every reading, so that it is found in forms that nobody listed. (The readings of a
*request*, which are the methods and paths that a server may take it for, are in `steering` and `policy`.)

A reading is made from another one by undoing one layer everywhere at once: escapes (percent, backslashes of
all kinds, entities), the escapes of CSS, quoted-printable, Base64, hex, numbers in decimal, or a hex dump's
lines. What comes out is read in the same way, `DEPTH` layers deep. A reading knows from which bytes of the
stream each of its characters was read, so that exactly those bytes are masked.

Control characters and white space are left out of each reading. Therefore line breaks of MIME, blanks between
hex digits, the zeros of UTF-16 and UTF-32, and the small lengths between messages of protobuf do not cut a
secret in two. numpy and `bytes.translate` do the work, because it is done for every byte of a response.
"""

import binascii
import re
from collections.abc import Callable, Iterator
from functools import cache
from html.entities import html5
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coatcheck.decision.encodings import RUN

type Places = NDArray[np.int64]
type Origin = Callable[[Places], Places]
"""From indexes of what was read to the indexes of all bytes that they were read from, in order."""

DEPTH: Final = 4
"""Layers that are undone: percent in percent in JSON in HTML."""
ENCODED: Final = 24
"""Characters of an encoding's alphabet in a row that are decoded: twelve bytes in hex, 18 in Base64."""

REACH: Final = 1024
"""Bytes over which a run is surely read: eleven characters, each up to 90 bytes apart."""

_SMALL: Final = 4096
_BLOCK: Final = 256
"""Bytes. What is near to an escape or a tag is told in blocks."""
_SKIPPED: Final = bytes(range(0x21)) + b"\x7f"
_PAD: Final = bytes(16)
"""After the bytes, so that an escape that is cut off there can be looked at."""

INTRODUCERS: Final = b"\\%&"
"""With which an escape begins."""

_INTRODUCER, _BASE64, _HEX, _DECIMAL, _ASCII = 1, 2, 4, 8, 16
_HEX_DIGITS: Final = b"0123456789abcdefABCDEF"
_MEMBERS: Final = (
    (_INTRODUCER, INTRODUCERS),
    (_BASE64, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"),
    (_HEX, _HEX_DIGITS + b" \t\r\n:-,;xX"),
    (_DECIMAL, b"0123456789 \t\r\n,;"),
    (_ASCII, bytes(range(0x80))),
)
_CLASSES: Final = bytes(sum(bit for bit, members in _MEMBERS if code in members) for code in range(256))
_ENCODING_CLASSES: Final = bytes(code & (_BASE64 | _HEX | _DECIMAL) for code in _CLASSES)
_MEMBER_OF: Final = {
    kind: bytes(bool(bits & kind) for bits in range(256)) for kind in (_BASE64, _HEX, _DECIMAL)
}
_HIGH_BITS: Final = bytes((0x20, 0x08, 0x02, 0))
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SEXTETS: Final = bytes.maketrans(_LETTERS + b"-_", bytes((*range(64), 62, 63)))
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")


def _digits(base: int) -> NDArray[np.int64]:
    table = np.full(256, -1, np.int64)
    for code in _HEX_DIGITS:
        if int(chr(code), 16) < base:
            table[code] = int(chr(code), 16)
    return table


_DIGITS: Final = {base: _digits(base) for base in (8, 10, 16)}
# What follows a backslash and stands for something else; -1: digits follow. A line's end continues the line.
_AFTER_BACKSLASH: Final = np.arange(256, dtype=np.int64)
for _letter, _code in zip(b"abefnrtv\r\n", b"\x07\x08\x1b\x0c\n\r\t\x0b\0\0", strict=True):
    _AFTER_BACKSLASH[_letter] = _code
_AFTER_BACKSLASH[list(b"uUx01234567")] = -1


def _named_entities() -> dict[int, dict[int, int]]:
    """By length, the names of entities for one character: the name's bytes as one number -> the character."""
    tables: dict[int, dict[int, int]] = {}
    for name, text in html5.items():
        if name.endswith(";") and len(name) <= 8 and len(text) == 1 and ord(text) < 0x100:
            tables.setdefault(len(name), {})[int.from_bytes(name.encode(), "little")] = ord(text)
    return tables


_NAMED: Final = _named_entities()


class Reading:
    """Text in which secrets are looked for."""

    __slots__ = ("_origin", "data")

    def __init__(self, data: bytes, origin: Origin) -> None:
        self.data = data
        self._origin = origin

    def origin(self, start: int, end: int) -> Places:
        """The indexes of all bytes of the stream that `data[start:end]` was read from, in order."""
        return self._origin(np.arange(start, end))

    def origins(self, at: Places) -> Places:
        """The same, of what was read at `at`."""
        return self._origin(at)


class _Layer:
    """Bytes of which more layers may be undone. Zeros in it are no characters."""

    __slots__ = (
        "css",
        "data",
        "decoded",
        "depth",
        "escaped",
        "in_ascii",
        "literal",
        "marked",
        "origin",
        "printable",
    )

    def __init__(self, data: bytes, origin: Origin, depth: int, literal: bytes, in_ascii: bool) -> None:
        self.data, self.origin = _without(data, origin, b"\0")
        if in_ascii:
            self.data, self.origin = _ascii_of(self.data, self.origin)
        self.in_ascii = in_ascii
        """Only text in ASCII is looked for."""
        self.depth = depth
        self.literal = literal
        self.decoded: tuple[str, ...] = ()
        """The encodings that were undone. Layers that say the same differ by it where other bytes say it: the
        two columns of a hex dump."""
        self.css = True
        """Whether the escapes of CSS were not yet undone. They and those of JavaScript have two readings."""
        self.printable = True
        """Whether quoted-printable was not yet undone."""
        self.escaped = True
        """Whether escapes are undone in it."""
        self.marked = True
        """Whether tags and colours were not yet left out."""

    def deeper(self, data: bytes, origin: Origin, decoded: str = "") -> "_Layer":
        layer = _Layer(data, origin, self.depth - 1, self.literal, self.in_ascii)
        layer.css, layer.printable, layer.marked = self.css, self.printable, self.marked
        layer.decoded = (*self.decoded, decoded) if decoded else self.decoded
        return layer


# A member of a JSON object whose value is a string, and a line of an event that is no JSON. What was matched
# is never given back (`+` behind a count), so the time does not depend on how a match fails.
_MEMBER: Final = re.compile(
    rb'"([^"\\]{1,64}+)"[ \t]*+:[ \t]*+"([^"\\]{0,512}+(?:\\.[^"\\]{0,512}+){0,512}+)"', re.DOTALL
)
_DATA: Final = re.compile(
    rb'^data: ?+(?:"([^"\\\r\n]{0,512}+(?:\\.[^"\\\r\n]{0,512}+){0,512}+)"|([^{\["\r\n][^\r\n]{0,512}+))',
    re.MULTILINE,
)
_LONGEST_VALUE: Final = 1024
"""Bytes of a value that is read together with others under its key."""
_BEFORE_A_VALUE: Final = 512
"""Bytes of earlier values under the same key: eleven characters, with up to 46 bytes each."""

_MOST_KEYS: Final = 256
_MOST_CLEAN: Final = 32
"""Texts that are known to hold nothing, each about half a kilobyte."""

type _Spans = list[tuple[int, int]]


class Members:
    """What a row of messages says under the same key, one after the other. Language models send a word as one
    message, in JSON with a name before it and much behind it.

    Each line is looked at once. Most members are the same in each message, and what they say together is not
    searched again.
    """

    __slots__ = ("_clean", "_new", "_spans")

    def __init__(self) -> None:
        self._spans: dict[bytes, _Spans] = {}
        """Where values stand in the whole stream, by key; under an empty one, lines that are no JSON."""
        self._clean: set[bytes] = set()
        self._new: list[bytes] = []

    def together(self, data: bytes, first: int, seen: int) -> Reading | None:
        """The values under each key of which one ends in `data` behind `seen`, and a quotation mark behind
        them. `first` is where in the stream `data` begins; what ended before that is forgotten."""
        line = data.rfind(b"\n", 0, seen) + 1
        chosen = []
        for key, found in _members(data, line, first).items():
            known = self._spans.get(key, [])
            while known and known[-1][0] >= first + line:
                known.pop()
            spans = [span for span in known if span[0] >= first] + found
            self._spans[key] = spans
            if len(spans) > 1 and spans[-1][1] > first + seen:
                near = _near_to(spans, first + seen)
                text = b"".join([data[start - first : end - first] for start, end in near])
                if text not in self._clean:
                    chosen.append((text, near))
        if len(self._spans) > _MOST_KEYS:
            self._spans = {key: spans for key, spans in self._spans.items() if spans[-1][1] > first}
        self._new = [text for text, _ in chosen]
        if not chosen:
            return None

        @cache
        def index() -> Places:
            one_by_one = [np.concatenate([*(np.arange(*span) for span in near), [-1]]) for _, near in chosen]
            return np.concatenate(one_by_one)

        def before(at: Places) -> Places:
            places = index()[at]
            return np.sort(places[places >= 0])

        return Reading(b'"'.join(self._new), before)

    def hold_nothing(self) -> None:
        """Nothing was found in what was returned last."""
        if len(self._clean) > _MOST_CLEAN:
            self._clean.clear()
        self._clean.update(self._new[:_MOST_CLEAN])

    def forget(self) -> None:
        """Something else is looked for."""
        self._clean.clear()


def _members(data: bytes, line: int, first: int) -> dict[bytes, _Spans]:
    found: dict[bytes, _Spans] = {}
    for member in _MEMBER.finditer(data, line):
        start, end = member.span(2)
        if end - start <= _LONGEST_VALUE:
            found.setdefault(member[1], []).append((first + start, first + end))
    for text in _DATA.finditer(data, line):
        start, end = text.span(text.lastindex or 0)
        if end - start <= _LONGEST_VALUE:
            found.setdefault(b"", []).append((first + start, first + end))
    return found


def _near_to(spans: _Spans, seen: int) -> _Spans:
    """Those that end behind `seen`, and enough of what is before them."""
    at, before = len(spans) - 1, 0
    while at and (spans[at][1] > seen or before < _BEFORE_A_VALUE):
        at -= 1
        if spans[at][1] <= seen:
            before += spans[at][1] - spans[at][0]
    return spans[at:]


def readings(stream: bytes, literal: bytes = b"", *, in_ascii: bool = False) -> Iterator[Reading]:
    """All readings of `stream`. Their number and lengths are bounded, whatever it holds.

    `in_ascii`: only text in ASCII is looked for, which all writers write in ASCII. Of images and archives
    little is left to read then.

    `literal`: those of `INTRODUCERS` that stand in a secret themselves. A writer may leave them as they are
    and escape others, so what begins with them is undone in some readings and left alone in others.
    """
    layers = [_Layer(stream, _identity, DEPTH, literal, in_ascii)]
    seen: set[tuple[bytes, tuple[str, ...]]] = set()
    while layers:
        layer = layers.pop()
        if literal:
            if (layer.data, layer.decoded) in seen:
                continue
            seen.add((layer.data, layer.decoded))
        yield Reading(*_without(layer.data, layer.origin, _SKIPPED))
        if layer.depth:
            layers += _undone(layer)


# What `texts_of` leaves to `readings`: markup, and escapes other than the common ones of JSON and URLs.
_RARE: Final = re.compile(rb'\\(?![nrt"/\\])|%[uU]|&(?:#|[0-9A-Za-z]{1,7};)')
_COMMON: Final = re.compile(rb'\\[nrt"/\\]|%[0-9A-Fa-f]{2}')
_WRITTEN: Final = {b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t", b'\\"': b'"', b"\\/": b"/", b"\\\\": b"\\"}
_BEHIND_ONE_BACKSLASH: Final = tuple(_WRITTEN.items())[:-1]
_PRINTED: Final = re.compile(rb"=(?:[0-9A-Fa-f]{2}|\r?\n)")
_IS_HIGH: Final = bytes(code >= 0x80 for code in range(256))
_TWELVE_ASCII: Final = bytes(RUN)
_ASCII_ROW: Final = bytes(ENCODED * 3 // 4)
# What stands in each match of `_DUMPED`, found faster.
_MAYBE_DUMPED: Final = re.compile(
    rb"[ \t](?:(?<=[0-9a-fA-F][ \t])|(?<=:[ \t]))[ \t]{0,2}[0-9a-fA-F]{2,8}(?:[ \t-]|[\r\n]|$)"
)
_DECIMAL_DIGITS: Final = b"0123456789"
_NO_HEX_DIGITS: Final = bytes(set(range(256)).difference(_HEX_DIGITS))
_MOST_TEXTS: Final = 24


def texts_of(stream: bytes, literal: bytes = b"", *, in_ascii: bool = False) -> list[bytes] | None:
    """What the `readings` of a small stream say, without where they say it. None is missing in which twelve
    characters of a secret could stand, and there may be more. None if that is not cheap to tell.

    numpy takes about a microsecond for each of its steps, however short the text, so most of the cost of a
    small text without a secret would be steps that change nothing.
    """
    if len(stream) >= _SMALL:
        return None
    texts = [stream]
    seen = {stream}
    first = 0
    for _ in range(DEPTH):
        layers, first = texts[first:], len(texts)
        for data in layers:
            below = _texts_below(data.replace(b"\0", b""), literal, in_ascii)
            if below is None or len(texts) > _MOST_TEXTS:
                return None
            for text in below:
                if in_ascii and b"<" not in text and _TWELVE_ASCII not in text.translate(_IS_HIGH):
                    continue  # nothing that ASCII is read from
                if len(text) >= RUN and text not in seen:
                    seen.add(text)
                    texts.append(text)
    return [text.translate(None, _SKIPPED) for text in texts]


def _texts_below(data: bytes, literal: bytes, in_ascii: bool) -> list[bytes] | None:
    """One more layer of `data` undone in each way; the data of all that `_undone` makes of it."""
    if b"\x1b[" in data or (b"<" in data and b">" in data):
        return None
    texts = []
    if b"\\" in data or b"%" in data or b"&" in data:
        if _RARE.search(data) or (literal and b"%" in data):
            return None
        text = data
        if b"\\\\" not in data and b"\\" in data:
            for escape, character in _BEHIND_ONE_BACKSLASH:
                text = text.replace(escape, character)
        if b"\\" in text or b"%" in text:
            text = _COMMON.sub(_character, text)
        if text != data:
            texts.append(text)
    if b"=" in data and _QUOTED_PRINTABLE.search(data):
        texts.append(_PRINTED.sub(_printed, data))
    if len(data) < ENCODED:
        return texts
    # A byte for each place as in `_in_a_row`, all of them in one long number.
    row = int.from_bytes(data.translate(_ENCODING_CLASSES), "little")
    for step in (1, 2, 4, 8, 8):
        row &= row >> 8 * step
    if not row:
        return texts
    in_row = row.to_bytes(len(data), "little")
    if rows := _rows_of(in_row, _BASE64):
        text = b"".join(
            [data[start:end] + (b"AAA" if data[end : end + 1] == b"=" else b"") for start, end in rows]
        ).translate(_STANDARD)
        for skipped in range(4):
            decoded = binascii.a2b_base64(text[skipped : skipped + (len(text) - skipped) // 4 * 4])
            if not in_ascii or _ASCII_ROW in decoded.translate(_IS_HIGH):
                texts.append(decoded)
    if rows := _rows_of(in_row, _HEX):
        chosen = b"".join([data[start:end] for start, end in rows])
        if len(chosen.translate(None, _NO_HEX_DIGITS)) >= ENCODED:
            if b"\n0" in data and _MAYBE_DUMPED.search(data):
                return None
            digits = chosen.replace(b"X", b"x").replace(b"0x", b"").translate(None, _NO_HEX_DIGITS)
            for skipped in range(2):
                whole = (len(digits) - skipped) // 2 * 2
                texts.append(binascii.a2b_hex(digits[skipped : skipped + whole]))
    if rows := _rows_of(in_row, _DECIMAL):
        chosen = b"".join([data[start:end] for start, end in rows])
        if len(chosen) - len(chosen.translate(None, _DECIMAL_DIGITS)) >= ENCODED // 2:
            return None
    return texts


def _character(escape: re.Match[bytes]) -> bytes:
    written = escape[0]
    return _WRITTEN.get(written) or binascii.a2b_hex(written[1:])


def _printed(escape: re.Match[bytes]) -> bytes:
    written = escape[0]
    return binascii.a2b_hex(written[1:]) if written[1] not in b"\r\n" else b""


def _rows_of(in_row: bytes, kind: int) -> "_Rows":
    """`_rows` of a small text."""
    member = in_row.translate(_MEMBER_OF[kind])
    rows = []
    start = member.find(b"\1")
    while start >= 0:
        end = member.find(b"\0", start)  # the last places begin no row
        rows.append((start, end + ENCODED - 1))
        start = member.find(b"\1", end)
    return rows


def _ascii_of(data: bytes, origin: Origin) -> tuple[bytes, Origin]:
    """All rows of `RUN` characters in ASCII, unless that is most of it; behind each a byte that is
    none."""
    if len(data) < _SMALL or data.isascii():
        return data, origin
    bytes_of = np.frombuffer(data, np.uint8)
    row = (bytes_of < 0x80).view(np.uint8)
    for step in (1, 2, 4, RUN - 8):
        row = row[:-step] & row[step:]
    if np.count_nonzero(row) * 8 > len(data) * 7:
        return data, origin
    # From where a row begins to the byte behind its end, at the end of the data twelve bytes are added.
    kept = np.zeros(len(data) + RUN, np.uint8)
    kept[: len(row)] = row
    for step in (1, 2, 4, RUN - 7):
        kept[step:] |= kept[:-step]
    kept = kept[: len(data)].view(bool)
    text = bytes_of[kept]

    def before(at: Places) -> Places:
        return origin(np.flatnonzero(kept)[at[text[at] < 0x80]])

    return text.tobytes(), before


def _distinct(places: Places) -> Places:
    """In order, each once. np.unique hashes them, which takes fifty times as long."""
    if not len(places):
        return places
    there = np.zeros(int(places.max()) + 1, bool)
    there[places] = True
    return there.nonzero()[0]


def _identity(at: Places) -> Places:
    return at


def _without(data: bytes, origin: Origin, gone: bytes) -> tuple[bytes, Origin]:
    """`data` without the bytes of `gone`."""
    kept = data.translate(None, gone) if gone != b"\0" or b"\0" in data else data
    if len(kept) == len(data):
        return data, origin

    @cache
    def places() -> Places:
        stays = np.ones(256, bool)
        stays[list(gone)] = False
        return np.flatnonzero(stays[np.frombuffer(data, np.uint8)])

    return kept, lambda at: origin(places()[at])


def _undone(layer: _Layer) -> Iterator[_Layer]:
    """Everything that one more layer undone makes of it."""
    data = layer.data
    in_row = _in_a_row(np.frombuffer(data.translate(_CLASSES), np.uint8))
    if layer.marked and (b">" in data or b"\x1b[" in data):
        yield from _without_markup(layer)
    if layer.escaped and (b"\\" in data or b"%" in data or b"&" in data):
        yield from _unescaped(layer)
    if layer.printable and b"=" in data and (units := _quoted_printable(data)) is not None:
        out, origin = _replaced(layer, *units)
        layer.printable = False
        yield layer.deeper(out, origin)
    if in_row is None:
        return
    kinds = int(np.bitwise_or.reduce(in_row))
    if kinds & _BASE64:
        yield from _from_base64(layer, _rows(in_row, _BASE64))
    if kinds & _HEX and _has_digits(data, rows := _rows(in_row, _HEX)):
        yield from _from_hex(layer, _indexes(rows))
        yield from _from_dump(layer)
    if kinds & _DECIMAL:
        yield from _from_decimal(layer, _indexes(_rows(in_row, _DECIMAL)))


# The colours of a terminal (ECMA-48 8.3.117), and what `grep --color` puts after them.
_COLOUR: Final = re.compile(rb"\x1b\[[0-9;]{0,32}[A-Za-z]")
_LONGEST_TAG: Final = 256
_BEGINS_TAG: Final = np.zeros(256, bool)
_BEGINS_TAG[list(b"/!?abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")] = True


def _without_markup(layer: _Layer) -> Iterator[_Layer]:
    """The text without tags and colours: a search that marks its finds, or a page that colours source, cuts a
    secret in pieces. Escapes in it are undone in the layer where they are undone first."""
    data, origin = layer.data, layer.origin
    bytes_of = np.frombuffer(data, np.uint8)
    starts, ends = _tags(bytes_of)
    if b"\x1b[" in data:
        colours = [found.span() for found in _COLOUR.finditer(data)]
        starts = np.concatenate((starts, [start for start, _ in colours])).astype(np.int64)
        ends = np.concatenate((ends, [end for _, end in colours])).astype(np.int64)
    if not len(starts):
        return
    lengths = ends - starts
    data, origin, starts = _near(data, origin, starts, lengths)
    bytes_of, ends = np.frombuffer(data, np.uint8), starts + lengths
    inside = np.zeros(len(data) + 1, np.int8)
    inside[starts] += 1
    inside[ends] -= 1
    text = np.cumsum(inside, dtype=np.int8)[:-1] == 0
    deeper = layer.deeper(bytes_of[text].tobytes(), lambda at: origin(np.flatnonzero(text)[at]))
    deeper.marked = deeper.escaped = False
    yield deeper


def _tags(bytes_of: NDArray[np.uint8]) -> tuple[Places, Places]:
    """Where tags of HTML and XML begin and end."""
    opened, closed = _places(bytes_of, ord("<")), _places(bytes_of, ord(">"))
    if not (len(opened) and len(closed)):
        return opened[:0], opened[:0]
    ends = closed[np.minimum(np.searchsorted(closed, opened), len(closed) - 1)]
    tag = (ends > opened) & (ends - opened < _LONGEST_TAG)
    tag[:-1] &= ends[:-1] < opened[1:]
    tag &= _BEGINS_TAG[bytes_of[np.minimum(opened + 1, len(bytes_of) - 1)]]
    return opened[tag], ends[tag] + 1


def _near(data: bytes, origin: Origin, at: Places, length: Places) -> tuple[bytes, Origin, Places]:
    """`data` within `REACH` of what will be undone at `at`, where that is then, and a byte between the pieces
    that is no text. What is further away is read without it, so it need not be read again in all ways."""
    blocks = len(data) // _BLOCK + 1
    if len(data) < _SMALL:
        return data, origin, at
    changed = np.zeros(blocks, bool)
    changed[at // _BLOCK] = changed[np.minimum(at + length, len(data)) // _BLOCK] = True
    if np.count_nonzero(changed) * 2 > blocks:
        return data, origin, at
    reach = REACH // _BLOCK
    before = np.concatenate((np.zeros(reach + 1, np.int64), np.cumsum(changed)))
    upto = np.concatenate((before[2 * reach + 1 :], np.full(min(blocks, reach), before[-1])))
    edges = np.diff(np.concatenate(([False], upto > before[:blocks], [False])).astype(np.int8))
    starts = np.flatnonzero(edges == 1) * _BLOCK
    ends = np.minimum(np.flatnonzero(edges == -1) * _BLOCK, len(data))
    if int((ends - starts).sum()) * 2 > len(data):
        return data, origin, at
    near = b"\xff".join([data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    moved = starts - np.concatenate(([0], np.cumsum(ends - starts + 1)[:-1]))

    def before_that(places: Places) -> Places:
        piece = np.searchsorted(starts - moved, places, "right") - 1
        places = places + moved[piece]
        return origin(places[places < ends[piece]])

    return near, before_that, at - moved[np.searchsorted(starts, at, "right") - 1]


# --- escapes ------------------------------------------------------------------------------------------------


def _unescaped(layer: _Layer) -> Iterator[_Layer]:
    bytes_of = np.frombuffer(layer.data + _PAD, np.uint8)
    backslashes, percents, ampersands = (_places(bytes_of, mark) for mark in INTRODUCERS)
    backslashes = _not_escaped(backslashes)
    for kinds in _kinds_to_undo(layer.literal):
        escaped = bytes_of
        if len(backslashes) and b"\\"[0] in kinds:
            escaped = bytes_of.copy()
            escaped[backslashes + 1] = 0
        units = [
            undo(bytes_of, places if mark == b"\\"[0] or escaped is bytes_of else places[escaped[places] > 0])
            for mark, places, undo in (
                (b"\\"[0], backslashes, _backslashes),
                (b"%"[0], percents, _percents),
                (b"&"[0], ampersands, _entities),
            )
            if mark in kinds and len(places)
        ]
        yield from _with_escapes(layer, units)
        if layer.css and len(backslashes) and kinds[:1] == b"\\":
            if (_DIGITS[16][bytes_of[backslashes + 1]] >= 0).any():
                layer.css = False
                yield from _with_escapes(layer, [_css(bytes_of, backslashes), *units[1:]])


def _places(bytes_of: NDArray[np.uint8], mark: int) -> Places:
    return np.flatnonzero(bytes_of == mark)


def _kinds_to_undo(literal: bytes) -> list[bytes]:
    """All at once, which is enough for secrets without an introducer; else also with those left alone, and
    each kind for itself."""
    alone = [bytes([mark]) for mark in INTRODUCERS] if literal else []
    others = [bytes(mark for mark in INTRODUCERS if mark not in left) for left in {literal} if literal]
    return [INTRODUCERS, *(kinds for kinds in dict.fromkeys(others + alone) if kinds)]


def _with_escapes(layer: _Layer, units: "list[_Units]") -> Iterator[_Layer]:
    if not units:
        return
    at, length, code = (
        units[0] if len(units) == 1 else (np.concatenate(column) for column in zip(*units, strict=True))
    )
    if len(at):
        out, origin = _replaced(layer, at, length, code)
        deeper = layer.deeper(out, origin)
        if not (b"=\\" in layer.data or (code == ord("=")).any()):
            deeper.printable = False  # what there is of it was undone beside this
        yield deeper


def _not_escaped(backslashes: Places) -> Places:
    """Those backslashes that begin an escape: of several in a row each second one is escaped itself."""
    if len(backslashes) < 2:
        return backslashes
    behind = np.zeros(len(backslashes), bool)
    behind[1:] = np.diff(backslashes) == 1
    if not behind.any():
        return backslashes
    index = np.arange(len(backslashes))
    before = index - np.maximum.accumulate(np.where(behind, 0, index))
    begins: Places = backslashes[np.bitwise_and(before, 1) == 0]
    return begins


type _Units = tuple[Places, Places, Places]
"""Where escapes begin, how long they are, and what character each stands for."""


def _number(bytes_of: NDArray[np.uint8], at: Places, base: int, most: int) -> tuple[Places, Places]:
    """The numbers written at `at`, and how many digits each has: 0 to `most`."""
    value = np.zeros(len(at), np.int64)
    count = np.zeros(len(at), np.int64)
    table = _DIGITS[base]
    last = len(bytes_of) - 1
    for step in range(most):
        digit = table[bytes_of[np.minimum(at + step, last)]]
        goes_on = (digit >= 0) & (count == step)
        if not goes_on.any():
            break
        value = np.where(goes_on, value * base + digit, value)
        count += goes_on
    return value, count


def _backslashes(bytes_of: NDArray[np.uint8], at: Places) -> _Units:
    following = bytes_of[at + 1]
    value = _AFTER_BACKSLASH[following]
    length = np.full(len(at), 2, np.int64)
    numbers = np.flatnonzero(value < 0)
    if len(numbers):
        _numbers_after_backslashes(bytes_of, at, numbers, value, length)
    length[following == 0] = 1  # cut off at the end
    value[following == 0] = ord("\\")
    windows = (following == 13) & (bytes_of[at + 2] == 10)
    length[windows] = 3
    return at, length, value


def _numbers_after_backslashes(
    bytes_of: NDArray[np.uint8], at: Places, numbers: Places, value: Places, length: Places
) -> None:
    """`\\uXXXX`, `\\u{X}`, `\\UXXXXXXXX`, `\\xXX`, `\\x{X}`, and octal; else the letter stands for itself."""
    letters = bytes_of[at[numbers] + 1]
    value[numbers] = letters
    braced = bytes_of[at[numbers] + 2] == ord("{")
    for letter, digits in (("u", 4), ("x", 2), ("U", 8)):
        chosen = numbers[(letters == ord(letter)) & ~braced]
        code, count = _number(bytes_of, at[chosen] + 2, 16, digits)
        whole = count == digits
        value[chosen[whole]], length[chosen[whole]] = code[whole], 2 + digits
    chosen = numbers[braced & ((letters == ord("u")) | (letters == ord("x")))]
    code, count = _number(bytes_of, at[chosen] + 3, 16, 6)
    whole = (count > 0) & (bytes_of[np.minimum(at[chosen] + 3 + count, len(bytes_of) - 1)] == ord("}"))
    value[chosen[whole]], length[chosen[whole]] = code[whole], 4 + count[whole]
    chosen = numbers[(letters >= ord("0")) & (letters <= ord("7"))]
    code, count = _number(bytes_of, at[chosen] + 1, 8, 3)
    value[chosen], length[chosen] = code & 0xFF, 1 + count


def _percents(bytes_of: NDArray[np.uint8], at: Places) -> _Units:
    first = bytes_of[at + 1]
    high, low = _DIGITS[16][first], _DIGITS[16][bytes_of[at + 2]]
    read = (high | low) >= 0
    wide = at[(first | 0x20) == ord("u")]
    if not len(wide):
        return at[read], np.full(int(read.sum()), 3, np.int64), (high << 4 | low)[read]
    code, count = _number(bytes_of, wide + 2, 16, 4)
    whole = count == 4
    return (
        np.concatenate((at[read], wide[whole])),
        np.concatenate((np.full(int(read.sum()), 3, np.int64), np.full(int(whole.sum()), 6, np.int64))),
        np.concatenate(((high << 4 | low)[read], code[whole])),
    )


def _entities(bytes_of: NDArray[np.uint8], at: Places) -> _Units:
    code = np.zeros(len(at), np.int64)
    length = np.zeros(len(at), np.int64)
    numeric = bytes_of[at + 1] == ord("#")
    in_hex = numeric & ((bytes_of[at + 2] | 0x20) == ord("x"))
    for base, chosen, before in ((16, np.flatnonzero(in_hex), 3), (10, np.flatnonzero(numeric & ~in_hex), 2)):
        codes, counts = _number(bytes_of, at[chosen] + before, base, 8)
        ends = at[chosen] + before + counts
        closed = bytes_of[np.minimum(ends, len(bytes_of) - 1)] == ord(";")
        code[chosen] = codes
        length[chosen] = np.where(counts > 0, before + counts + closed, 0)
    named = np.flatnonzero(~numeric)
    if len(named):
        key = np.zeros(len(named), np.uint64)
        for size in range(1, 9):
            key |= bytes_of[at[named] + size].astype(np.uint64) << np.uint64(8 * (size - 1))
            table = _NAMED.get(size)
            if table is None:
                continue
            for index in np.flatnonzero(bytes_of[at[named] + size] == ord(";")):
                found = table.get(int(key[index]))
                if found is not None:
                    code[named[index]], length[named[index]] = found, 1 + size
    read = length > 0
    return at[read], length[read], code[read]


def _css(bytes_of: NDArray[np.uint8], at: Places) -> _Units:
    """A backslash and up to six hex digits, and one blank that ends them; else the character itself."""
    code, count = _number(bytes_of, at + 1, 16, 6)
    blank = np.isin(
        bytes_of[np.minimum(at + 1 + count, len(bytes_of) - 1)], np.frombuffer(b" \t\n", np.uint8)
    )
    length = np.where(count > 0, 1 + count + blank, 2)
    following = bytes_of[at + 1].astype(np.int64)
    length[following == 0] = 1
    return at, length, np.where(count > 0, code, np.where(following == 0, ord("\\"), following))


def _quoted_printable(data: bytes) -> _Units | None:
    """`=XX`, and `=` at a line's end, which continues it (RFC 2045 6.7)."""
    if not _QUOTED_PRINTABLE.search(data):
        return None
    bytes_of = np.frombuffer(data + _PAD, np.uint8)
    at = _places(bytes_of, ord("="))
    code, count = _number(bytes_of, at + 1, 16, 2)
    following = bytes_of[at + 1]
    length = np.where(count == 2, 3, 0)
    length[following == 10] = 2
    length[(following == 13) & (bytes_of[at + 2] == 10)] = 3
    code[count < 2] = 0
    read = length > 0
    return at[read], length[read], code[read]


_QUOTED_PRINTABLE: Final = re.compile(rb"=(?:[2-7][0-9A-Fa-f]|\r?\n)")


def _replaced(layer: _Layer, at: Places, length: Places, code: Places) -> tuple[bytes, Origin]:
    """`layer` with each escape as the character that it stands for, in UTF-8, and zeros up to its end; and
    whether characters came out with which another escape begins."""
    data, origin, at = _near(layer.data, layer.origin, at, length)
    out = np.frombuffer(data, np.uint8).copy()
    for step in range(1, int(length.max(initial=0))):
        out[at[length > step] + step] = 0
    one = (code < 0x80) | (length < 4)
    out[at[one]] = code[one] & 0xFF
    extra: list[tuple[Places, Places]] = []
    if not one.all():
        wide = np.flatnonzero(~one)
        for index in wide:
            start, text = int(at[index]), _utf8(int(code[index]), int(length[index]))
            out[start : start + len(text)] = np.frombuffer(text, np.uint8)
        extra = [(at[wide], length[wide])]

    size = len(data)

    @cache
    def units() -> tuple[Places, Places]:
        first, count = np.arange(size), np.ones(size, np.int64)
        count[at] = length
        for starts, lengths in extra:
            for start, many in zip(starts, lengths, strict=True):
                first[start : start + many], count[start : start + many] = start, many
        return first, count

    def before(places: Places) -> Places:
        first, count = units()
        return origin(_ranges(first[places], count[places]))

    return out.tobytes(), before


def _utf8(code: int, room: int) -> bytes:
    return chr(code).encode("utf-8", "surrogatepass")[:room] if code < 0x110000 else b"?"


def _ranges(first: Places, count: Places) -> Places:
    """All indexes of the ranges that begin at `first`, each once."""
    if (count == 1).all():
        return first
    ends = np.cumsum(count)
    inside = np.arange(int(ends[-1])) - np.repeat(ends - count, count)
    return _distinct(np.repeat(first, count) + inside)


# --- encodings ----------------------------------------------------------------------------------------------


def _in_a_row(classes: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Of which classes all of the next `ENCODED` characters are, for each place; None if of none anywhere."""
    row = np.bitwise_and(classes, np.uint8(_BASE64 | _HEX | _DECIMAL))
    for step in (1, 2, 4, 8, 8):
        if len(row) <= step:
            return None
        row = np.bitwise_and(row[:-step], row[step:])
    return row if row.any() else None


type _Rows = list[tuple[int, int]]


def _rows(in_row: NDArray[np.uint8], kind: int) -> _Rows:
    """Where the rows of characters of that class begin and end."""
    member = np.concatenate(([False], np.bitwise_and(in_row, np.uint8(kind)).astype(bool), [False]))
    edges = np.flatnonzero(member[1:] != member[:-1]).tolist()
    return [(start, end + ENCODED - 1) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _indexes(rows: _Rows) -> Places:
    return np.concatenate([np.arange(start, end) for start, end in rows])


def _chosen(layer: _Layer, index: Places) -> bytes:
    return np.frombuffer(layer.data, np.uint8)[index].tobytes()


def _from_base64(layer: _Layer, rows: _Rows) -> Iterator[_Layer]:
    """At each of the four places in a group of four at which it may begin."""
    data, origin = layer.data, layer.origin
    fill = [b"AAA" if data[end : end + 1] == b"=" else b"" for _, end in rows]
    text = b"".join(data[start:end] + more for (start, end), more in zip(rows, fill, strict=True))
    sextets = np.frombuffer(text.translate(_SEXTETS), np.uint8)

    @cache
    def index() -> Places:
        parts = zip(rows, fill, strict=True)
        return np.concatenate(
            [np.concatenate((np.arange(start, end), np.full(len(more), -1))) for (start, end), more in parts]
        )

    for skipped in range(4):
        whole = (len(text) - skipped) // 4 * 4
        if layer.in_ascii and not _may_be_ascii(sextets[skipped : skipped + whole]):
            continue
        out = binascii.a2b_base64(text[skipped : skipped + whole].translate(_STANDARD))

        def before(at: Places, skipped: int = skipped) -> Places:
            first = skipped + at // 3 * 4 + at % 3
            read = index()[_distinct(np.concatenate((first, first + 1)))]
            return origin(read[read >= 0])

        yield layer.deeper(out, before, f"base64 {skipped}")


def _may_be_ascii(sextets: NDArray[np.uint8]) -> bool:
    """Whether Base64 that begins here decodes to ASCII for `ENCODED` characters in a row. In each group of
    four, the sixth bit of the first is then zero, the fourth of the second, and the second of the third."""
    high = np.frombuffer(_HIGH_BITS * (len(sextets) // 4 + 1), np.uint8)[: len(sextets)]
    row = (np.bitwise_and(sextets, high) == 0).view(np.uint8)
    for step in (1, 2, 4, 8, 8):
        if len(row) <= step or (step == 4 and not row.any()):
            return False
        row = np.bitwise_and(row[:-step], row[step:])
    return bool(row.any())


def _has_digits(data: bytes, rows: _Rows) -> bool:
    text = b"".join(data[start:end] for start, end in rows)
    return len(text) - len(text.translate(None, _HEX_DIGITS)) >= ENCODED


def _from_hex(layer: _Layer, index: Places) -> Iterator[_Layer]:
    """With whatever stands between the digits: blanks, colons, `0x`."""
    bytes_of = np.frombuffer(layer.data, np.uint8)
    chosen = bytes_of[index]
    digit = _DIGITS[16][chosen] >= 0
    prefix = (chosen[1:] | 0x20 == ord("x")) & (chosen[:-1] == ord("0"))
    digit[:-1] &= ~prefix
    yield from _hex_pairs(layer, index[digit], "hex")


def _hex_pairs(layer: _Layer, index: Places, decoded: str) -> Iterator[_Layer]:
    """At both places in a pair at which it may begin."""
    text = _chosen(layer, index)
    for skipped in range(2):
        whole = (len(text) - skipped) // 2 * 2
        out = binascii.a2b_hex(text[skipped : skipped + whole])

        def before(at: Places, skipped: int = skipped) -> Places:
            return layer.origin(index[_ranges(skipped + 2 * at, np.full(len(at), 2))])

        yield layer.deeper(out, before, f"{decoded} {skipped}")


# An address, the bytes in groups, and their text, perhaps between bars: hexdump -C, xxd, and their like.
_DUMPED: Final = re.compile(
    rb"(?<![0-9A-Za-z])(?:0x)?[0-9a-fA-F]{4,16}:?[ \t]{1,3}"
    rb"((?:[0-9a-fA-F]{2,8}(?:[ \t-]{1,3}|(?=[\r\n]|$))){1,16})[ \t]*[|>]?([^\r\n|]{0,16})"
)


_FIRST_OF_A_LINE: Final = re.compile(rb"\n0[0-9a-fA-Fx]{3,17}:?[ \t]")


def _from_dump(layer: _Layer) -> Iterator[_Layer]:
    """The columns of a hex dump, each in one piece."""
    if _FIRST_OF_A_LINE.search(layer.data) is None:
        return
    columns: list[list[Places]] = [[], []]
    for found in _DUMPED.finditer(layer.data):
        for group, column in enumerate(columns, 1):
            column.append(np.arange(found.start(group), found.end(group)))
    if not columns[0]:
        return
    groups, text = (np.concatenate(column) for column in columns)
    bytes_of = np.frombuffer(layer.data, np.uint8)
    yield from _hex_pairs(layer, groups[_DIGITS[16][bytes_of[groups]] >= 0], "dump")
    yield layer.deeper(_chosen(layer, text), lambda at: layer.origin(text[at]), "text of a dump")


def _from_decimal(layer: _Layer, index: Places) -> Iterator[_Layer]:
    """Bytes as numbers, as Node, Java and Go print them."""
    chosen = np.frombuffer(layer.data, np.uint8)[index]
    digit = _DIGITS[10][chosen] >= 0
    bounds = np.diff(np.concatenate(([False], digit, [False])).astype(np.int8))
    starts, ends = np.flatnonzero(bounds == 1), np.flatnonzero(bounds == -1)
    short = ends - starts <= 3
    starts, ends = starts[short], ends[short]
    if len(starts) < ENCODED // 2:
        return
    value, _ = _number(np.concatenate((chosen, np.zeros(4, np.uint8))), starts, 10, 3)
    byte = value < 0x100
    starts, ends, value = starts[byte], ends[byte], value[byte]

    def before(at: Places) -> Places:
        return layer.origin(index[_ranges(starts[at], ends[at] - starts[at])])

    yield layer.deeper(value.astype(np.uint8).tobytes(), before, "decimal")
