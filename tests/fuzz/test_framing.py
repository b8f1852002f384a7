"""I7 for HTTP/1: our reading of a request is that of two other parsers, or the request is refused."""

import h11
from hypothesis import event, example, given
from hypothesis import strategies as st

from tests.fuzz import strict_http1
from tests.fuzz.budget import budget
from tests.fuzz.http1_reading import HOST, parse
from tests.fuzz.http1_wire import cut, wires
from tests.fuzz.strict_http1 import Reading, in_full

CHUNKED = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"


PLAIN = st.lists(st.integers(0, 2000), max_size=4)


@given(wires(), PLAIN, st.booleans())
@example(CHUNKED + b"3\r\nabc\r\n0\r\n\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n", [], True)
@example(CHUNKED + b"3;a\rb\r\nabc\r\n0\r\n\r\n", [], True)
@example(CHUNKED + b"3;\r\nabc\r\n0;\r\n\r\n", [], True)
@example(b"GET / HTTP/1.1\r\nHost: a.example\r\r\n\r\n", [], True)
@budget(250)
def test_what_goes_on_is_what_a_strict_parser_reads(wire: bytes, places: list[int], tunnelled: bool) -> None:
    """By RFC 9112's grammar alone: method, target, fields, body and where the next request begins."""
    at = 0
    for ours in parse(cut(wire, places), tunnelled=tunnelled).complete:
        theirs, at = strict_http1.read(wire, at)
        assert ours == theirs
        assert not tunnelled or ours.destination == HOST
        event("complete")


@given(wires(), PLAIN, st.booleans())
@budget(200)
def test_what_goes_on_is_what_h11_reads(wire: bytes, places: list[int], tunnelled: bool) -> None:
    """Field by field. It knows nothing of empty lines before a request, nor of requests without Host."""
    at = 0
    for ours in parse(cut(wire, places), tunnelled=tunnelled).complete:
        start = at + 2 if wire.startswith(b"\r\n", at) else at
        _, at = strict_http1.read(wire, at)
        if ours.get(b"host"):  # without one, we say upstream what an absolute-form target says
            assert ours == _h11(wire[start:])


def _h11(wire: bytes) -> Reading:
    """The first request in `wire`."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(wire)
    head = connection.next_event()
    assert isinstance(head, h11.Request), head
    body = b""
    while isinstance(part := connection.next_event(), h11.Data):
        body += bytes(part.data)
    assert isinstance(part, h11.EndOfMessage), part
    fields = tuple((bytes(name), bytes(value)) for name, value in head.headers)
    version = b"HTTP/" + head.http_version
    return Reading(head.method, in_full(head.target), version, fields, body, tuple(part.headers))


@given(wires(), PLAIN, st.booleans())
@budget(150)
def test_the_split_makes_no_difference(wire: bytes, places: list[int], tunnelled: bool) -> None:
    """The same requests go on however the bytes arrive, one by one at worst."""
    whole = parse([wire], tunnelled=tunnelled)
    pieces = parse(cut(wire, places), tunnelled=tunnelled)
    single = parse([wire[at : at + 1] for at in range(len(wire))], tunnelled=tunnelled)
    assert whole.complete == pieces.complete == single.complete
    assert whole.over == pieces.over == single.over
