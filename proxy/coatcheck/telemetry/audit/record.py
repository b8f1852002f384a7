"""One audit record as bytes: `{"seq":N,"prev":"…","type":"…",…}` and a newline, pure ASCII.

`prev` is the SHA-256 of the whole previous line, newline included, so that a person can check a link
with `sed -n 7p audit.jsonl | sha256sum`. Every value is escaped and bounded here: no field that a
sandbox chose can break a line, forge a key or fill the disk (log injection).
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import StrEnum
from json.encoder import encode_basestring_ascii
from math import isfinite
from operator import attrgetter
from typing import Any, Final

from coatcheck.telemetry.event_table import TABLE
from coatcheck.telemetry.events import Event
from coatcheck.telemetry.redaction import mask_handles

GENESIS = "0" * 64
"""`prev` of the first record of a log."""

FIELD_BYTES = 2048
"""The most bytes that one text takes in a record, quotes and escapes included: a path at its length
limit still says what was asked, and a hostile one cannot make records of megabytes."""

TUPLE_ITEMS = 16
"""The most items of a list in a record; a request takes a handful of credentials, and a line must fit."""

LINE_BYTES = 65_536
"""No record is longer: readers may refuse what is."""

TYPES: Final = {event: row.kind for event, row in TABLE.items()}
"""What `type` says for each event. The log's own records are `log` and `checkpoint`."""

LOG = "log"
CHECKPOINT = "checkpoint"

KINDS = frozenset({*TYPES.values(), LOG, CHECKPOINT})
"""Every `type` that a record can have."""


def _shortened(value: str) -> str:
    """The way of `text` for what is too long or holds DEL, which JSON leaves alone and terminals do not."""
    escaped = ""
    for keep in (FIELD_BYTES, FIELD_BYTES - 64, (FIELD_BYTES - 64) // 12):
        kept = value if len(value) <= keep else f"{value[:keep]} [cut, {len(value)} characters]"
        escaped = encode_basestring_ascii(kept).replace("\x7f", "\\u007f")
        if len(escaped) <= FIELD_BYTES:
            break
    # The last round always fits: a character becomes at most twelve bytes (a surrogate pair of \uXXXX).
    return escaped


def text(value: str) -> str:
    """`value` as a JSON string of at most FIELD_BYTES bytes; what was cut says so."""
    escaped = encode_basestring_ascii(value) if len(value) < FIELD_BYTES else ""
    if not escaped or len(escaped) > FIELD_BYTES or "\x7f" in escaped:
        return _shortened(value)
    return escaped


class Written(dict[str, str]):
    """Texts that come back in every request (session, tenant, rule, host), written once. Bounded:
    short texts only, and emptied when full, since a sandbox chooses some of them."""

    MOST = 4096
    LONGEST = 128

    def __missing__(self, value: str) -> str:
        escaped = text(value)
        if len(value) <= self.LONGEST:
            if len(self) >= self.MOST:
                self.clear()
            self[value] = escaped
        return escaped


_recurring = Written().__getitem__

_UNIQUE = frozenset({"request_id", "detail", "path"})
"""Texts that hardly come back, and would only wash the others out of that store."""


def number(value: float) -> str:
    """Seconds with microseconds; what JSON cannot say (NaN, infinity) is null."""
    return f"{value:.6f}" if isfinite(value) else "null"


def _texts(values: tuple[str, ...]) -> str:
    return "[" + ",".join([_recurring(value) for value in values[:TUPLE_ITEMS]]) + "]"


def _encoder(hint: Any, name: str = "") -> Callable[[Any], str]:
    """How field `name` of type `hint` is written. Enumerations are looked up, so that they stay closed."""
    if hint is str:
        return text if name in _UNIQUE else _recurring
    if hint is bool:
        return {True: "true", False: "false"}.__getitem__
    if hint is int:
        return int.__repr__
    if hint is float:
        return number
    if hint == tuple[str, ...]:
        return _texts
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {member: f'"{member.value}"' for member in hint}.__getitem__
    if isinstance(hint, types.UnionType) and types.NoneType in hint.__args__:
        (inner,) = [arg for arg in hint.__args__ if arg is not types.NoneType]
        write = _encoder(inner)
        return lambda value: "null" if value is None else write(value)
    raise TypeError(f"no way to write {hint} into an audit record")


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """How one type of event is written, worked out once: this runs for every request."""

    kind: str
    template: str
    values: Callable[[Any], tuple[Any, ...]]
    encoders: tuple[Callable[[Any], str], ...]


def _form(cls: type) -> _Form:
    kind = TABLE[cls].kind
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    template = ",".join(f'"{n}":%s' for n in names)
    return _Form(kind, template, attrgetter(*names), tuple(_encoder(hints[n], n) for n in names))


class _Forms(dict[type, _Form]):
    """By the class of the event. KeyError for what is none."""

    def __missing__(self, cls: type) -> _Form:
        self[cls] = form = _form(cls)
        return form


_FORMS = _Forms()


def body(event: Event) -> tuple[str, str]:
    """The record's type and its fields as JSON without braces. KeyError/TypeError for what is no event."""
    form = _FORMS[type(event)]
    fields = form.template % tuple(
        [write(value) for write, value in zip(form.encoders, form.values(event), strict=True)]
    )
    if "cch_" in fields:
        fields = mask_handles(fields)
    return form.kind, fields


def own_body(**fields: str | float) -> str:
    """The fields of one of the log's own records."""
    parts = []
    for name, value in fields.items():
        if isinstance(value, str):
            written = mask_handles(text(value))
        else:
            written = int.__repr__(value) if isinstance(value, int) else number(value)
        parts.append(f'"{name}":{written}')
    return ",".join(parts)


def line(seq: int, prev: str, kind: str, fields: str) -> bytes:
    """The record's bytes, newline included."""
    return f'{{"seq":{seq},"prev":"{prev}","type":"{kind}",{fields}}}\n'.encode("ascii")
