"""What must happen to a response before the sandbox sees it (I1, I3, I7). Plans; a plane applies.

The rules about single headers are in `response_headers`; here is what decides about the whole.
"""

import re
from base64 import b64encode
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1

from coatcheck.decision.content_coding import DECODABLE, parse_codings
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import BODY_DIGESTS, RANGES, UNREADABLE_ANSWERS, is_websocket_key
from coatcheck.decision.message import Edits, Headers, RequestHead, ResponseHead
from coatcheck.decision.ranges import NO_PART, Part, asked_part
from coatcheck.decision.response_headers import (
    HEAD_ONLY,
    HeaderRefused,
    checked_headers,
    content_length,
    end_to_end,
    masked,
    tokens,
    without,
)
from coatcheck.decision.scrub import Patterns, Run


class Framing(StrEnum):
    """How the plane frames the body towards the sandbox."""

    NONE = "none"
    """No body follows, whatever Content-Length says (HEAD, 304): a body byte that comes aborts."""
    KEEP = "keep"
    """By the Content-Length in the plan's headers."""
    CHUNKED = "chunked"
    """Length unknown: chunked on HTTP/1.1, DATA frames on HTTP/2. An abort then shows as an abort."""


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """What to send. `headers` replaces all headers and never holds Transfer-Encoding.

    The plane sends the status's standard reason phrase, never the upstream's (it could hold an echo).
    """

    headers: Headers
    framing: Framing
    scrub_body: bool
    """True: every body byte goes through `BodyScrubber(patterns, codings)`."""
    codings: tuple[str, ...] = ()
    """What to undo before scrubbing, in the order applied."""
    runs: tuple[Run, ...] = ()
    """What was masked in the headers."""
    status: int | None = None
    """Instead of the upstream's."""
    part: Part | None = None
    """What is sent of the redacted body; None: all of it."""

    @property
    def hits(self) -> int:
        return len(self.runs)


# Statements about the exact bytes of a body (RFC 9530, 1864): a client would find them false once an
# echo was masked, and at the head of a stream nobody knows yet whether one will be. ETag and
# Last-Modified stay: they name the upstream's version, which If-Match and If-None-Match need.
_ABOUT_BYTES = BODY_DIGESTS | {"accept-ranges"}

_OF_A_REFUSED_RANGE = frozenset({"accept-ranges", "connection", "date", "etag", "last-modified", "server"})

# Charsets in which ASCII stands for itself, so that secrets are found. Servers choose another one when they
# are asked to (Spring: `Accept: application/json;charset=utf-16`): UTF-16, UTF-7, EBCDIC. Names are compared
# without the signs that people leave out or put in.
_CHARSET = re.compile(
    r"|binary|utf8(?:mb[34])?|(?:us)?ascii|ansix34(?:1968|1986)|iso646(?:us|irv1991)"
    r"|iso8859(?:[1-9]|1[0-6])(?:[ie]|19[0-9]{2})?|latin(?:[1-9]|10)|l(?:[1-9]|10)|x?macintosh|macroman|xmaccyrillic"
    r"|(?:x?cp|ibm|ms|windows|xwindows)"
    r"(?:437|737|775|850|852|855|857|858|86[0-356]|869|874|932|936|949|950|125[0-8])|windows31j|mskanji"
    r"|koi8(?:r|u|ru|t)?|gbk|xgbk|gb2312(?:80)?|gb18030|euccn|big5(?:hkscs)?|cnbig5|xxbig5|x?euc(?:jp|kr|tw)"
    r"|x?s(?:hift)?jis|ksc56011987|ksc5601|uhc|korean|tis620(?:0|25291|25330)?|ptcp154|kz1048|rk1048|hproman8"
)

_LOOSE = str.maketrans("", "", " \t\"'-_.:")

_TRACES = frozenset({"TRACE", "TRACK"})

# A coding and its weight (RFC 9110 12.4.2).
_ACCEPTED_CODING = re.compile(
    r"(?P<name>[a-z-]+)(?:[ \t]*;[ \t]*q=(?P<weight>0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?"
)


def plan_response(
    request: RequestHead,
    response: ResponseHead,
    *,
    authenticated: bool,
    patterns: Patterns | None,
    keep_set_cookie: bool = False,
    websocket: bool = False,
) -> ResponsePlan | Deny:
    """The plan for `response`, or UPSTREAM_RESPONSE_REFUSED. Never raises on what an upstream sent.

    `authenticated`: the request left under a credential, whether its secret is in it or signed it.
    `patterns`: what the answer is searched for. Empty: nothing yet, so what cannot be searched may pass while
    that is so. None: it is not searched. `keep_set_cookie` is the credential's, `websocket` the rule's.
    """
    try:
        return _plan(request, response, authenticated, patterns, keep_set_cookie, websocket)
    except HeaderRefused as refused:
        return Deny(Reason.UPSTREAM_RESPONSE_REFUSED, str(refused))


