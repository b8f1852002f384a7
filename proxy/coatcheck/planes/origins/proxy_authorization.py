"""What a client presents to its proxy beside its connection: a platform's token, or a password."""

import base64
import binascii
import hashlib
from dataclasses import replace

from mitmproxy import http

from coatcheck.decision.message import Origin, OriginClass, Peer
from coatcheck.planes.origins.platform_token import PlatformTokens

_PRESENTED = (OriginClass.BEARER, OriginClass.TOKEN)
"""The origin classes that a request proves; all others the connection itself does."""


class ClientProof:
    """What one connection has proven about its client so far, as `peer`."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.expires_at: float | None = None
        """When the platform token that was presented expires, Unix seconds; None without one."""

    def present(self, request: http.Request, tokens: PlatformTokens | None, now: float) -> None:
        """Take what the request presents, if anything: a platform's token where it is one, else a password
        (`bearer`). It replaces what was presented before. `now`: Unix seconds."""
        credential = proxy_credential(request)
        if credential is None:
            return
        proof = tokens.proof(credential, now) if tokens else None
        if proof is not None:
            origin, self.expires_at = proof.origin, proof.expires_at
        else:
            origin = Origin(OriginClass.BEARER, hashlib.sha256(credential.encode()).hexdigest())
            self.expires_at = None
        self.peer = replace(self.peer, origins=(*self._proven_by_connection(), origin))

    def expire(self, now: float) -> None:
        """Drop a token that has expired by `now`: a kept connection does not outlive what opened it."""
        if self.expires_at is not None and now >= self.expires_at:
            self.peer = replace(self.peer, origins=self._proven_by_connection())
            self.expires_at = None

    def _proven_by_connection(self) -> tuple[Origin, ...]:
        return tuple(origin for origin in self.peer.origins if origin.kind not in _PRESENTED)


def proxy_credential(request: http.Request) -> str | None:
    """A Proxy-Authorization credential: Basic's password, or Bearer's token."""
    value = request.headers.get("proxy-authorization")
    if value is None:
        return None
    scheme, _, rest = value.partition(" ")
    if scheme.lower() == "bearer":
        return str(rest).strip()
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(rest.strip().encode("latin-1"), validate=True)
    except (binascii.Error, ValueError):
        return None
    return decoded.partition(b":")[2].decode("latin-1")
