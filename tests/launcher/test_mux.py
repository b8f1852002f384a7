"""The mux, against itself and against everything that a guest could say."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.launcher.frames import (
    FRAME_COST,
    MAX_NOTE,
    MAX_PAYLOAD,
    MORE,
    WINDOW,
    Kind,
    Rule,
    Violation,
    encode,
    encode_fields,
)
from coatcheck.launcher.mux import (
    MAX_GUEST_STREAMS,
    Data,
    Ended,
    Event,
    Greeted,
    Mux,
    Noted,
    Opened,
    Side,
    WasReset,
    cost,
)
from tests.fuzz.budget import budget

HELLO = encode(Kind.HELLO, 0, encode_fields([("protocol", "2")]))
OPEN = encode_fields([("kind", "proxy"), ("identity", "agent")])


def greeted() -> Mux:
    """The host's side, after the guest's HELLO."""
    mux = Mux(Side.HOST)
    assert list(mux.receive(HELLO)) == [Greeted((("protocol", "2"),))]
    return mux


def both() -> tuple[Mux, Mux]:
    host, guest = Mux(Side.HOST), Mux(Side.GUEST)
    list(host.receive(guest.hello([])))
    list(guest.receive(host.hello([])))
    return host, guest


def open_2(mux: Mux) -> None:
    list(mux.receive(encode(Kind.OPEN, 2, OPEN)))


@pytest.mark.parametrize(
    ("wire", "rule"),
    [
        (encode(Kind.OPEN, 2, OPEN), Rule.HELLO_FIRST),
        (HELLO + HELLO, Rule.HELLO_ONCE),
        (encode(Kind.HELLO, 2, encode_fields([("protocol", "2")])), Rule.STREAM_ID),
        (encode(Kind.HELLO, 0, encode_fields([("protocol", "3")])), Rule.PROTOCOL_VERSION),
        (encode(Kind.HELLO, 0), Rule.PROTOCOL_VERSION),
        (HELLO + encode(Kind.OPEN, 1, OPEN), Rule.STREAM_ID),
        (HELLO + encode(Kind.OPEN, 0, OPEN), Rule.STREAM_ID),
        (HELLO + encode(Kind.OPEN, 4, OPEN) + encode(Kind.OPEN, 2, OPEN), Rule.STREAM_ID),
        (HELLO + encode(Kind.OPEN, 2, OPEN) * 2, Rule.STREAM_ID),
        (HELLO + encode(Kind.OPEN, 2, OPEN, MORE), Rule.UNEXPECTED_FLAGS),
        (HELLO + encode(Kind.OPEN, 2, encode_fields([("identity", "x")])), Rule.MALFORMED_FIELDS),
        (HELLO + encode(Kind.OPEN, 2, b"kind\0proxy"), Rule.MALFORMED_FIELDS),
        (HELLO + encode(Kind.OPEN, 2, b"kind\0\xff\0"), Rule.MALFORMED_FIELDS),
        (HELLO + encode(Kind.OPEN, 2, encode_fields([("kind", "x" * MAX_NOTE)])), Rule.OVERSIZED_FRAME),
        (HELLO + encode(Kind.OPEN, 2, OPEN + b"a\0\0" * 16), Rule.TOO_MANY_FIELDS),
        (HELLO + encode(Kind.DATA, 2, b"x"), Rule.STREAM_NEVER_OPENED),
        (HELLO + encode(Kind.DATA, 1, b"x"), Rule.STREAM_NEVER_OPENED),
        (HELLO + encode(Kind.END, 0), Rule.STREAM_NEVER_OPENED),
        (HELLO + b"\x08\0\0\0\0\0\0\0", Rule.UNKNOWN_FRAME),
        (HELLO + b"\x03\0\x80\x01\0\0\0\x02", Rule.OVERSIZED_FRAME),
    ],
)
def test_what_a_guest_may_not_say_first(wire: bytes, rule: Rule) -> None:
    """Each broken rule has its name."""
    with pytest.raises(Violation) as violation:
        list(Mux(Side.HOST).receive(wire))
    assert violation.value.rule is rule


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ([encode(Kind.DATA, 2)], Rule.MALFORMED_FRAME),
        ([encode(Kind.DATA, 2, b"x", 1)], Rule.UNEXPECTED_FLAGS),
        ([encode(Kind.END, 2, b"", 1)], Rule.UNEXPECTED_FLAGS),
        ([encode(Kind.DATA, 2, b"x" * MAX_PAYLOAD)] * 8, Rule.WINDOW_EXCEEDED),
        ([encode(Kind.DATA, 2, b"x")] * (WINDOW // FRAME_COST), Rule.WINDOW_EXCEEDED),
        ([encode(Kind.WINDOW, 2, b"\0\0\0\1")], Rule.CREDIT_EXCEEDED),
        ([encode(Kind.WINDOW, 2, b"\0\0\1")], Rule.MALFORMED_FRAME),
        ([encode(Kind.END, 2, b"x")], Rule.MALFORMED_FRAME),
        ([encode(Kind.END, 2)] * 2, Rule.AFTER_END),
        ([encode(Kind.END, 2), encode(Kind.DATA, 2, b"x")], Rule.AFTER_END),
        ([encode(Kind.NOTE, 2, b"x")], Rule.MALFORMED_FIELDS),
        ([encode(Kind.NOTE, 2, encode_fields([("a", "x" * MAX_NOTE)]))], Rule.OVERSIZED_FRAME),
        ([encode(Kind.RESET, 2, b"\0")], Rule.MALFORMED_FIELDS),
        ([encode(Kind.RESET, 2, b"a\0\0" * 17)], Rule.TOO_MANY_FIELDS),
        ([encode(Kind.NOTE, 2, encode_fields([("a", "x")]))], Rule.TOO_MANY_NOTES),
    ],
)
def test_what_a_guest_may_not_say_on_a_stream(frames: list[bytes], rule: Rule) -> None:
    """Flow control is a promise, and a promise that is broken ends it."""
    mux = greeted()
    open_2(mux)
    with pytest.raises(Violation) as violation:
        list(mux.receive(b"".join(frames)))
    assert violation.value.rule is rule


def test_a_guest_holds_so_many_streams_and_no_more() -> None:
    """One that ended makes room for one."""
    mux = greeted()
    numbers = range(2, 2 * MAX_GUEST_STREAMS + 2, 2)
    list(mux.receive(b"".join(encode(Kind.OPEN, number, OPEN) for number in numbers)))
    list(mux.receive(encode(Kind.RESET, 2)))
    list(mux.receive(encode(Kind.OPEN, 5000, OPEN)))
    with pytest.raises(Violation) as violation:
        list(mux.receive(encode(Kind.OPEN, 5002, OPEN)))
    assert violation.value.rule is Rule.TOO_MANY_STREAMS


def test_what_crossed_a_reset_is_ignored() -> None:
    """It was on its way when we dropped the stream."""
    mux = greeted()
    open_2(mux)
    assert mux.reset(2, "closed")
    late = encode(Kind.DATA, 2, b"x") + encode(Kind.WINDOW, 2, b"\0\0\0\1") + encode(Kind.END, 2)
    assert list(mux.receive(late + encode(Kind.NOTE, 2) + encode(Kind.RESET, 2))) == []
    assert (mux.end(2), mux.reset(2, "closed"), mux.note(2, []), mux.consumed(2, 1)) == (b"",) * 4


def test_a_stream_ends_in_each_direction_by_itself() -> None:
    """Notes may come after the end of the bytes: a signal to a program whose input has ended."""
    host, guest = both()
    number, wire = host.open("exec", [("arg", "cat")])
    assert list(guest.receive(wire)) == [Opened(1, "exec", (("arg", "cat"),))]
    assert list(guest.receive(host.end(1) + host.note(1, [("signal", "2")]))) == [
        Ended(1),
        Noted(1, (("signal", "2"),)),
    ]
    said = guest.data(number, b"out") + guest.data(number, b"err", 1) + guest.end(number)
    assert list(host.receive(said)) == [Data(1, b"out", 0), Data(1, b"err", 1), Ended(1)]
    assert not host.is_open(1) and not guest.is_open(1)


def test_credit_is_given_back_and_never_exceeds_the_window() -> None:
    """What was read may be sent again; a sender without credit may send nothing."""
    host, guest = both()
    number, wire = guest.open("proxy", [])
    list(host.receive(wire))
    sent = 0
    while size := guest.may_send(number):
        list(host.receive(guest.data(number, b"x" * size)))
        sent += cost(size)
    assert WINDOW - FRAME_COST <= sent <= WINDOW
    with pytest.raises(ValueError, match="may be sent"):
        guest.data(number, b"x" * (FRAME_COST + 1))
    list(guest.receive(host.consumed(number, 1000)))
    assert guest.may_send(number) >= 1000 - FRAME_COST
    assert guest.data(number, b"x" * guest.may_send(number))


def test_long_openings_take_several_frames() -> None:
    """argv and environment of a command; longer than allowed is refused before it is sent."""
    host, guest = both()
    fields = [("arg", "x" * 100_000), ("env", "y" * 100_000)]
    _, wire = host.open("exec", fields)
    assert len(wire) > 6 * MAX_PAYLOAD
    assert list(guest.receive(wire)) == [Opened(1, "exec", tuple(fields))]
    with pytest.raises(ValueError, match="are allowed"):
        host.open("exec", [("arg", "x" * 300_000)])
    with pytest.raises(ValueError, match="are allowed"):
        guest.open("proxy", [("identity", "x" * 5000)])


def test_an_unfinished_opening_must_go_on() -> None:
    """Nothing else may come between its frames."""
    for wrong in (encode(Kind.END, 1), encode(Kind.OPEN, 3, b"x", MORE)):
        _, guest = both()
        list(guest.receive(encode(Kind.OPEN, 1, b"kind\0", MORE)))
        with pytest.raises(Violation) as violation:
            list(guest.receive(wrong))
        assert violation.value.rule is Rule.MALFORMED_FRAME


def test_a_reset_tells_why() -> None:
    """In words of the protocol, and for people."""
    host, guest = both()
    number, wire = host.open("read", [("path", "/x")])
    list(guest.receive(wire))
    reset = guest.reset(number, "file_not_found", "no /x")
    assert list(host.receive(reset)) == [WasReset(1, "file_not_found", "no /x")]


# ------------------------------------------------------------------------------------------- fuzzing

_numbers = st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1))
_payloads = st.one_of(
    st.binary(max_size=64),
    st.just(OPEN),
    st.just(b"\0\0\0\1"),
    st.integers(0, WINDOW).map(lambda credit: credit.to_bytes(4, "big")),
    st.integers(1, MAX_PAYLOAD).map(bytes),
)
_frames = st.builds(
    encode, st.sampled_from(Kind), _numbers, _payloads, st.sampled_from([0, 0, 0, 0, 1, 2, 255])
)


@budget(100)
@given(st.lists(st.one_of(_frames, st.binary(max_size=30)), max_size=30), st.booleans(), st.data())
def test_whatever_a_guest_says_is_events_or_a_violation(
    said: list[bytes], greets: bool, data: st.DataObject
) -> None:
    """In any split the same; never another exception, never more received than was allowed."""
    wire = (HELLO if greets else b"") + b"".join(said)
    cut = data.draw(st.integers(0, len(wire)))
    assert _heard([wire]) == _heard([wire[:cut], wire[cut:]])


def _heard(pieces: list[bytes]) -> tuple[list[Event], Rule | None]:
    mux = Mux(Side.HOST)
    mux.open("exec", [])
    mux.open("exec", [])
    events: list[Event] = []
    received: dict[int, int] = {}
    try:
        for piece in pieces:
            for event in mux.receive(piece):
                events.append(event)
                if isinstance(event, Data):
                    received[event.stream] = received.get(event.stream, 0) + cost(len(event.data))
                    assert received[event.stream] <= WINDOW
    except Violation as violation:
        return events, violation.rule
    return events, None


def test_a_flood_within_the_rules_keeps_nothing() -> None:
    """Streams that are opened and dropped leave no trace but a number."""
    mux = greeted()

    def flood(first: int, last: int) -> int:
        for number in range(first, last, 2):
            for _ in mux.receive(encode(Kind.OPEN, number, OPEN) + encode(Kind.RESET, number)):
                pass
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = flood(2, 4000)
        assert flood(4000, 12_000) - before < 20_000
    finally:
        tracemalloc.stop()