def plan_trailers(trailers: Headers, patterns: Patterns | None) -> tuple[Headers, tuple[Run, ...]] | Deny:
    """HTTP/2 trailers without secrets and without fields that may not stand there (RFC 9110 6.5.1), and
    what was masked. On HTTP/1 the plane drops trailers."""
    try:
        kept = without(end_to_end(checked_headers(trailers), 200), HEAD_ONLY)
        return masked(kept, patterns) if patterns else (kept, ())
    except HeaderRefused as refused:
        return Deny(Reason.UPSTREAM_RESPONSE_REFUSED, str(refused))


def _plan(
    request: RequestHead,
    response: ResponseHead,
    authenticated: bool,
    patterns: Patterns | None,
    keep_set_cookie: bool,
    websocket: bool,
) -> ResponsePlan:
    response = ResponseHead(response.status, checked_headers(response.headers), response.http_version)
    length = content_length(response)
    _check_status(request, response, websocket, searched=bool(patterns))
    headers = end_to_end(response.headers, response.status)
    if authenticated and not keep_set_cookie:
        headers = without(headers, frozenset({"set-cookie", "set-cookie2"}))
    runs: tuple[Run, ...] = ()
    if patterns:
        headers, runs = masked(headers, patterns)

    if response.status in (101, 204):
        if length:
            raise HeaderRefused(f"status {response.status} has no body but a Content-Length")
        headers = without(headers, frozenset({"content-length"}))
    if request.method == "HEAD" or response.status in (101, 204, 304) or length == 0:
        if patterns is not None and parse_codings(response.get_all("content-encoding")) != ():
            headers = _decoded(headers)  # the length is that of the compressed body
        return ResponsePlan(headers, Framing.NONE, False, (), runs)

    framing = Framing.CHUNKED if length is None else Framing.KEEP
    if patterns is None:
        return ResponsePlan(headers, framing, False, (), runs)
    try:
        codings = _readable_codings(response)
    except HeaderRefused:
        if patterns:
            raise
        return ResponsePlan(headers, framing, False, (), runs)
    if patterns or codings:
        headers = tuple(
            header
            for header in headers
            if header[0] not in _ABOUT_BYTES or header == ("accept-ranges", "bytes")  # ours: see `ranges`
        )
    if codings:
        headers = _decoded(headers)
        framing = Framing.CHUNKED
    elif message_coding(response):
        headers = without(headers, frozenset({"content-length"}))
        framing = Framing.CHUNKED
    elif patterns and length is not None:
        part = asked_part(request, response, length)
        if part is not None:
            return _partial(headers, part, length, runs)
    return ResponsePlan(headers, framing, True, codings, runs)


def _partial(headers: Headers, part: Part, length: int, runs: tuple[Run, ...]) -> ResponsePlan:
    """206, or 416 without a body (RFC 9110 15.3.7, 15.5.17)."""
    if part is NO_PART:
        about = (("content-range", f"bytes */{length}"), ("content-length", "0"))
        kept = tuple(header for header in headers if header[0] in _OF_A_REFUSED_RANGE)
        return ResponsePlan((*kept, *about), Framing.NONE, True, (), runs, 416, part)
    about = (
        ("content-range", f"bytes {part.first}-{part.last}/{length}"),
        ("content-length", str(len(part))),
    )
    kept = tuple(
        header
        for header in headers
        if header[0] not in ("content-length", "content-range")
        and not header[0].startswith("x-amz-checksum-")  # of the whole, which an SDK compares with the part
    )
    return ResponsePlan((*kept, *about), Framing.KEEP, True, (), runs, 206, part)


def _check_status(request: RequestHead, response: ResponseHead, websocket: bool, *, searched: bool) -> None:
    status = response.status
    if not 100 <= status <= 999:  # above 599 it reads as a 5xx (RFC 9110 15); LinkedIn sends 999
        raise HeaderRefused("the status code is not between 100 and 999")
    if status == 101:
        _check_upgrade(request, response, websocket)
    elif status < 200:
        # The plane drops them. One that comes here was taken for the final response.
        raise HeaderRefused(f"interim response {status}")
    if searched and status in (206, 226):
        # A range (or a delta, RFC 3229) may begin inside an echo of a secret, which no pattern finds.
        raise HeaderRefused(f"{status} to a request that asked for no part")
    if searched and request.method.upper() in _TRACES:
        raise HeaderRefused(f"{request.method.upper()} echoes the request, credential included")


