"""What no honest client of the control API sends: browsers, proxies, rebinding, two readings (I7).

A page in the operator's browser can reach loopback. It cannot leave out `Origin` on what changes
something, nor `Sec-Fetch-Site` on anything, and it cannot choose `Host`: after DNS rebinding that is the
attacker's name. No CORS header is ever sent.
"""

from collections.abc import Collection
from typing import Final

from aiohttp.web_request import BaseRequest

from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.decision.host import HostRefused, split_authority

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_BROWSERS: Final = ("origin", "sec-fetch-site", "sec-fetch-mode", "access-control-request-method")
_ONCE: Final = (
    "host",
    "authorization",
    "content-type",
    "content-length",
    "transfer-encoding",
    "upgrade",
)
_PROXIES: Final = ("proxy-authorization", "proxy-connection")
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "via")


def check_request(request: BaseRequest, names: Collection[str] | None, *, browser: bool = False) -> None:
    """Raise ControlProblem for such a request. `names`: hosts that we are; None on the Unix socket, which
    no browser reaches and whose Host header says nothing. `browser`: it is for the page, which looks at what
    browsers say by itself."""
    headers = request.headers
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise _malformed(f"the header {name} appears twice", "Send it once.")
    if not browser and any(name in headers for name in _BROWSERS):
        raise ControlProblem(
            Refusal.BROWSER,
            "the control API does not talk to web pages",
            "Use `coatcheck session`, or a client that sends neither Origin nor Sec-Fetch headers.",
        )
    if any(name in headers for name in (*_PROXIES, *_FORWARDED)):
        raise _malformed(
            "the request came through a proxy, or asks for one",
            "Talk to the control API directly; forwarded requests do not prove who sent them.",
        )
    if "upgrade" in headers and headers["upgrade"].lower() != "websocket":
        raise _malformed("the request asks for another protocol", "The control API speaks HTTP/1.1.")
    if not request.raw_path.startswith("/"):
        raise _malformed(
            "the request target is not a path", "The control API is not a proxy: send `GET /v1/…`."
        )
    if "host" not in headers:
        raise _malformed("the Host header is missing", "Send one.")
    if names is not None:
        try:
            # The port says nothing: it may be forwarded, and an attacker knows it.
            host, _ = split_authority(headers["host"], 80)
        except HostRefused:
            host = ""
        if host not in names:
            raise ControlProblem(
                Refusal.WRONG_HOST,
                "the Host header does not name the control API",
                "Use the address that it listens on, or add the name to control_names.",
            )


def check_upgrade(request: BaseRequest, allowed: bool) -> None:
    """A WebSocket where one can be, and nowhere else. What a page may not send (Origin) it may not send here,
    either: browsers open WebSockets to any host without asking it first."""
    if "upgrade" in request.headers and not (allowed and request.method == "GET"):
        raise _malformed("this resource is not a WebSocket", "Leave Upgrade out.")


def check_websocket(request: BaseRequest, wanted: bool) -> None:
    """Raise ControlProblem for a plain request where only a WebSocket is."""
    if wanted and "upgrade" not in request.headers:
        raise ControlProblem(
            Refusal.UPGRADE_REQUIRED,
            "this resource is a WebSocket",
            "Use `coatcheck sandbox`, sandbox_client, or any WebSocket client.",
        )


def _malformed(message: str, hint: str) -> ControlProblem:
    return ControlProblem(Refusal.MALFORMED, message, hint)
