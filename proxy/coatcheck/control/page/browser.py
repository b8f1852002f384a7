"""What a browser must show before the page does anything for it, and what it is told in every answer."""

from typing import Final

from aiohttp.web_request import BaseRequest

from coatcheck.control.page.logins import LIFE_SECONDS
from coatcheck.control.page.openid_login import PENDING_SECONDS
from coatcheck.control.problem import ControlProblem, Refusal

KEY_HEADER: Final = "Coatcheck-Page"
"""Holds the login's key. A page of another origin cannot send it: that takes a preflight, and gets none."""
PREFIX: Final = "/page"
OIDC: Final = f"{PREFIX}/oidc"

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
    own = own_origin(request)
    if any(len(headers.getall(name, ())) > 1 for name in ("origin", "sec-fetch-site", KEY_HEADER, "cookie")):
        raise _foreign()
    # Browsers leave Origin out of GET requests of their own pages.
    if headers.get("origin", own if request.method == "GET" else "") != own:
        raise _foreign()
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise _foreign()


def check_return(request: BaseRequest) -> None:
    """Raise ControlProblem unless a whole window comes back from the OpenID provider.

    The only request of ours that another site may cause: what it may do is in `state` and the begun login's
    cookie. No frame, image or script is led here, and no window that was opened from a bookmark.
    """
    headers = request.headers
    named = ("origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest", "cookie")
    if "origin" in headers or any(len(headers.getall(name, ())) > 1 for name in named):
        raise _foreign()
    if (
        headers.get("sec-fetch-site", "cross-site") == "none"
        or headers.get("sec-fetch-mode", "navigate") != "navigate"
        or headers.get("sec-fetch-dest", "document") != "document"
    ):
        raise _foreign()


def own_origin(request: BaseRequest) -> str:
    """Scheme, name and port that the browser has us under. `Host` was checked before."""
    return f"{'https' if _tls(request) else 'http'}://{request.headers['host'].lower()}"


def halves(request: BaseRequest) -> tuple[str, str] | None:
    """The cookie and the key of a login, if the request has exactly one of each."""
    key, value = request.headers.get(KEY_HEADER, ""), _sent(request, cookie_name(request))
    return (value, key) if key and value else None


def begun(request: BaseRequest) -> str:
    """The cookie of a login that this browser began at the OpenID provider; empty without exactly one."""
    return _sent(request, _begun_name(request))


def _sent(request: BaseRequest, wanted: str) -> str:
    values = [
        value
        for name, _, value in (
            each.strip().partition("=") for each in request.headers.get("cookie", "").split(";")
        )
        if name == wanted
    ]
    # Two of one name: another server of this host has set one with a longer path. Nobody is logged in then.
    return values[0] if len(values) == 1 else ""


def cookie_name(request: BaseRequest) -> str:
    """`__Host-` where it can be: then nobody but this very host can have set it (RFC 6265bis 4.1.3)."""
    return "__Host-coatcheck" if _tls(request) else "coatcheck"


def cookie(request: BaseRequest, value: str) -> str:
    """A Set-Cookie header; an empty value takes the cookie away."""
    secure = "; Path=/; Secure" if _tls(request) else f"; Path={PREFIX}"
    age = int(LIFE_SECONDS) if value else 0
    return f"{cookie_name(request)}={value}{secure}; HttpOnly; SameSite=Strict; Max-Age={age}"


def begun_cookie(request: BaseRequest, value: str) -> str:
    """Likewise, of a login that is begun. `Lax`, and only this one: the provider is another site, and its
    redirect must bring it along. It logs nobody in."""
    where = "; Path=/; Secure" if _tls(request) else f"; Path={OIDC}"
    age = int(PENDING_SECONDS) if value else 0
    return f"{_begun_name(request)}={value}{where}; HttpOnly; SameSite=Lax; Max-Age={age}"


def _begun_name(request: BaseRequest) -> str:
    return f"{cookie_name(request)}-oidc"


def _tls(request: BaseRequest) -> bool:
    return bool(request.transport and request.transport.get_extra_info("ssl_object"))


def _foreign() -> ControlProblem:
    return ControlProblem(
        Refusal.BROWSER,
        "the request does not come from this page",
        "Open the page itself, at the address that it has in your browser.",
    )