def _check_upgrade(request: RequestHead, response: ResponseHead, websocket: bool) -> None:
    """RFC 6455 4.1 and 4.2.2: asked for, allowed, and answered with nothing that hides messages from us."""
    asked = (
        tokens(request.get_all("upgrade")) == ("websocket",)
        and "upgrade" in tokens(request.get_all("connection"))
        and request.get_all("sec-websocket-version") == ("13",)
        and is_websocket_key(request.get("sec-websocket-key"))
    )
    if not websocket or not asked:
        raise HeaderRefused("101 that was not asked for or is not allowed")
    if tokens(response.get_all("upgrade")) != ("websocket",):
        raise HeaderRefused("101 to another protocol than websocket")
    key = request.get("sec-websocket-key")
    if key is not None and response.get_all("sec-websocket-accept") != (_accept(key),):
        raise HeaderRefused("101 whose Sec-WebSocket-Accept is not that of the key")
    for extension in ",".join(response.get_all("sec-websocket-extensions")).split(","):
        if extension.partition(";")[0].strip(" \t").lower() not in ("", "permessage-deflate"):
            raise HeaderRefused("101 with an unknown WebSocket extension")


def _accept(key: str) -> str:
    """The `Sec-WebSocket-Accept` for a handshake's key (RFC 6455 4.2.2): proof that the server read it."""
    digest = sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode("latin-1"), usedforsecurity=False)
    return b64encode(digest.digest()).decode()


def _readable_codings(response: ResponseHead) -> tuple[str, ...]:
    """What must be undone to search the body; HeaderRefused when it could not be searched."""
    codings = parse_codings(response.get_all("content-encoding"))
    if codings is None:
        raise HeaderRefused("Content-Encoding that cannot be undone, so secrets could not be found")
    if codings and response.status == 206:
        raise HeaderRefused("206 with a Content-Encoding: a part of it cannot be decoded")
    media = (response.get("content-type") or "").strip(" \t").lower()
    if media.startswith("application/grpc-web-text") and message_coding(response) != ():
        raise HeaderRefused("compressed messages in Base64")
    if message_coding(response) is None:
        raise HeaderRefused("messages in a coding that cannot be undone, so secrets could not be found")
    if not readable_charset(response):
        raise HeaderRefused("a charset in which secrets could not be found")
    return codings


def message_coding(response: ResponseHead) -> tuple[str, ...] | None:
    """In what gRPC or Connect compresses single messages; None if it cannot be undone."""
    return parse_codings(
        value for name in ("grpc-encoding", "connect-content-encoding") for value in response.get_all(name)
    )


def readable_charset(response: ResponseHead) -> bool:
    """Whether ASCII stands for itself in the body, as far as its head says."""
    for content_type in response.get_all("content-type"):
        for parameter in content_type.lower().split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip(" \t") == "charset" and not _CHARSET.fullmatch(value.translate(_LOOSE)):
                return False
    return True


def _decoded(headers: Headers) -> Headers:
    """Headers of a body whose codings are undone. Its ETag becomes weak, as a strong one would claim
    the coded bytes (RFC 9110 8.8.3.3; nginx's gzip filter does the same the other way)."""
    kept = without(headers, frozenset({"accept-ranges", "content-encoding", "content-length"}))
    return tuple(
        (name, f"W/{value}") if name == "etag" and value.startswith('"') else (name, value)
        for name, value in kept
    )


def plan_request_for_scrubbing(request: RequestHead, *, secrets: bool, compression: bool) -> Edits:
    """What a request must lose so that its response can be searched.

    `secrets`: there are some that the response must not show. Then it is asked for whole, and uncompressed
    unless the rule allows `compression`: how well a page compresses tells what is in it (BREACH). Otherwise
    Accept-Encoding is narrowed to what we can undo, in the client's order.
    """
    gone = set(UNREADABLE_ANSWERS)
    if secrets:
        gone |= RANGES
    if not request.http_version.startswith("HTTP/2") or tokens(request.get_all("te")) != ("trailers",):
        gone.add("te")  # gRPC servers want `te: trailers`; HTTP/1 trailers cannot be sent on
    offered = request.get_all("accept-encoding")
    accept: Headers = ()
    if secrets and not compression:
        accept = (("accept-encoding", "identity"),)
    elif offered:
        # A part of a coded body cannot be decoded: a range that stays is asked for without coding.
        ranged = not secrets and request.get("range") is not None
        accept = (("accept-encoding", "identity" if ranged else _narrowed(offered)),)
    present = {name for name, _ in request.headers}
    return Edits(set_headers=accept, remove_headers=tuple(sorted(gone & present)))


def _narrowed(offered: tuple[str, ...]) -> str:
    kept = []
    for item in ",".join(offered).lower().split(","):
        found = _ACCEPTED_CODING.fullmatch(item.strip(" \t"))
        if found and found["name"] in DECODABLE and (found["weight"] or "1").strip("0."):
            kept.append(found[0])
    return ", ".join(kept) or "identity"
