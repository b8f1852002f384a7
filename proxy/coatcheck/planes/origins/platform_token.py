"""Origin class `token`: a platform's signed proof of which pod connects (Kubernetes projected tokens).

The token is bound to our audience and to its pod's UID, so that it proves one sandbox to us and nothing to
anybody else; a token for several audiences could be replayed to us by the others, and is refused.
"""

import hashlib
import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.planes.origins.platform_keys import NONE, KeyFile, KeyUrl

TOKEN_BYTES = 8192
"""Kubernetes' own have about 1.2 KiB."""
CACHED = 4096
"""Verified tokens remembered, about 300 bytes each: a signature check costs more than the rest of CONNECT."""
SKEW_SECONDS = 10.0
"""How far the issuer's clock may run ahead of ours, for `nbf`. `exp` gets nothing."""

_POD_UID = re.compile("[0-9a-zA-Z-]{1,64}")
_NAME = re.compile("[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Of a namespace or a pod (RFC 1123 subdomain): they stand in audit records."""
_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenProof:
    """What a token proved. It counts until `expires_at` (Unix seconds), on a kept connection too."""

    origin: Origin
    expires_at: float
    namespace: str = ""
    """The pod's, as the platform says it; empty where it does not."""
    pod: str = ""
    """The pod's name, likewise."""


class PlatformTokens:
    """Verifies tokens of one issuer for one audience. Belongs to the plane's loop."""

    def __init__(self, source: KeyFile | KeyUrl, issuer: str, audience: str) -> None:
        self.source = source
        self._issuer = issuer
        self._audience = audience
        self._keys = NONE
        self.proofs: OrderedDict[str, TokenProof] = OrderedDict()

    def proof(self, token: str, now: float) -> TokenProof | None:
        """What `token` proves at `now` (Unix seconds), or None. Nothing of a token is ever logged."""
        if len(token) > TOKEN_BYTES or _JWT.fullmatch(token) is None:
            return None
        keys = self.source.now()
        if keys is not self._keys:  # a key that is gone takes its tokens with it
            self._keys = keys
            self.proofs.clear()
        digest = hashlib.sha256(token.encode()).hexdigest()
        known = self.proofs.get(digest)
        if known is None:
            known = self._verify(token, now)
            if known is None:
                return None
            self.proofs[digest] = known
            if len(self.proofs) > CACHED:
                self.proofs.popitem(last=False)
        elif now >= known.expires_at:
            del self.proofs[digest]
            return None
        else:
            self.proofs.move_to_end(digest)
        return known

    def _verify(self, token: str, now: float) -> TokenProof | None:
        try:
            header = jwt.get_unverified_header(token)
            key = self._keys.get(header.get("kid", ""))
            if key is None:
                self.source.missed()
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                # Times are checked below, against the daemon's clock, which never goes back.
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                    "require": ["exp", "iss", "aud"],
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None
        return self._judge(claims, now)

    def _judge(self, claims: Mapping[str, Any], now: float) -> TokenProof | None:
        if claims.get("aud") not in (self._audience, [self._audience]):
            return None
        expires, begins = _time(claims.get("exp")), _time(claims.get("nbf", 0))
        if expires is None or begins is None:
            return None
        if now >= expires or now + SKEW_SECONDS < begins:
            return None
        platform = claims.get("kubernetes.io")
        if not isinstance(platform, dict) or not isinstance(pod := platform.get("pod"), dict):
            return None
        uid = pod.get("uid")
        if not isinstance(uid, str) or _POD_UID.fullmatch(uid) is None:
            return None
        origin = Origin(OriginClass.TOKEN, f"{self._issuer}|{uid}")
        return TokenProof(origin, expires, _name(platform.get("namespace")), _name(pod.get("name")))


def _name(value: object) -> str:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""


def _time(value: object) -> float | None:
    """A NumericDate (RFC 7519 2), in Unix seconds."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None  # type: ignore[arg-type]
