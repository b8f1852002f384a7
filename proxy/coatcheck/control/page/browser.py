"""What a browser must show before the page does anything for it, and what it is told in every answer."""

from typing import Final

from aiohttp.web_request import BaseRequest

from coatcheck.control.page.logins import LIFE_SECONDS
from coatcheck.control.problem import ControlProblem, Refusal

KEY_HEADER: Final = "Coatcheck-Page"
"""Holds the login's key. A page of another origin cannot send it: that takes a preflight, and gets none."""
PREFIX: Final = "/page"

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "Server": "coatcheck",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every answer of the page. There is no inline script, no inline style, nothing from elsewhere, and no
place in its scripts where text could become markup (Trusted Types)."""


def is_page(path: str) -> bool:
    """Whether a request's path (with its query) belongs to the page."""
    bare = path.partition("?")[0]
    return bare in ("/", PREFIX) or bare.startswith(f"{PREFIX}/")


def check_origin(request: BaseRequest) -> None:
    """Raise ControlProblem unless a page of this very origin asks: scheme, name and port.

    `Host` was checked before: it is one of our names. Same-site is not enough, since every server on another
    port of loopback is of the same site.
    """
    headers = request.headers
    own = f"{'https' if _tls(request) else 'http'}://{headers['host'].lower()}"
    if any(len(headers.getall(name, ())) > 1 for name in ("origin", "sec-fetch-site", KEY_HEADER, "cookie")):
        raise _foreign()
    # Browsers leave Origin out of GET requests of their own pages.
    if headers.get("origin", own if request.method == "GET" else "") != own:
        raise _foreign()
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise _foreign()


def halves(request: BaseRequest) -> tuple[str, str] | None:
    """The cookie and the key of a login, if the request has exactly one of each."""
    key = request.headers.get(KEY_HEADER, "")
    cookies = [
        value
        for name, _, value in (
            each.strip().partition("=") for each in request.headers.get("cookie", "").split(";")
        )
        if name == cookie_name(request)
    ]
    # Two of one name: another server of this host has set one with a longer path. Nobody is logged in then.
    return (cookies[0], key) if key and len(cookies) == 1 and cookies[0] else None


def cookie_name(request: BaseRequest) -> str:
    """`__Host-` where it can be: then nobody but this very host can have set it (RFC 6265bis 4.1.3)."""
    return "__Host-coatcheck" if _tls(request) else "coatcheck"


def cookie(request: BaseRequest, value: str) -> str:
    """A Set-Cookie header; an empty value takes the cookie away."""
    secure = "; Path=/; Secure" if _tls(request) else f"; Path={PREFIX}"
    age = int(LIFE_SECONDS) if value else 0
    return f"{cookie_name(request)}={value}{secure}; HttpOnly; SameSite=Strict; Max-Age={age}"


def _tls(request: BaseRequest) -> bool:
    return bool(request.transport and request.transport.get_extra_info("ssl_object"))


def _foreign() -> ControlProblem:
    return ControlProblem(
        Refusal.BROWSER,
        "the request does not come from this page",
        "Open the page itself, at the address that it has in your browser.",
    )
