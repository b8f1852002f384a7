"""Everything that we change in mitmproxy itself, process-wide, each with its reason."""

from mitmproxy import http
from mitmproxy.proxy.layers.http import _http1, _http2

from coatcheck.decision.denial import Deny, Reason
from coatcheck.planes.mitm.refusal import refusal_body, refusal_bytes

_REASON_OF_STATUS = {
    400: Reason.FRAMING_REFUSED,
    413: Reason.BODY_TOO_LARGE,
    502: Reason.UPSTREAM_RESPONSE_REFUSED,
}


def error_page(status_code: int, message: str = "") -> bytes:
    """In place of mitmproxy's HTML: its texts quote bytes of the peer, which may be an echoed secret."""
    return refusal_bytes(Deny(_REASON_OF_STATUS.get(status_code, Reason.INTERNAL_ERROR)))


def _format_error(status_code: int, message: str) -> bytes:
    return refusal_body(Deny(_REASON_OF_STATUS.get(status_code, Reason.INTERNAL_ERROR)), "-")


def _trusting_post_init(_: http.MessageData) -> None:
    """In place of a type check of every field of every message, which `python -O` drops as well."""


def adapt_mitmproxy() -> None:
    """Error pages: looked up in these modules at each call; there is no other seam for parse errors, which
    never reach a hook (I1: mitmproxy's own error texts never reach a client). Type checks: a sixteenth of
    a request's time."""
    _http1.make_error_response = error_page
    _http2.format_error = _format_error
    http.MessageData.__post_init__ = _trusting_post_init  # type: ignore[method-assign]
