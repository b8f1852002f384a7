"""What an ID token proves (OpenID Connect Core 3.1.3.7): who, to this client, in answer to this login."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt

from coatcheck.control.page.openid_refusal import OpenIdRefusal, OpenIdRefused
from coatcheck.telemetry.redaction import printable

TOKEN_BYTES: Final = 32_768
"""With a few hundred groups."""
MAX_GROUPS: Final = 1000
SKEW_SECONDS: Final = 30.0
"""How far the provider's clock may be from ours, either way."""
_LONGEST: Final = 200
"""Characters of a claim that can stand in the grants file."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who logged in at the provider."""

    subject: str
    proofs: frozenset[str]
    """`subject …`, `email …` when the provider verified it, `group …`: as in `Grants.by_oidc`."""

    def __str__(self) -> str:
        mail = next((each for each in self.proofs if each.startswith("email ")), "")
        return printable(f"subject {self.subject}{', ' if mail else ''}{mail}")


@dataclass(frozen=True, slots=True)
class Expected:
    """What the token must say."""

    issuer: str
    client_id: str
    nonce: str
    begun: float
    """Unix seconds, when this login began: an older token answers another one."""


def key_id(token: object) -> str:
    """Of the key that the token says it is signed with. Nothing is proven yet."""
    if not isinstance(token, str) or len(token) > TOKEN_BYTES:
        raise OpenIdRefused(OpenIdRefusal.TOKEN, "the ID token is missing or too large")
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise OpenIdRefused(OpenIdRefusal.TOKEN, "the ID token is not a signed JWT") from None
    if not isinstance(kid, str) or not kid:
        raise OpenIdRefused(OpenIdRefusal.TOKEN, "the ID token names no key")
    return kid


def verify(token: str, key: jwt.PyJWK, expected: Expected) -> Identity:
    """Whom the token proves. Raises OpenIdRefused; what the token says is repeated nowhere."""
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],  # the key says, never the token
            issuer=expected.issuer,
            audience=expected.client_id,
            leeway=SKEW_SECONDS,
            options={"require": ["iss", "sub", "aud", "exp", "iat", "nonce"]},
        )
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError) as error:
        raise OpenIdRefused(OpenIdRefusal.CLOCK, str(error)) from None
    except jwt.InvalidAudienceError:
        raise OpenIdRefused(OpenIdRefusal.AUDIENCE, "aud does not name our client id") from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise OpenIdRefused(OpenIdRefusal.TOKEN, type(error).__name__) from None
    audiences, party = claims["aud"], claims.get("azp", expected.client_id)
    if isinstance(audiences, list) and len(audiences) > 1 and "azp" not in claims:
        raise OpenIdRefused(OpenIdRefusal.AUDIENCE, "aud names several, and azp is missing")
    if party != expected.client_id:
        raise OpenIdRefused(OpenIdRefusal.AUDIENCE, "azp is not our client id")
    nonce = claims["nonce"]
    if not isinstance(nonce, str) or nonce != expected.nonce:
        raise OpenIdRefused(OpenIdRefusal.TOKEN, "the nonce is not the one of this login")
    if not isinstance(claims["iat"], (int, float)):
        raise OpenIdRefused(OpenIdRefusal.TOKEN, "iat is not a number")
    if claims["iat"] < expected.begun - SKEW_SECONDS:
        raise OpenIdRefused(OpenIdRefusal.CLOCK, "iat lies before this login began")
    return _person(claims)


def _person(claims: Mapping[str, Any]) -> Identity:
    subject, email, groups = claims["sub"], claims.get("email"), claims.get("groups")
    if not isinstance(subject, str) or not 1 <= len(subject) <= 255:  # OpenID Connect Core 2
        raise OpenIdRefused(OpenIdRefusal.TOKEN, "sub is not text of 1 to 255 characters")
    proofs = {f"subject {subject}"}
    # Not `"true"`, and not without it: at many providers anybody may write any address into their profile.
    if isinstance(email, str) and email and claims.get("email_verified") is True:
        proofs.add(f"email {email}")
    if isinstance(groups, list) and len(groups) <= MAX_GROUPS:
        proofs |= {f"group {group}" for group in groups if isinstance(group, str) and len(group) <= _LONGEST}
    return Identity(subject, frozenset(proofs))
