"""One question in, its synthetic address or nothing out, as another reader (mitmproxy's) reads it."""

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.dns import DNSMessage

from coatcheck.decision.synthetic import synthetic
from coatcheck.planes.dns.message import MAX_QUERY, Malformed, Type, answer, read_query

OPT = b"\0" + struct.pack("!HHIH", 41, 1232, 0, 0)
"""EDNS: what modern resolvers put behind each question."""


def query(
    name: str | bytes = "api.openai.com",
    kind: int = Type.A,
    *,
    class_: int = 1,
    flags: int = 0x0100,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0),
    rest: bytes = b"",
) -> bytes:
    if isinstance(name, str):
        name = b"".join(bytes((len(label),)) + label.encode() for label in name.split(".") if label) + b"\0"
    return struct.pack("!HHHHHH", 4711, flags, *counts) + name + struct.pack("!HH", kind, class_) + rest


def answered(data: bytes) -> DNSMessage:
    response, found = answer(read_query(data))
    message = DNSMessage.unpack(response)
    assert (message.id, message.query, message.response_code) == (4711, False, 0)
    assert message.recursion_available
    assert found is bool(message.answers)
    assert len(response) <= len(data) + 28  # nobody is flooded with what somebody else asked
    return message


@pytest.mark.parametrize("rest", [b"", OPT])
@pytest.mark.parametrize("name", ["api.openai.com", "API.openAI.com", "xn--bcher-kva.example", "localhost"])
def test_a_name_has_one_address_of_each_family(name: str, rest: bytes) -> None:
    """Whatever its case, which comes back as it was sent (resolvers check that)."""
    found = synthetic(name.lower())
    assert found is not None
    for kind, address in ((Type.A, found.ipv4), (Type.AAAA, found.ipv6)):
        data = query(name, kind, counts=(1, 0, 0, 1 if rest else 0), rest=rest)
        message = answered(data)
        (record,) = message.answers
        family = IPv4Address if kind is Type.A else IPv6Address
        assert (record.type, record.ttl, family(record.data)) == (kind, 300, address)
        assert message.recursion_desired
        assert answer(read_query(data))[0][12:].startswith(data[12 : len(data) - len(rest)])


@pytest.mark.parametrize("kind", [kind for kind in [*Type, 99, 65_535] if kind not in (Type.A, Type.AAAA)])
def test_other_types_get_no_data(kind: int) -> None:
    """TXT, HTTPS, MX and what is yet to come: the name exists, and has nothing of that."""
    assert not answered(query(kind=kind)).answers


@pytest.mark.parametrize(
    "name",
    [
        "",
        "_dns.resolver.arpa",
        "203.0.113.7",
        "127.1",
        b"\3a.b\3com\0",
        b"\4b\xc3\xbcr\3com\0",
        b"\1\0\0",
        "-a.b",
    ],
)
def test_what_can_be_no_host_has_no_address(name: str | bytes) -> None:
    """No policy could allow it, so it needs none; a dot inside a label would make it another name."""
    response, found = answer(read_query(query(name)))
    assert not found
    assert response[2:4] == b"\x81\x80"


def test_other_classes_have_no_data() -> None:
    """CHAOS asks for versions."""
    assert not answered(query("version.bind", Type.A, class_=3)).answers


@pytest.mark.parametrize(
    "data",
    [
        b"",
        query()[:11],
        query()[:-1],
        query()[:20],
        query(flags=0x8100),
        query(flags=0x2900),
        query(counts=(0, 0, 0, 0)),
        query(counts=(2, 0, 0, 0), rest=query()[12:]),
        query(counts=(1, 1, 0, 0), rest=OPT),
        query(counts=(1, 0, 1, 0), rest=OPT),
        query(counts=(1, 0, 0, 1)),
        query(counts=(1, 0, 0, 3), rest=OPT * 3),
        query(rest=b"\0"),
        query(b"\xc0\x0c"),
        query(b"\3api\xc0\x0c"),
        query(b"\x40" + b"a" * 64 + b"\0"),
        query((b"\x3f" + b"a" * 63) * 4 + b"\0"),
    ],
)
def test_what_is_no_plain_question_gets_no_answer(data: bytes) -> None:
    """Answers, updates, several questions, loops, names that are too long, more or less than announced."""
    with pytest.raises(Malformed):
        read_query(data)


@given(st.binary(max_size=MAX_QUERY))
def test_garbage_is_malformed_and_nothing_else(data: bytes) -> None:
    """No other error, and no long work."""
    try:
        response, _ = answer(read_query(data))
    except Malformed:
        return
    assert response[:2] == data[:2]


@given(st.binary(min_size=1, max_size=300), st.integers(0, 65_535))
def test_any_name_is_answered_or_malformed(name: bytes, kind: int) -> None:
    """Behind a header that is right."""
    try:
        response, found = answer(read_query(query(name, kind)))
    except Malformed:
        return
    assert len(response) == len(query(name, kind)) + (0 if not found else 16 if kind == Type.A else 28)
