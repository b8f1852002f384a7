"""Response headers, one rule each: which forms are refused, which headers end here, which are masked."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from coatcheck.decision.message import Headers, ResponseHead
from coatcheck.decision.scrub import Patterns, Run

MAX_HEADERS = 256
"""Lines; real answers have fewer than 60 (Set-Cookie and Link repeat)."""
MAX_HEADER_BYTES = 65536
"""Names and values together: what common clients accept at most."""

_CONTROL = re.compile("[\\x01-\\x08\\x0b-\\x1f\\x7f]")
"""What RFC 9110 5.5 has replaced by a space: escape sequences would reach the terminal that shows them."""
_LONGEST_KNOWN = 2048
"""Letters of names, or of values, that are remembered to hold no secret."""
_MOST_KNOWN = 256

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 5.6.2

# Fields between two neighbours (RFC 9110 7.6.1) and others that the sandbox must not get: Alt-Svc
# would lead it around the proxy, Trailer announces what mitmproxy cannot send on HTTP/1.
_HOP = frozenset(
    {
        "alt-svc",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# `coatcheck-`: an upstream must not forge our refusals.
_HOP_PREFIXES = ("proxy-", "coatcheck-")

HEAD_ONLY = frozenset({"content-length", "content-encoding", "content-type", "content-range", "set-cookie"})
"""Read from the head only. A Connection option that names one would make two readers see two messages."""


class HeaderRefused(Exception):
    """The response's head breaks a rule. The text names the rule and holds nothing that was received."""


def tokens(values: Iterable[str]) -> tuple[str, ...]:
    """The members of a comma-separated list, lower-case."""
    found = [part.strip(" \t").lower() for value in values for part in value.split(",")]
    return tuple([item for item in found if item])


def without(headers: Headers, names: frozenset[str]) -> Headers:
    return tuple([header for header in headers if header[0] not in names])


def checked_headers(headers: Headers) -> Headers:
    """The headers, names lower-case, if there are not too many and each has a form that all readers share."""
    if len(headers) > MAX_HEADERS:
        raise HeaderRefused(f"more than {MAX_HEADERS} headers")
    names = "".join([name for name, _ in headers])
    values = "".join([value for _, value in headers])
    if len(names) + len(values) > MAX_HEADER_BYTES:
        raise HeaderRefused(f"more than {MAX_HEADER_BYTES} bytes of headers")
    if headers and not (_TOKEN.fullmatch(names) and all(name for name, _ in headers)):
        raise HeaderRefused("a header name is not a token")
    if "\r" in values or "\n" in values or "\0" in values:
        raise HeaderRefused("a header value holds CR, LF or NUL")
    try:
        values.encode("latin-1")
    except UnicodeEncodeError as error:
        raise HeaderRefused("a header value is not latin-1 text") from error
    return tuple([(name.lower(), value) for name, value in headers])


def content_length(response: ResponseHead) -> int | None:
    """The one length that all framing headers agree on; None if it is not known at the head (RFC 9112 6)."""
    encodings = response.get_all("transfer-encoding")
    lengths = response.get_all("content-length")
    if encodings:
        if lengths:
            raise HeaderRefused("both Content-Length and Transfer-Encoding")
        if tokens(encodings) != ("chunked",):
            raise HeaderRefused("a Transfer-Encoding other than chunked")
        if response.http_version != "HTTP/1.1":
            raise HeaderRefused("Transfer-Encoding in another version than HTTP/1.1")
        if response.status < 200 or response.status == 204:
            raise HeaderRefused(f"Transfer-Encoding on status {response.status}")
        return None
    if not lengths:
        return None
    values = {value.strip(" \t") for line in lengths for value in line.split(",")}
    # ASCII digits only: int() would also take signs, underscores and other scripts' digits.
    if len(values) != 1 or not (value := values.pop()).isascii() or not value.isdigit() or len(value) > 18:
        raise HeaderRefused("Content-Length values that differ or are not a number")
    return int(value)


def end_to_end(headers: Headers, status: int) -> Headers:
    """Without what is meant for us alone. Of Connection only `close` and `keep-alive` stay, which tell
    the plane about the upstream's connection; a 101 keeps its upgrade; one Content-Length is left."""
    options = tokens([value for name, value in headers if name == "connection"])
    if not HEAD_ONLY.isdisjoint(options):
        raise HeaderRefused("a Connection option names a header that is not between neighbours")
    gone = _HOP.union(options)
    if status == 101:
        gone -= {"upgrade"}
    kept: list[tuple[str, str]] = []
    length_seen = False
    for name, value in headers:
        if name in gone or name.startswith(_HOP_PREFIXES):
            continue
        if name == "content-length":
            if length_seen:
                continue
            length_seen = True
            value = value.partition(",")[0].strip(" \t")
        kept.append((name, value if value.isprintable() else _CONTROL.sub(" ", value)))
    wanted = ("upgrade",) if status == 101 else ("close", "keep-alive")
    connection = [option for option in wanted if option in options]
    if connection:
        kept.append(("connection", connection[0]))
    return tuple(kept)


def masked(headers: Headers, patterns: Patterns) -> tuple[Headers, tuple[Run, ...]]:
    """Without secrets, and what was masked: a header whose very name echoes one is dropped.

    All values are searched as one text, and so are the names: a secret that is cut in pieces over headers is
    found. Names come lower-case, so they are compared without case.
    """
    runs: list[Run] = []
    names = [name for name, _ in headers]
    in_names = _touched(names, patterns.lower_case, runs)
    in_values = _touched([value for _, value in headers], patterns, runs)
    if not runs:
        return headers, ()
    kept = [
        (name, _with_mask(value, in_values[index]) if index in in_values else value)
        for index, (name, value) in enumerate(headers)
        if index not in in_names
    ]
    return tuple(kept), tuple(runs)


def _touched(texts: list[str], patterns: Patterns, runs: list[Run]) -> dict[int, list[int]]:
    """Which of `texts` hold something of a secret, and where."""
    together = "\n".join(texts)
    if together in patterns.without:
        return {}
    found = patterns.find(together.encode("latin-1"))
    touched: dict[int, list[int]] = {}
    if not found and len(together) < _LONGEST_KNOWN:
        if len(patterns.without) >= _MOST_KNOWN:
            patterns.without.clear()
        patterns.without.add(together)
    if found:
        starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        for one in found:
            runs.append(one.run)
            for place in one.places.tolist():
                index = bisect_right(starts, place) - 1
                touched.setdefault(index, []).append(place - starts[index])
    return touched


def _with_mask(value: str, places: list[int]) -> str:
    masked = list(value)
    for place in places:
        if place < len(masked):
            masked[place] = "*"
    return "".join(masked)
