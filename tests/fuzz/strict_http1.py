"""A second reading of HTTP/1 requests, from RFC 9112's grammar and nothing else.

Written apart from planes/http1 on purpose, with none of its code and none of h11's: it reads a whole text at
once, with one pattern for each rule, and refuses what none of them says.
"""

import re
from dataclasses import dataclass, field, replace

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]+) (HTTP/1\.[01])\r\n")
_FIELD = re.compile(
    rb"("
    + _TOKEN
    + rb"):[ \t]*((?:[\x21-\x7e\x80-\xff](?:[\x20-\x7e\x80-\xff\t]*[\x21-\x7e\x80-\xff])?)?)[ \t]*\r\n"
)
_ABSOLUTE = re.compile(rb"([A-Za-z][A-Za-z0-9+.\-]*)(://[^/]*)(/.*)?")
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_EXTENSION = rb"[ \t]*;[ \t]*" + _TOKEN + rb"(?:[ \t]*=[ \t]*(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?"
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:" + _EXTENSION + rb")*\r\n")


class Refused(Exception):
    """Not a request by the grammar."""


class Unfinished(Exception):
    """The beginning of one, as far as it goes."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One request, as a parser read it. Names in lower case; a chunked body is its content."""

    method: bytes
    target: bytes
    version: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    trailers: tuple[tuple[bytes, bytes], ...] = ()
    destination: str = field(default="", compare=False)
    """Where we would send it; the other parsers have no opinion."""

    def get(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


def in_full(target: bytes) -> bytes:
    """An absolute-form target with its scheme in lower case and its path, if that is empty (3.2.1)."""
    form = _ABSOLUTE.fullmatch(target)
    return target if form is None else form[1].lower() + form[2] + (form[3] or b"/")


def read(wire: bytes, at: int = 0) -> tuple[Reading, int]:
    """The request that begins at `at`, and where it ends. Raises Refused or Unfinished."""
    if wire.startswith(b"\r\n", at):  # one empty line is to be ignored (2.2)
        at += 2
    if b"\r\n\r\n" not in wire[at:]:
        raise Unfinished
    line = _LINE.match(wire, at)
    if line is None:
        raise Refused("request line")
    fields, at = _fields(wire, line.end())
    head = Reading(line[1], in_full(line[2]), line[3], fields, b"")
    coding, length = head.get(b"transfer-encoding"), head.get(b"content-length")
    if coding:
        if coding != [b"chunked"] or length or head.version != b"HTTP/1.1":
            raise Refused("transfer coding")
        body, trailers, at = _chunked(wire, at)
        return replace(head, body=body, trailers=trailers), at
    if len(length) > 1 or (length and re.fullmatch(rb"0|[1-9][0-9]{0,14}", length[0]) is None):
        raise Refused("content length")
    end = at + (int(length[0]) if length else 0)
    if end > len(wire):
        raise Unfinished
    return replace(head, body=wire[at:end]), end


def _fields(wire: bytes, at: int) -> tuple[tuple[tuple[bytes, bytes], ...], int]:
    found = []
    while not wire.startswith(b"\r\n", at):
        field = _FIELD.match(wire, at)
        if field is None:
            raise Unfinished if b"\r\n\r\n" not in wire[at:] else Refused("field")
        found.append((field[1].lower(), field[2]))
        at = field.end()
    return tuple(found), at + 2


def _chunked(wire: bytes, at: int) -> tuple[bytes, tuple[tuple[bytes, bytes], ...], int]:
    body = b""
    while True:
        head = _CHUNK.match(wire, at)
        if head is None:
            raise Unfinished if b"\r\n" not in wire[at:] else Refused("chunk header")
        size, at = int(head[1], 16), head.end()
        if size == 0:
            trailers, at = _fields(wire, at)
            return body, trailers, at
        if at + size + 2 > len(wire):
            raise Unfinished
        body += wire[at : at + size]
        if not wire.startswith(b"\r\n", at + size):
            raise Refused("chunk without its end")
        at += size + 2
