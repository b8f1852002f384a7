"""Replaces a stand-in's signature, which must hold, by one with the real keys.

Only headers that a plane leaves alone are signed again: a plane drops hop-by-hop headers and Range and
edits Accept-Encoding, and what AWS reads must be what was signed.
"""

import hmac
import importlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import EDITED_BY_PLANES
from coatcheck.decision.message import Destination, Edits, Headers, RequestHead
from coatcheck.decision.search import MARK
from coatcheck.sigv4.claim import ALGORITHM, TOKEN_HEADER, Claim, read_claim
from coatcheck.sigv4.covered import ToSign, covered, netloc, without
from coatcheck.sigv4.keys import AwsKeys
from coatcheck.sigv4.stand_in import stand_in

MOST_SKEW: Final = 900
"""Seconds between the client's clock and ours; AWS itself allows no more."""
PRESIGNED_SECONDS: Final = 60
"""How long a presigned URL lives that we sign: a redirect may show it to the sandbox (S3 answers 307
with the whole query), so it must not outlive the request by much."""

_NOT_KEPT: Final = EDITED_BY_PLANES | {"host", TOKEN_HEADER}  # these two are signed anew
"""What planes edit is not signed again. AWS demands only host, content-type and x-amz-*."""


def prepare() -> None:
    """Import what signs, before the first request that would wait for it."""
    importlib.import_module("coatcheck.sigv4.signature")


def resign(
    head: RequestHead,
    destination: Destination,
    body_sha256: str | None,
    handle: str | None,
    real: AwsKeys,
    now: float,
    *,
    services: frozenset[str] = frozenset(),
    regions: frozenset[str] = frozenset(),
) -> Edits | Deny:
    """The edits that give the request the real keys' signature, or why its own does not hold.

    `body_sha256` (hexadecimal) may be None unless `needs_body_hash(head)`; `now` is Unix time. Of `services`
    and `regions`, from the credential scope, none means any.
    """
    if handle is None:
        return Deny(Reason.HANDLE_MISSING, "only a handle's key pair can sign")
    claim = read_claim(head)
    if isinstance(claim, Deny):
        return claim
    received = covered(head, destination, claim, body_sha256)
    if isinstance(received, Deny):
        return received
    refused = _check(claim, handle, services, regions, now) or _leftover(head)
    if refused is not None:
        return refused
    key_id, key = stand_in(handle)
    expected = _signature(key, claim.timestamp, received)
    if claim.access_key_id != key_id or not hmac.compare_digest(expected, claim.signature):
        return Deny(Reason.SIGNATURE_REFUSED, "the stand-in signature does not fit the request as received")
    # What is signed is what must be sent: the host in canonical form, and nothing that a plane edits.
    host = netloc(destination)
    kept = tuple(pair for pair in received.headers if pair[0] not in _NOT_KEPT)
    to_sign = replace(received, headers=(*kept, ("host", host)))
    edits = () if head.get("host") in (None, host) else (("host", host),)
    if claim.expires is None:
        return _in_header(claim, real, to_sign, edits)
    return _in_query(claim, real, to_sign, edits, now)


def _check(
    claim: Claim, handle: str, services: frozenset[str], regions: frozenset[str], now: float
) -> Deny | None:
    if not hmac.compare_digest(claim.token.encode(), handle.encode()):
        return Deny(Reason.HANDLE_MISPLACED, "the session token is not the handle", alarm=True)
    if services and claim.service not in services:
        detail = f"signed for service {claim.service}, which the credential does not name"
        return Deny(Reason.HANDLE_WRONG_HOST, detail, alarm=True)
    if regions and claim.region not in regions:
        detail = f"signed for region {claim.region}, which the credential does not name"
        return Deny(Reason.HANDLE_WRONG_HOST, detail, alarm=True)
    latest = claim.at + (MOST_SKEW if claim.expires is None else claim.expires)
    if not claim.at - MOST_SKEW <= now <= latest:
        return Deny(Reason.SIGNATURE_REFUSED, f"signed at {claim.timestamp}, which is too far from now")
    return None


def _leftover(head: RequestHead) -> Deny | None:
    """A handle besides the session token, which would leave with the real signature over it."""
    rest = [value for name, value in head.headers if name != TOKEN_HEADER]
    rest.append(unquote(without(head.target, {"X-Amz-Security-Token"})))
    if MARK in "\n".join(rest):
        return Deny(Reason.HANDLE_MISPLACED, "a second handle, outside the session token", alarm=True)
    return None


def _in_header(claim: Claim, real: AwsKeys, to_sign: ToSign, edits: Headers) -> Edits:
    token = ((TOKEN_HEADER, real.session_token),) if real.session_token else ()
    to_sign = replace(to_sign, headers=(*to_sign.headers, *token))
    digits = _signature(real.secret_access_key, claim.timestamp, to_sign)
    scope = _scope(real, claim, claim.timestamp)
    value = f"{ALGORITHM} Credential={scope}, SignedHeaders={_names(to_sign)}, Signature={digits}"
    return Edits((("authorization", value), *token, *edits), () if token else (TOKEN_HEADER,))


def _in_query(claim: Claim, real: AwsKeys, to_sign: ToSign, edits: Headers, now: float) -> Edits:
    """The real keys' query parameters in the place of the stand-in's; the others keep their bytes."""
    timestamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    left = int(claim.at + (claim.expires or 0) - now)
    new = {
        "X-Amz-Credential": _scope(real, claim, timestamp),
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(max(1, min(left, PRESIGNED_SECONDS))),
        "X-Amz-SignedHeaders": _names(to_sign),
        "X-Amz-Security-Token": real.session_token,
    }
    target = to_sign.target if real.session_token else without(to_sign.target, {"X-Amz-Security-Token"})
    path, _, query = target.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    query = "&".join(
        f"{name}={quote(new[name], safe='-_.~')}" if name in new else name + mark + value
        for name, mark, value in pairs
    )
    target = f"{path}?{query}"
    digits = _signature(real.secret_access_key, timestamp, replace(to_sign, target=target))
    return Edits(edits, target=f"{target}&X-Amz-Signature={digits}")


def _signature(key: str, timestamp: str, what: ToSign) -> str:
    from coatcheck.sigv4.signature import signature  # see there

    return signature(key, timestamp, what)


def _names(to_sign: ToSign) -> str:
    return ";".join(sorted(name for name, _ in to_sign.headers))


def _scope(real: AwsKeys, claim: Claim, timestamp: str) -> str:
    return f"{real.access_key_id}/{timestamp[:8]}/{claim.region}/{claim.service}/aws4_request"
