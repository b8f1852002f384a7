"""Request heads that two parsers could read differently are refused before anything else (I7).

mitmproxy lets all of these through. Parsers that disagree about them allow request smuggling (RFC 9112 11.2).
"""

import re

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import RequestHead

MAX_HEADERS = 128
"""Header fields a request; common servers stop at 100 (Apache, nginx by size)."""
MAX_HEADER_BYTES = 65_536
"""All names and values together; SigV4, cookies and a few handles fit with room to spare."""

MAX_ESCAPES = 4096
"""Percent signs in target and values together. Handles are looked for behind two rounds of percent-encoding,
at a tenth of a microsecond a sign. A cookie of 4 KB, all of it escapes, has 1,365."""

ONCE = frozenset(
    {
        "host",
        "content-length",
        "content_length",
        "transfer-encoding",
        "transfer_encoding",
        "content-type",
        "content-encoding",
        "authorization",
        "proxy-authorization",
        "expect",
        "upgrade",
        "range",
        "if-range",
        "sec-websocket-key",
        "sec-websocket-version",
        "te",
        "trailer",
        "x-amz-security-token",
        "x-amz-date",
        "x-amz-content-sha256",
    }
)
"""Fields whose repetition proxies and servers resolve differently: first, last, joined."""

CONNECTION_OPTIONS = frozenset({"close", "keep-alive", "upgrade", "te"})
"""Any other option names a header that a later hop would drop: a way to unmake what we decided."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "proxy-authenticate",
        "te",
        "http2-settings",
    }
)
"""Never forwarded: they speak about this connection only (RFC 9110 7.6.1), or to us."""

UNREADABLE_ANSWERS = frozenset({"a-im", "accept-charset", "grpc-accept-encoding"})
"""They may ask for answers in which no secret could be found, so they go where one may be. Accept-Charset is
deprecated anyway (RFC 9110 12.5.2)."""

RANGES = frozenset({"if-range", "range"})
"""A range may begin inside an echo, so requests with a secret lose them."""

BODY_DIGESTS = frozenset({"content-digest", "content-md5", "digest", "repr-digest"})
"""They name the exact bytes of a body (RFC 9530, 1864), so they go when it changes."""

_CONTROL = re.compile("[\0-\x08\x0a-\x1f\x7f]")
_ODD_SPACE = re.compile("[\x85\xa0]")
_WEBSOCKET_KEY = re.compile("[A-Za-z0-9+/]{21}[AQgw]==")
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_METHOD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
_REFUSED_METHODS = frozenset({"TRACE", "TRACK", "CONNECT", "PRI"})
"""TRACE echoes the injected header by design; PRI is HTTP/2's preface in an HTTP/1 line."""


def check_head(head: RequestHead, *, http2: bool) -> Deny | None:
    """None for a head with one reading. `http2`: what the connection negotiated, not what the line says."""
    if head.http_version != "HTTP/2.0" if http2 else head.http_version not in ("HTTP/1.1", "HTTP/1.0"):
        return Deny(Reason.FRAMING_REFUSED, "HTTP version differs from the negotiated protocol")
    if not head.method or len(head.method) > 32 or not _METHOD.issuperset(head.method):
        return Deny(Reason.HEADER_FORM_REFUSED, "malformed method")
    if head.method in _REFUSED_METHODS:
        return Deny(Reason.METHOD_NOT_ALLOWED, f"{head.method} is never forwarded")
    if len(head.headers) > MAX_HEADERS:
        return Deny(Reason.HEADER_FORM_REFUSED, "too many header fields")
    return _check_fields(head)


def check_connect(head: RequestHead) -> Deny | None:
    """None for a CONNECT with one reading: no body, which could be taken for the tunnel's first bytes."""
    if head.method != "CONNECT" or head.http_version not in ("HTTP/1.1", "HTTP/1.0"):
        return Deny(Reason.FRAMING_REFUSED, "CONNECT of another protocol or in another case")
    if head.get("content-length") is not None or head.get("transfer-encoding") is not None:
        return Deny(Reason.FRAMING_REFUSED, "CONNECT with a body (RFC 9110 9.3.6)")
    if len(head.headers) > MAX_HEADERS:
        return Deny(Reason.HEADER_FORM_REFUSED, "too many header fields")
    return _check_fields(head)


