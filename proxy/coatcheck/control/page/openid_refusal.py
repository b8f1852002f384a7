"""Why a login by OpenID Connect came to nothing, as a closed set, in words for the person who tried."""

from enum import StrEnum
from typing import Final

_LONGEST: Final = 500
"""Characters of a detail: a provider's addresses and names are of its own choosing."""


class OpenIdRefusal(StrEnum):
    """Stands behind `#` in the page's address: a word of ours, never of the provider or the request."""

    DENIED = "denied"
    NOT_BEGUN = "not_begun"
    PROVIDER = "provider"
    CLIENT = "client"
    CODE = "code"
    TOKEN = "token"
    AUDIENCE = "audience"
    CLOCK = "clock"
    UNKNOWN = "unknown"
    SEVERAL = "several"
    BUSY = "busy"


WORDS: Final[dict[OpenIdRefusal, tuple[str, str]]] = {
    OpenIdRefusal.DENIED: (
        "the provider did not let you in, or you said no",
        "Try again, or ask the provider's administrator whether you may use Coatcheck.",
    ),
    OpenIdRefusal.NOT_BEGUN: (
        "this login was not begun in this browser, was begun too long ago, or was finished already",
        "Begin again, in one window, at the address that this page has now.",
    ),
    OpenIdRefusal.PROVIDER: (
        "the provider does not answer, or not as OpenID Connect says",
        "Try again, or log in with a token or a link; the daemon's log says more.",
    ),
    OpenIdRefusal.CLIENT: (
        "the provider does not accept this daemon as its client",
        "Compare client id, secret and redirect URI with what the provider has; docs/page.md lists them.",
    ),
    OpenIdRefusal.CODE: ("the provider says that its code was used, or is too old", "Begin again."),
    OpenIdRefusal.TOKEN: (
        "what the provider sent proves nothing: wrong signature, issuer or nonce",
        "Begin again. If it stays so, compare the issuer; the daemon's log says more.",
    ),
    OpenIdRefusal.AUDIENCE: (
        "the provider sent a token that is for another program",
        "Compare COATCHECK_PAGE_OIDC_CLIENT_ID with what the provider has.",
    ),
    OpenIdRefusal.CLOCK: (
        "the provider's token is not valid yet, or no longer",
        "Begin again. If it stays so, the clocks of the daemon and the provider differ: set them.",
    ),
    OpenIdRefusal.UNKNOWN: (
        "the provider knows you, but the daemon's grants file does not list you as a caller",
        "Ask its owner for an entry; the daemon's log has your identity at the provider.",
    ),
    OpenIdRefusal.SEVERAL: (
        "the daemon's grants file lists you as several callers",
        "Ask its owner to leave one entry that fits you.",
    ),
    OpenIdRefusal.BUSY: (
        "too many logins were begun lately",
        "Wait five minutes, or log in with a token or a link.",
    ),
}
"""What happened, and what to do next."""


class OpenIdRefused(Exception):
    """`detail` is for the daemon's log: what exactly was wrong. No code, token or secret is in it."""

    def __init__(self, reason: OpenIdRefusal, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail[:_LONGEST]}")
        self.reason = reason
        self.detail = detail[:_LONGEST]
