"""A Deny as the sandbox sees it: JSON that an agent understands, and none of mitmproxy's own texts."""

import json

from mitmproxy import http
from mitmproxy.net.http import http1

from coatcheck.decision.denial import EXPLANATIONS, Deny, Reason

FAILED = Deny(Reason.INTERNAL_ERROR, "an internal check failed")
"""The denial where no better reason is known."""


def refusal_body(denial: Deny, request_id: str) -> bytes:
    """The body of every refusal. It holds no `detail`: that is for the operator."""
    explanation = EXPLANATIONS[denial.reason]
    error = {
        "reason": denial.reason.value,
        "message": f"Coatcheck refused this request: {explanation.message}.",
        "hint": explanation.hint,
        "request_id": request_id,
    }
    return json.dumps({"error": error}).encode() + b"\n"


def refusal(denial: Deny, request_id: str) -> http.Response:
    """A complete response for `denial`."""
    body = refusal_body(denial, request_id)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"coatcheck-reason", denial.reason.value.encode()),
        (b"cache-control", b"no-store"),
    ]
    if denial.challenge is not None:
        headers.append((b"www-authenticate", denial.challenge.encode("latin-1")))
    if denial.status == 407:
        headers.append((b"proxy-authenticate", b'Basic realm="coatcheck"'))
    if denial.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, int(denial.retry_after + 0.999))))
    response = http.Response.make(denial.status, body, http.Headers(headers))
    response.http_version = "HTTP/1.1"
    return response


def refusal_bytes(denial: Deny, request_id: str = "-") -> bytes:
    """The whole HTTP/1.1 answer, for where no parser is running. The connection ends after it."""
    response = refusal(denial, request_id)
    response.headers["connection"] = "close"
    raw: bytes = http1.assemble_response(response)
    return raw
