"""DNS as we speak it: one question in, its synthetic address or nothing out (RFC 1035 4).

Not mitmproxy's reader: a query of 4 KiB with pointers in a record's data costs it two seconds of CPU, and
it decodes A-labels, whose one spelling is what we compare. One uncompressed name is all that we need.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from coatcheck.decision.host import HostRefused, canonical_host
from coatcheck.decision.synthetic import Synthetic, synthetic

MAX_QUERY = 1232
"""Bytes. A question has at most 271; the rest is room for EDNS padding (RFC 8467), within any MTU."""
TTL = 300
"""Seconds. The answer never changes; resolvers that cache need not ask at each connection."""

_HEADER = struct.Struct("!HHHHHH")
_QUESTION = struct.Struct("!HH")
_RESPONSE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080
_OPCODE = 0x7800
_IN = 1
_NAME = 255
"""Bytes of a name on the wire (RFC 1035 2.3.4)."""
_FIRST_NAME = b"\xc0\x0c"
"""A pointer to the question's name."""


class Type(IntEnum):
    """The types that programs ask for, by name; others are counted together."""

    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    MX = 15
    TXT = 16
    AAAA = 28
    SRV = 33
    SVCB = 64
    HTTPS = 65
    ANY = 255


class Malformed(ValueError):
    """No query, or not in its one form: it gets no answer at all."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question."""

    id: int
    recursion_desired: bool
    question: bytes
    """As it came, name in its own case (some resolvers check that), type and class."""
    host: str | None
    """The name in canonical form; None for what can be no host."""
    type: int
    class_: int

    @property
    def kind(self) -> Type | None:
        """Its type where that has a name here, and its class is IN."""
        return Type(self.type) if self.class_ == _IN and self.type in _KNOWN else None


_KNOWN = frozenset(Type)


def read_query(data: bytes) -> Query:
    """Raises Malformed. What follows the question (EDNS, a signature) is not looked at."""
    if len(data) < _HEADER.size:
        raise Malformed("shorter than a header")
    identifier, flags, questions, answers, authorities, additional = _HEADER.unpack_from(data)
    if flags & (_RESPONSE | _OPCODE) or (questions, answers, authorities) != (1, 0, 0) or additional > 2:
        raise Malformed("no plain query with one question")
    labels, end = _labels(data, _HEADER.size)
    if len(data) < end + _QUESTION.size:
        raise Malformed("the question is cut off")
    kind, class_ = _QUESTION.unpack_from(data, end)
    end += _QUESTION.size
    if (len(data) > end) is not (additional > 0):
        raise Malformed("more or less than the header says")
    question = data[_HEADER.size : end]
    return Query(identifier, bool(flags & _RECURSION_DESIRED), question, _host(labels), kind, class_)


def answer(query: Query) -> tuple[bytes, bool]:
    """The response, and whether it holds an address. Without one it is "no data", not "no such name": other
    types of the name may have some, and resolvers remember what does not exist."""
    found = synthetic(query.host) if query.host is not None else None
    data = _address(query.kind, found) if found is not None else b""
    flags = _RESPONSE | _RECURSION_AVAILABLE | (_RECURSION_DESIRED if query.recursion_desired else 0)
    head = _HEADER.pack(query.id, flags, 1, 1 if data else 0, 0, 0)
    if not data:
        return head + query.question, False
    record = _FIRST_NAME + struct.pack("!HHIH", query.type, _IN, TTL, len(data)) + data
    return head + query.question + record, True


def _address(kind: Type | None, found: Synthetic) -> bytes:
    if kind is Type.A:
        return found.ipv4.packed
    return found.ipv6.packed if kind is Type.AAAA else b""


def _labels(data: bytes, at: int) -> tuple[list[bytes], int]:
    """The labels of the name that begins at `at`, and where it ends. A first name has nothing to point to."""
    start = at
    labels: list[bytes] = []
    while True:
        if at >= len(data) or at - start >= _NAME:
            raise Malformed("a name without an end")
        size = data[at]
        at += 1
        if size == 0:
            return labels, at
        if size > 63 or at + size > len(data):
            raise Malformed("an invalid label")
        labels.append(data[at : at + size])
        at += size


def _host(labels: list[bytes]) -> str | None:
    if any(b"." in label for label in labels):
        return None  # a dot inside a label would make it look like two
    try:
        return canonical_host(b".".join(labels).decode("latin-1"))
    except HostRefused:
        return None
