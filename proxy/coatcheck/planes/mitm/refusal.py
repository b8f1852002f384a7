"""A Deny as the sandbox sees it: JSON that an agent understands, and none of mitmproxy's own texts."""

import json

from mitmproxy import http
from mitmproxy.net.http import http1

from coatcheck.decision.denial import EXPLANATIONS, Deny, Reason

FAILED = Deny(Reason.INTERNAL_ERROR, "an internal check failed")
"""The denial where no better reason is known."""


_TYPES = {
    401: "authentication_error",
    407: "authentication_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""Anthropic's and OpenAI's words for a status, by which their clients choose what they say."""
_NPM = ("npm/", "pnpm/", "yarn/")
"""Registries have any name, so these clients are known by what they call themselves."""


_BY_POLICY = frozenset({Reason.HOST_NOT_ALLOWED, Reason.METHOD_NOT_ALLOWED, Reason.PATH_NOT_ALLOWED})


def refusal_body(denial: Deny, request_id: str, user_agent: str = "") -> bytes:
    """The body of every refusal. It holds no `detail`: that is for the operator.

    Clients print one member of it. OpenAI's and Anthropic's take `error.message`, GitHub's `message`, and npm
    an `error` that is text: of an object it prints "[object Object]".
    """
    explanation = EXPLANATIONS[denial.reason]
    message = f"Coatcheck refused this request: {explanation.message}."
    sentence = f"{message} {explanation.hint}"
    error = {
        "reason": denial.reason.value,
        "message": message,
        "hint": explanation.hint,
        "request_id": request_id,
        "type": _TYPES.get(denial.status, "permission_error" if denial.status < 500 else "api_error"),
    }
    if user_agent.lower().startswith(_NPM):
        return json.dumps({"error": sentence, "coatcheck": error}).encode() + b"\n"
    return json.dumps({"type": "error", "error": error, "message": sentence}).encode() + b"\n"


def refusal(denial: Deny, request_id: str, request: http.Request | None = None) -> http.Response:
    """A complete response for `denial`, in the words of the client that sent `request`."""
    asked = request.headers if request is not None else http.Headers()
    body = refusal_body(denial, request_id, asked.get("user-agent", ""))
    status = denial.status
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"coatcheck-reason", denial.reason.value.encode()),
        (b"cache-control", b"no-store"),
    ]
    if denial.challenge is not None:
        headers.append((b"www-authenticate", denial.challenge.encode("latin-1")))
    if status == 407:
        headers.append((b"proxy-authenticate", b'Basic realm="coatcheck"'))
    if denial.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, int(denial.retry_after + 0.999))))
    by_policy = denial.reason in _BY_POLICY or (denial.reason is Reason.PROTOCOL_REFUSED and denial.rule)
    if by_policy and asked.get("upgrade", "").lower() == "websocket":
        # A client that can do without turns to plain HTTP at once; after a 403, codex tries again for 7.5 s.
        status = 426
        headers += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"Upgrade")]  # RFC 9110 15.5.22
    response = http.Response.make(status, body, http.Headers(headers))
    response.http_version = "HTTP/1.1"
    return response


def refusal_bytes(denial: Deny, request_id: str = "-") -> bytes:
    """The whole HTTP/1.1 answer, for where no parser is running. The connection ends after it."""
    response = refusal(denial, request_id)
    response.headers["connection"] = "close"
    raw: bytes = http1.assemble_response(response)
    return raw
