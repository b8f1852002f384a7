"""Request heads that two parsers could read differently are refused (I7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import MAX_ESCAPES, MAX_HEADER_BYTES, MAX_HEADERS, check_connect, check_head
from coatcheck.decision.message import RequestHead

VERSION = ("sec-websocket-version", "13")
KEY = ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==")


def head(*headers: tuple[str, str], method: str = "GET", version: str = "HTTP/1.1") -> RequestHead:
    return RequestHead(method, "/", headers, version)


def reason(denial: Deny | None) -> Reason | None:
    return denial.reason if denial is not None else None


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ((("host", "a"), ("host", "a")), Reason.HEADER_FORM_REFUSED),
        ((("content-length", "1"), ("content-length", "1")), Reason.HEADER_FORM_REFUSED),
        ((("authorization", "a"), ("authorization", "b")), Reason.HEADER_FORM_REFUSED),
        ((("content-length", "1"), ("transfer-encoding", "chunked")), Reason.FRAMING_REFUSED),
        ((("transfer-encoding", "gzip, chunked"),), Reason.FRAMING_REFUSED),
        ((("transfer-encoding", "Chunked"),), Reason.FRAMING_REFUSED),
        ((("transfer-encoding", "chunked\t"),), Reason.FRAMING_REFUSED),
        ((("transfer-encoding", "\x0bchunked"),), Reason.HEADER_FORM_REFUSED),
        ((("content-length", "+1"),), Reason.FRAMING_REFUSED),
        ((("content-length", "01"),), Reason.FRAMING_REFUSED),
        ((("content-length", "1,1"),), Reason.FRAMING_REFUSED),
        ((("content-length", "²"),), Reason.FRAMING_REFUSED),
        ((("content-length", "9" * 16),), Reason.FRAMING_REFUSED),
        ((("content_length", "1"),), Reason.FRAMING_REFUSED),
        ((("transfer_encoding", "chunked"),), Reason.FRAMING_REFUSED),
        ((("trailer", "x"),), Reason.FRAMING_REFUSED),
        ((("expect", "200-maybe"),), Reason.FRAMING_REFUSED),
        ((("upgrade", "h2c"),), Reason.PROTOCOL_REFUSED),
        ((("upgrade", "websocket, h2c"),), Reason.PROTOCOL_REFUSED),
        ((("upgrade", "websocket"), ("sec-websocket-version", "12")), Reason.PROTOCOL_REFUSED),
        ((("upgrade", "websocket"),), Reason.PROTOCOL_REFUSED),
        ((("upgrade", "websocket"), VERSION), Reason.PROTOCOL_REFUSED),
        ((("upgrade", "websocket"), VERSION, ("sec-websocket-key", "")), Reason.PROTOCOL_REFUSED),
        ((("upgrade", "websocket"), VERSION, ("sec-websocket-key", "eA==")), Reason.PROTOCOL_REFUSED),
        ((("upgrade", "websocket"), VERSION, (KEY[0], KEY[1] + "A")), Reason.PROTOCOL_REFUSED),
        ((("upgrade", "websocket"), VERSION, KEY, KEY), Reason.HEADER_FORM_REFUSED),
        ((("x", "a\x85b"),), Reason.HEADER_FORM_REFUSED),
        ((("x", "chunked\xa0"),), Reason.HEADER_FORM_REFUSED),
        ((("x", "a\xc2\x85b"),), Reason.HEADER_FORM_REFUSED),
        ((("x", "a\xc2\xa0"),), Reason.HEADER_FORM_REFUSED),
        ((("x", "%25" * (MAX_ESCAPES + 1)),), Reason.HEADER_FORM_REFUSED),
        (
            (("x", "%25" * (MAX_ESCAPES // 2)), ("y", "%" * (MAX_ESCAPES // 2 + 1))),
            Reason.HEADER_FORM_REFUSED,
        ),
        ((("connection", "close, authorization"),), Reason.HEADER_FORM_REFUSED),
        ((("x y", "1"),), Reason.HEADER_FORM_REFUSED),
        ((("", "1"),), Reason.HEADER_FORM_REFUSED),
        ((("x", "a\rb"),), Reason.HEADER_FORM_REFUSED),
        ((("x", "a\nb"),), Reason.HEADER_FORM_REFUSED),
        ((("x", "a\x00b"),), Reason.HEADER_FORM_REFUSED),
        ((("x", "a\x7fb"),), Reason.HEADER_FORM_REFUSED),
        (tuple((f"x-{n}", "") for n in range(MAX_HEADERS + 1)), Reason.HEADER_FORM_REFUSED),
        ((("x", "a" * MAX_HEADER_BYTES),), Reason.HEADER_FORM_REFUSED),
    ],
)
def test_ambiguous_headers_are_refused(headers: tuple[tuple[str, str], ...], why: Reason) -> None:
    """Each of these is one message to one reader and another to the next."""
    assert reason(check_head(head(*headers), http2=False)) is why


@pytest.mark.parametrize(
    ("method", "version", "http2", "why"),
    [
        ("GET", "HTTP/2.0", False, Reason.FRAMING_REFUSED),
        ("GET", "HTTP/1.1", True, Reason.FRAMING_REFUSED),
        ("GET", "HTTP/0.9", False, Reason.FRAMING_REFUSED),
        ("get", "HTTP/1.1", False, Reason.HEADER_FORM_REFUSED),
        ("G T", "HTTP/1.1", False, Reason.HEADER_FORM_REFUSED),
        ("", "HTTP/1.1", False, Reason.HEADER_FORM_REFUSED),
        ("A" * 33, "HTTP/1.1", False, Reason.HEADER_FORM_REFUSED),
        ("TRACE", "HTTP/1.1", False, Reason.METHOD_NOT_ALLOWED),
        ("TRACK", "HTTP/1.1", False, Reason.METHOD_NOT_ALLOWED),
        ("CONNECT", "HTTP/1.1", False, Reason.METHOD_NOT_ALLOWED),
        ("PRI", "HTTP/1.1", False, Reason.METHOD_NOT_ALLOWED),
    ],
)
def test_methods_and_versions_with_two_readings_are_refused(
    method: str, version: str, http2: bool, why: Reason
) -> None:
    """`HTTP/2.0` in an HTTP/1 line made mitmproxy route by one name and send another (notes 4.2)."""
    assert reason(check_head(head(method=method, version=version), http2=http2)) is why


@pytest.mark.parametrize(
    "headers",
    [
        (("host", "a"), ("content-length", "0"), ("accept", "*/*"), ("x-note", "tabs\tare fine")),
        (("transfer-encoding", "chunked"), ("expect", "100-continue")),
        (("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket"), VERSION, KEY),
        (("x-name", "caf\u00c3\u00a9"), ("x-more", "d\u00c3\u00a0\t"), ("x-latin", "caf\u00e9")),
        (("cookie", "a=1"), ("cookie", "b=2"), ("x-latin", "caf\xe9")),
    ],
)
def test_what_clients_really_send_passes(headers: tuple[tuple[str, str], ...]) -> None:
    """Strictness that breaks curl or an SDK would be switched off."""
    assert check_head(head(*headers), http2=False) is None


@given(st.text(st.characters(max_codepoint=255), max_size=20))
def test_no_control_character_ever_passes(value: str) -> None:
    """Whatever passes holds no byte that ends a line or hides text."""
    if check_head(head(("x", value)), http2=False) is None:
        assert not any(ord(char) < 0x20 and char != "\t" or ord(char) == 0x7F for char in value)


@pytest.mark.parametrize("http2", [False, True])
def test_a_length_that_no_body_follows_is_refused(http2: bool) -> None:
    """HTTP/2 can say both (h2 does not look); forwarded as HTTP/1, the next request would be the body."""
    version = "HTTP/2.0" if http2 else "HTTP/1.1"
    ended = RequestHead("POST", "/", (("content-length", "5"),), version, end_stream=True)
    assert reason(check_head(ended, http2=http2)) is Reason.FRAMING_REFUSED
    for length, end_stream in (("0", True), ("5", False)):
        sound = RequestHead("POST", "/", (("content-length", length),), version, end_stream=end_stream)
        assert check_head(sound, http2=http2) is None


LONG = (("x", "a" * 40_000), ("y", "b" * (MAX_HEADER_BYTES - 40_002)))


@pytest.mark.parametrize(
    ("request_head", "why"),
    [
        (head(version="HTTP/1.0"), None),
        (head(method="A" * 32), None),
        (head(*((f"x-{n}", "") for n in range(MAX_HEADERS))), None),
        (head(*LONG), None),
        (head(*LONG, ("z", "")), Reason.HEADER_FORM_REFUSED),
        (RequestHead("POST", "/", (("content-length", "9" * 15),), end_stream=False), None),
        (RequestHead("POST", "/", (("content-length", "9" * 16),), end_stream=False), Reason.FRAMING_REFUSED),
        (
            RequestHead(
                "POST", "/", (("transfer-encoding", "chunked"), ("content-length", "5")), end_stream=False
            ),
            Reason.FRAMING_REFUSED,
        ),
        (
            RequestHead("POST", "/", (("transfer-encoding", "chunked"),), "HTTP/1.0", end_stream=False),
            Reason.FRAMING_REFUSED,
        ),
    ],
)
def test_bounds_are_exact_and_no_other_rule_hides_them(request_head: RequestHead, why: Reason | None) -> None:
    """What is allowed to the last byte, and what would be framed twice with a body behind it."""
    assert reason(check_head(request_head, http2=False)) is why


@pytest.mark.parametrize(
    ("request_head", "why"),
    [
        (head(("host", "a:443"), method="CONNECT"), None),
        (head(("host", "a:443"), method="CONNECT", version="HTTP/1.0"), None),
        (head(method="connect"), Reason.FRAMING_REFUSED),
        (head(method="CONNECT", version="HTTP/2.0"), Reason.FRAMING_REFUSED),
        (head(("content-length", "0"), method="CONNECT"), Reason.FRAMING_REFUSED),
        (head(("transfer-encoding", "chunked"), method="CONNECT"), Reason.FRAMING_REFUSED),
        (head(*((f"x-{n}", "") for n in range(MAX_HEADERS)), method="CONNECT"), None),
        (
            head(*((f"x-{n}", "") for n in range(MAX_HEADERS + 1)), method="CONNECT"),
            Reason.HEADER_FORM_REFUSED,
        ),
        (head(("host", "a"), ("host", "a"), method="CONNECT"), Reason.HEADER_FORM_REFUSED),
    ],
)
def test_connect_has_no_body_and_one_reading(request_head: RequestHead, why: Reason | None) -> None:
    """A body could be taken for the tunnel's first bytes (RFC 9110 9.3.6)."""
    assert reason(check_connect(request_head)) is why
