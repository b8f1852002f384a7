"""One range, cut out of an answer that came whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.message import Headers, RequestHead, ResponseHead
from coatcheck.decision.ranges import NO_PART, Cutting, Part, asked_part

LENGTH = 100


def asked(value: str, *more: tuple[str, str], answer: Headers = (), method: str = "GET") -> Part | None:
    request = RequestHead(method, "/", (("range", value), *more))
    return asked_part(request, ResponseHead(200, answer), LENGTH)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("bytes=0-0", Part(0, 0)),
        ("bytes=10-19", Part(10, 19)),
        ("Bytes= 10-19 ", Part(10, 19)),
        ("bytes=10-", Part(10, 99)),
        ("bytes=99-1000", Part(99, 99)),
        ("bytes=-1", Part(99, 99)),
        ("bytes=-1000", Part(0, 99)),
        ("bytes=0-999999999999999999", Part(0, 99)),
        ("bytes=100-", NO_PART),
        ("bytes=100-200", NO_PART),
        ("bytes=-0", NO_PART),
    ],
)
def test_a_range_is_read_as_rfc_9110_says(value: str, part: Part) -> None:
    """14.1.2: from, from and to, the last so many; what is not there is 416."""
    assert asked(value) == part


@pytest.mark.parametrize(
    "value",
    [
        *(
            "bytes=0-1,5-6",
            "bytes=1-0",
            "bytes=-",
            "bytes=",
            "bytes",
            "items=0-1",
            "bytes=a-b",
            "bytes=0x1-2",
        ),
        *("bytes=0--1", "bytes=1-2-3", "bytes=9999999999999999999-", "bytes=+1-2", "bytes=\u0661-2", ""),
    ],
)
def test_several_ranges_and_what_is_none_get_the_whole(value: str) -> None:
    """A server may ignore a range (RFC 9110 14.2)."""
    assert asked(value) is None


def test_a_range_is_for_one_get_that_succeeds() -> None:
    """Two headers have two readings; an error's page is no part of anything."""
    assert asked("bytes=1-", method="HEAD") is None
    assert asked("bytes=1-", method="POST") is None
    assert asked("bytes=1-", ("range", "bytes=2-")) is None
    request = RequestHead("GET", "/", (("range", "bytes=1-"),))
    for status in (201, 203, 206, 304, 404):
        assert asked_part(request, ResponseHead(status, ()), LENGTH) is None


MODIFIED, DATE = "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT"


@pytest.mark.parametrize(
    ("condition", "answer", "holds"),
    [
        ('"v1"', (("etag", '"v1"'),), True),
        ('"v1"', (("etag", '"v2"'),), False),
        ('"v1"', (("etag", 'W/"v1"'),), False),
        ('W/"v1"', (("etag", 'W/"v1"'),), False),
        ('"v1"', (), False),
        (MODIFIED, (("last-modified", MODIFIED), ("date", DATE)), True),
        (MODIFIED, (("last-modified", MODIFIED), ("date", MODIFIED)), False),
        (MODIFIED, (("last-modified", MODIFIED),), False),
        (MODIFIED, (("last-modified", DATE), ("date", DATE)), False),
        ("soon", (("last-modified", "soon"), ("date", DATE)), False),
        ("", (), False),
    ],
)
def test_a_part_of_another_version_is_not_given(condition: str, answer: Headers, holds: bool) -> None:
    """If-Range, 13.1.5: strong validators only; two halves of two versions are no file."""
    assert asked("bytes=1-", ("if-range", condition), answer=answer) == (Part(1, 99) if holds else None)


def test_two_conditions_are_none() -> None:
    """Nobody knows which."""
    same = ("if-range", '"v1"')
    assert asked("bytes=1-", same, same, answer=(("etag", '"v1"'),)) is None


@given(st.binary(max_size=60), st.data())
def test_what_is_cut_is_that_part_however_the_body_comes(body: bytes, data: st.DataObject) -> None:
    """And it is over as soon as the last byte of it has come."""
    first = data.draw(st.integers(0, 70))
    part = Part(first, data.draw(st.integers(first - 1, 75)))
    cutting, out, at = Cutting(part), b"", 0
    while at < len(body):
        step = data.draw(st.integers(0, 9))
        out, at = out + cutting.cut(body[at : at + step]), at + step
        assert cutting.over is (min(at, len(body)) > part.last)
    assert out == body[part.first : part.last + 1]
