"""Between mitmproxy's message types and `decision.message`. Translation only."""

from http import HTTPStatus
from typing import Final

from mitmproxy import http

from coatcheck.decision.message import Edits, Headers, RequestHead, ResponseHead
from coatcheck.decision.response import Framing, ResponsePlan

_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


def headers_of(message: http.Message) -> Headers:
    """Names lower-case, values latin-1, in order."""
    return tuple(
        [(name.lower().decode("latin-1"), value.decode("latin-1")) for name, value in message.headers.fields]
    )


def request_head(request: http.Request, *, end_stream: bool) -> RequestHead:
    return RequestHead(
        method=request.data.method.decode("latin-1"),
        target=request.data.path.decode("latin-1"),
        headers=headers_of(request),
        http_version=request.data.http_version.decode("latin-1"),
        end_stream=end_stream,
    )


def response_head(response: http.Response) -> ResponseHead:
    return ResponseHead(
        status=response.status_code,
        headers=headers_of(response),
        http_version=response.data.http_version.decode("latin-1"),
    )


def apply_edits(request: http.Request, edits: Edits) -> None:
    """Change the request in place, right before it leaves."""
    new = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in edits.set_headers}
    drop = {name.lower().encode("latin-1") for name in edits.remove_headers}
    host = new.get(b"host")
    if host is not None and request.data.authority:
        request.data.authority = host  # HTTP/2 has the host here; an HTTP/1 upstream reads Host
    fields = []
    for field in request.headers.fields:  # one pass: mitmproxy's mapping goes through all for each name
        name = field[0].lower()
        if name in new:
            fields.append((field[0], new.pop(name)))
            drop.add(name)
        elif name not in drop:
            fields.append(field)
    request.headers.fields = (*fields, *new.items())
    if edits.target is not None:
        request.data.path = edits.target.encode("latin-1")
    if edits.body is not None:
        request.headers.pop("transfer-encoding", None)
        request.headers["content-length"] = str(len(edits.body))


def frame_body(request: http.Request, *, length: int | None) -> None:
    """Say in the head of a request to an HTTP/1 upstream where its body ends. `length`: None while unknown.

    HTTP/2 needs no length. On HTTP/1 a body without one is the next request, which nobody judged
    (RFC 9112 6.3).
    """
    if "content-length" in request.headers or "transfer-encoding" in request.headers:
        return
    if length is None:
        request.headers["transfer-encoding"] = "chunked"
    else:
        request.headers["content-length"] = str(length)


def set_response_headers(
    response: http.Response, plan: ResponsePlan, *, end_stream: bool, to_h2: bool, to_http10: bool
) -> None:
    """Give the answer the plan's headers, its status's own reason phrase (the upstream's could be an echo)
    and a framing that the client's protocol has.

    An HTTP/1.1 client gets chunks wherever the length is unknown: an end of connection is no proof of a
    complete body, a last chunk is (RFC 9112 8).
    """
    response.status_code = plan.status or response.status_code
    response.headers = http.Headers(
        [(name.encode("latin-1"), value.encode("latin-1")) for name, value in plan.headers]
    )
    response.data.reason = _PHRASES.get(response.status_code, b"")
    if response.status_code == 101:
        return
    response.headers.pop("connection", None)  # it was about the upstream's connection (`http1` has read it)
    if plan.framing is Framing.CHUNKED:
        response.headers.pop("content-length", None)
    if to_h2 or to_http10:
        response.headers.pop("transfer-encoding", None)
    elif not end_stream and "content-length" not in response.headers:
        response.headers["transfer-encoding"] = "chunked"
    if not to_h2:
        response.http_version = "HTTP/1.1"
    if to_http10 and "content-length" not in response.headers:
        response.headers["connection"] = "close"
