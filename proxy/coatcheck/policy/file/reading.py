"""Bytes -> plain data with the line and column of every key and value.

A strict part of YAML 1.2: one document of mappings, lists, text, decimal integers, true and false.
No anchors, aliases, tags, directives, merge keys or duplicate keys: each lets a reviewer and a parser
see two different files, and aliases also let a small file grow without bound.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from coatcheck.policy.file.problem import Location, PolicyError, Problem

MAX_BYTES = 4_194_304
"""Ten thousand rules take a quarter of this; more is a mistake or an attack on the parser."""
MAX_DEPTH = 12
"""The deepest value that a policy can hold stands at depth 6."""

type Plain = str | int | bool | list["Plain"] | dict[str, "Plain"] | None

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_OTHER_NUMBER = re.compile(r"[-+]?(0x[0-9a-fA-F]+|0o[0-7]+|0[0-9]+|[0-9]+(_[0-9]+)+)|\+[0-9]+")


@dataclass(slots=True)
class Source:
    """A file's data, and where in the file each part of it stands."""

    data: Plain = None
    values: dict[Location, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Location, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, location: Location, key: bool = False) -> tuple[int, int]:
        """Line and column, from 1, of the value (or its key) at `location`, else of what holds it.

        An index that is not in the file is passed over: `limits` may be one mapping or a list of them.
        """
        first, second = (self.keys, self.values) if key else (self.values, self.keys)
        found = (1, 1)
        walked: Location = ()
        for part in location:
            inner: Location = (*walked, part)
            place = first.get(inner) or second.get(inner)
            if place is not None:
                found, walked = place, inner
            elif isinstance(part, str):
                break
        return found


def read(data: bytes) -> Source:
    """The data of one file. Raises PolicyError with everything that is wrong with its form."""
    if len(data) > MAX_BYTES:
        raise PolicyError([Problem(0, 0, f"the file is larger than {MAX_BYTES} bytes", "split it by owner")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError([Problem(line, 1, "the file is not UTF-8", "save it as UTF-8")]) from None
    source = Source()
    try:
        _Reader(source, YAML(typ="safe", pure=True).parse(text)).document()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        hint = "look at the indentation, quotes and brackets on this line and the one before"
        source.problems.append(Problem(line, column, f"this is not YAML: {what}", hint))
    except YAMLError:
        source.problems.append(Problem(1, 1, "the file holds characters that YAML forbids", "remove them"))
    if source.problems:
        raise PolicyError(source.problems)
    return source


class _Reader:
    """Walks the parser's events once; never builds anything that a tag or an alias asks for."""

    def __init__(self, source: Source, events: Iterator[Event]) -> None:
        self._source = source
        self._events = events

    def document(self) -> None:
        next(self._events)
        event = next(self._events)
        if not isinstance(event, DocumentStartEvent):
            return
        if event.version or event.tags:
            self._wrong(event, "a YAML directive", "remove the line that begins with %")
        self._source.data = self._value(next(self._events), (), 0)
        next(self._events)
        if isinstance(event := next(self._events), DocumentStartEvent):
            self._wrong(event, "a second document begins here", "keep one policy in a file")

    def _value(self, event: Event, location: Location, depth: int) -> Plain:
        self._source.values[location] = _place(event)
        if depth > MAX_DEPTH:
            # Raised, not collected: going deeper is what the bound is there to prevent.
            line, column = _place(event)
            raise PolicyError(
                [Problem(line, column, f"values are nested deeper than {MAX_DEPTH}", "flatten it")]
            )
        if isinstance(event, AliasEvent):
            if event.anchor.startswith("."):  # a wildcard was meant
                self._wrong(event, f"*{event.anchor} without quotes is an alias", f'write "*{event.anchor}"')
            else:
                self._wrong(event, f"the alias *{event.anchor}", "write the value out")
            return None
        if isinstance(event, NodeEvent):
            if event.anchor:
                self._wrong(event, f"the anchor &{event.anchor}", "remove it")
            if getattr(event, "tag", None):
                self._wrong(event, "a YAML tag", "remove what begins with !")
        if isinstance(event, MappingStartEvent):
            return self._mapping(location, depth)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(location, depth)
        return self._scalar(event) if isinstance(event, ScalarEvent) else None

    def _mapping(self, location: Location, depth: int) -> dict[str, Plain]:
        found: dict[str, Plain] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event)
            inner = (*location, key)
            if key in found:
                line, _ = self._source.keys[inner]
                self._wrong(
                    event, f'the key "{key}" is here twice, first on line {line}', "remove one of them"
                )
            elif key == "<<":
                self._wrong(event, "a merge key", "write the values out")
            self._source.keys.setdefault(inner, _place(event))
            found[key] = self._value(next(self._events), inner, depth + 1)
            if found[key] is None:
                # Nothing is written after the colon, so the parser's mark is where the next thing begins.
                self._source.values[inner] = self._source.keys[inner]
        return found

    def _key(self, event: Event) -> str:
        if isinstance(event, ScalarEvent) and not event.anchor and not event.tag:
            return str(event.value)
        line, column = _place(event)
        raise PolicyError(
            [Problem(line, column, "a key that is not plain text", "write a plain word before the colon")]
        )

    def _sequence(self, location: Location, depth: int) -> list[Plain]:
        found: list[Plain] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            found.append(self._value(event, (*location, len(found)), depth + 1))
        return found

    def _scalar(self, event: ScalarEvent) -> Plain:
        text = str(event.value)
        if not event.implicit[0]:
            return text
        if text in {"", "~", "null"}:
            return None
        if text in {"true", "false"}:
            return text == "true"
        if _INTEGER.fullmatch(text):
            return int(text)
        if _OTHER_NUMBER.fullmatch(text):
            self._wrong(
                event,
                f"{text} is read as different numbers by different readers",
                "quote it, or write a plain decimal",
            )
        return text

    def _wrong(self, event: Event, message: str, instead: str) -> None:
        self._source.problems.append(Problem(*_place(event), message, instead))


def _place(event: Event) -> tuple[int, int]:
    return (event.start_mark.line + 1, event.start_mark.column + 1)
