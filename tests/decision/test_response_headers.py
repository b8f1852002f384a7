"""An answer's headers: where the bounds are, which length counts, and what of Connection stays."""

import pytest

from coatcheck.decision.message import Headers, ResponseHead
from coatcheck.decision.response_headers import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    HeaderRefused,
    checked_headers,
    content_length,
    end_to_end,
    masked,
    tokens,
)
from coatcheck.decision.scrub import Patterns

SECRET = "sk-proj-0123456789abcdefABCDEF"


def test_a_list_is_read_over_all_of_its_headers() -> None:
    """Lower-case, without blanks and without empty members (RFC 9110 5.6.1); other spaces are no blanks."""
    assert tokens(("A, bX,,", "\tXc ", "\x0cd\xa0")) == ("a", "bx", "xc", "\x0cd\xa0")


def test_so_many_headers_and_not_one_more() -> None:
    """By count, and by bytes of names and values together."""
    many: Headers = tuple(("x", "") for _ in range(MAX_HEADERS))
    assert checked_headers(many) == many
    with pytest.raises(HeaderRefused):
        checked_headers((*many, ("x", "")))
    for name, value in ((10, MAX_HEADER_BYTES // 2 - 10), (MAX_HEADER_BYTES // 2 - 10, 10)):
        large: Headers = (("x" * name, "v" * value),) * 2
        assert checked_headers(large) == large
        with pytest.raises(HeaderRefused):
            checked_headers((*large, ("x", "")))


@pytest.mark.parametrize("control", ["\r", "\n", "\0"])
def test_each_control_that_ends_a_line_or_a_text_is_refused(control: str) -> None:
    """Alone, at either end and within."""
    for value in (control, f"{control}a", f"a{control}", f"a{control}b"):
        with pytest.raises(HeaderRefused):
            checked_headers((("x", value),))


@pytest.mark.parametrize("value", ["5X", "X5", "5,5,6", "5;", "5,", "\x0c5", "5\xa0", "9" * 19])
def test_a_length_is_digits_alone(value: str) -> None:
    """Each member of a list, too."""
    with pytest.raises(HeaderRefused):
        content_length(ResponseHead(200, (("content-length", value),)))


@pytest.mark.parametrize("value", ["5", " 5\t", "5, 5,5"])
def test_a_length_said_alike_more_than_once_is_one(value: str) -> None:
    """RFC 9110 8.6. One is left, and what stands behind it stays."""
    headers = (("content-length", value), ("content-length", "5"), ("x", "1"))
    assert content_length(ResponseHead(200, headers)) == 5
    assert end_to_end(headers, 200) == (("content-length", "5"), ("x", "1"))


def test_the_longest_length_has_eighteen_digits() -> None:
    """All that fits into 63 bits."""
    assert content_length(ResponseHead(200, (("content-length", "9" * 18),))) == 10**18 - 1


@pytest.mark.parametrize(
    ("status", "known"), [(101, False), (199, False), (200, True), (204, False), (205, True)]
)
def test_chunks_stand_only_where_a_body_may(status: int, known: bool) -> None:
    """RFC 9112 6.1."""
    head = ResponseHead(status, (("transfer-encoding", "Chunked"),))
    if known:
        assert content_length(head) is None
    else:
        with pytest.raises(HeaderRefused):
            content_length(head)


@pytest.mark.parametrize(
    ("options", "status", "left"),
    [
        ("keep-alive", 200, "keep-alive"),
        ("x-a, Close, keep-alive", 200, "close"),
        ("x-a", 200, None),
        ("upgrade", 200, None),
        ("upgrade, keep-alive", 101, "upgrade"),
        ("close", 101, None),
    ],
)
def test_of_connection_one_option_stays(options: str, status: int, left: str | None) -> None:
    """What tells about the upstream's connection; on a 101, what it is about."""
    kept = dict(end_to_end((("connection", options), ("upgrade", "websocket"), ("x-a", "1")), status))
    assert kept.get("connection") == left
    assert ("upgrade" in kept) is (status == 101)
    assert ("x-a" in kept) is ("x-a" not in options)


def test_headers_that_held_nothing_are_searched_for_other_secrets() -> None:
    """What is remembered of them is remembered for what was looked for, and for exactly these values."""
    headers = (("x-trace", SECRET), ("server", "nginx"))
    other = Patterns.of(["another secret of another tenant"])
    for _ in range(2):
        assert masked(headers, other) == (headers, ())
        assert len(masked(headers, Patterns.of([SECRET]))[1]) == 1
    echo = (("x-trace", "another secret of another tenant"), ("server", "nginx"))
    assert len(masked(echo, other)[1]) == 1


def test_every_echo_is_counted() -> None:
    """In values and in names; what holds none stays as it is."""
    patterns = Patterns.of([SECRET])
    clean: Headers = (("x", "y"), ("z", ""))
    assert masked(clean, patterns) == (clean, ())
    found, runs = masked((("a", f"{SECRET} {SECRET}"), ("b-" + SECRET.lower(), SECRET), *clean), patterns)
    assert (found, len(runs)) == ((("a", "*" * 30 + " " + "*" * 30), *clean), 4)