def _check_fields(head: RequestHead) -> Deny | None:
    seen: set[str] = set()
    size, escapes = 0, head.target.count("%")
    for name, value in head.headers:
        size += len(name) + len(value)
        escapes += value.count("%")
        if not name or not _TOKEN.issuperset(name):
            return Deny(Reason.HEADER_FORM_REFUSED, "malformed header name")
        if not value.isprintable() and (problem := _unreadable(value)) is not None:
            return Deny(Reason.HEADER_FORM_REFUSED, f"{problem} in {name}")
        if name in ONCE:
            if name in seen:
                return Deny(Reason.HEADER_FORM_REFUSED, f"repeated {name}")
            seen.add(name)
    if size > MAX_HEADER_BYTES:
        return Deny(Reason.HEADER_FORM_REFUSED, "header fields are too large")
    if escapes > MAX_ESCAPES:
        return Deny(Reason.HEADER_FORM_REFUSED, f"more than {MAX_ESCAPES} percent signs in one head")
    return _check_framing(head, seen)


def _unreadable(value: str) -> str | None:
    """Why readers may disagree where `value` (latin-1) begins and ends; None when they do not.

    Bytes 0x85 and 0xA0 are a line break and a space to readers of latin-1. In UTF-8 they are parts of
    letters, as in `à`, and pass as such.
    """
    if _CONTROL.search(value):
        return "control character"
    if not _ODD_SPACE.search(value):
        return None
    try:
        text = value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return "a byte that some take for white space"
    return "white space outside ASCII" if _ODD_SPACE.search(text) else None


def is_websocket_key(value: str | None) -> bool:
    """Whether it is 16 bytes in base64."""
    return value is not None and _WEBSOCKET_KEY.fullmatch(value) is not None


def _check_framing(head: RequestHead, seen: set[str]) -> Deny | None:
    if "content_length" in seen or "transfer_encoding" in seen:
        return Deny(Reason.FRAMING_REFUSED, "a framing field's name with `_`, which CGI and WSGI read as `-`")
    if "transfer-encoding" in seen:
        if "content-length" in seen:
            return Deny(Reason.FRAMING_REFUSED, "both Content-Length and Transfer-Encoding (RFC 9112 6.1)")
        if head.http_version != "HTTP/1.1" or head.get("transfer-encoding") != "chunked":
            return Deny(Reason.FRAMING_REFUSED, "Transfer-Encoding other than exactly `chunked`")
    if "content-length" in seen:
        length = head.get("content-length") or ""
        if not (length.isascii() and length.isdigit()) or len(length) > 15 or str(int(length)) != length:
            return Deny(Reason.FRAMING_REFUSED, "malformed Content-Length")
        if head.end_stream and length != "0":
            # HTTP/2 can end a stream that promised a body: on HTTP/1 the next request would be that body.
            return Deny(Reason.FRAMING_REFUSED, "a Content-Length and no body (RFC 9113 8.1.1)")
    if "trailer" in seen:
        return Deny(Reason.FRAMING_REFUSED, "request trailers are not forwarded")
    if "expect" in seen and (head.get("expect") or "").lower() != "100-continue":
        return Deny(Reason.FRAMING_REFUSED, "unknown expectation")
    return _check_connection(head)


def _check_connection(head: RequestHead) -> Deny | None:
    upgrade = head.get("upgrade")
    if upgrade is not None and upgrade.strip().lower() != "websocket":
        return Deny(Reason.PROTOCOL_REFUSED, "upgrade to something other than websocket")
    if upgrade is not None and not is_websocket_key(head.get("sec-websocket-key")):
        return Deny(Reason.PROTOCOL_REFUSED, "a websocket upgrade without a key of 16 bytes (RFC 6455 4.1)")
    if upgrade is not None and (head.method != "GET" or head.get("sec-websocket-version") != "13"):
        # A 101 without version 13 would turn the connection into an unseen byte pipe (notes 1.5).
        return Deny(Reason.PROTOCOL_REFUSED, "malformed websocket upgrade")
    if upgrade is not None and not head.end_stream:
        return Deny(Reason.PROTOCOL_REFUSED, "websocket upgrade with a body, which could be the first frames")
    for value in head.get_all("connection"):
        for option in value.lower().split(","):
            if option.strip() and option.strip() not in CONNECTION_OPTIONS:
                return Deny(Reason.HEADER_FORM_REFUSED, "unexpected Connection option")
    return None
