"""What a client shows to its proxy beside its connection: a platform's token, or a password."""

import base64
import binascii
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from mitmproxy import http

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.planes.origins.platform_token import PlatformTokens

if TYPE_CHECKING:
    from coatcheck.planes.mitm.connection import EgressConnection


def present(
    link: "EgressConnection", request: http.Request, tokens: PlatformTokens | None, now: float
) -> None:
    """Take what the request shows, if anything: a platform's token where it is one, else a password
    (`bearer`). What was shown before no longer counts. `now`: Unix seconds."""
    shown = proxy_credential(request)
    if shown is None:
        return
    proof = tokens.proof(shown, now) if tokens else None
    if proof is not None:
        origin, link.proof_until = proof.origin, proof.expires_at
    else:
        origin = Origin(OriginClass.BEARER, hashlib.sha256(shown.encode()).hexdigest())
        link.proof_until = None
    link.peer = replace(link.peer, origins=(*_proven_by_connection(link), origin))


def check_proof(link: "EgressConnection", now: float) -> None:
    """A kept connection does not outlive the token that opened it."""
    if link.proof_until is not None and now >= link.proof_until:
        link.peer = replace(link.peer, origins=_proven_by_connection(link))
        link.proof_until = None


def _proven_by_connection(link: "EgressConnection") -> tuple[Origin, ...]:
    shown = (OriginClass.BEARER, OriginClass.TOKEN)
    return tuple(origin for origin in link.peer.origins if origin.kind not in shown)


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
