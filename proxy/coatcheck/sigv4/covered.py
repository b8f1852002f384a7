"""Which bytes a client's signature covers, so that they can be checked and signed again."""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, Headers, RequestHead
from coatcheck.sigv4.claim import CONTENT_HEADER, S3_SERVICES, Claim, is_sha256, read_claim

EMPTY_SHA256_HASH: Final = hashlib.sha256(b"").hexdigest()
UNSIGNED_PAYLOAD: Final = "UNSIGNED-PAYLOAD"
STREAMING_UNSIGNED_PAYLOAD_TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
LARGEST_HASHED_BODY: Final = 16_777_216
"""Bytes to buffer where `needs_body_hash`: DynamoDB's largest request. S3 never needs it."""


@dataclass(frozen=True, slots=True)
class ToSign:
    """All that a signature covers, but for the key and the time."""

    region: str
    service: str
    method: str
    destination: Destination
    target: str
    """Printable ASCII without blank or `#`: botocore would strip or cut others silently."""
    headers: Headers = field(repr=False)
    """Exactly those that are signed, each name once."""
    payload: str
    """The canonical request's last line: a SHA-256 or a word such as UNSIGNED-PAYLOAD."""


def needs_body_hash(head: RequestHead) -> bool:
    """Whether `resign` must know the whole body's SHA-256: its client signed it without sending it."""
    if head.end_stream or head.get(CONTENT_HEADER) is not None:
        return False
    claim = read_claim(head)
    return isinstance(claim, Claim) and not (claim.expires is not None and claim.service in S3_SERVICES)


def covered(
    head: RequestHead, destination: Destination, claim: Claim, body_sha256: str | None
) -> ToSign | Deny:
    """What `claim` says was signed, as the request was received."""
    payload = _payload(head, destination, claim, body_sha256)
    if isinstance(payload, Deny):
        return payload
    headers = _signed_headers(head, destination, claim)
    if isinstance(headers, Deny):
        return headers
    if not (head.target.isascii() and head.target.isprintable()) or set(" #") & set(head.target):
        # urlsplit would cut or strip them, and what is signed would not be what is sent.
        return Deny(Reason.PATH_FORM_REFUSED, "blank, control character or # in the target")
    target = without(head.target, {"X-Amz-Signature"})
    return ToSign(claim.region, claim.service, head.method, destination, target, headers, payload)


def without(target: str, names: set[str]) -> str:
    """A target without the query parameters of these names, as they are written."""
    path, mark, query = target.partition("?")
    return path + mark + "&".join(pair for pair in query.split("&") if pair.partition("=")[0] not in names)


def netloc(destination: Destination) -> str:
    """The Host header that a plane sends: the port only where it is not the scheme's own."""
    return destination.url.partition("://")[2]


def _payload(
    head: RequestHead, destination: Destination, claim: Claim, body_sha256: str | None
) -> str | Deny:
    """The payload's line of the canonical request."""
    actual = EMPTY_SHA256_HASH if head.end_stream else body_sha256
    declared = head.get(CONTENT_HEADER)
    if declared is None and claim.expires is not None and claim.service in S3_SERVICES:
        declared = UNSIGNED_PAYLOAD
    if declared is None:
        return actual or Deny(Reason.PLANE_CANNOT, "the plane did not hash the body")
    if declared in (UNSIGNED_PAYLOAD, STREAMING_UNSIGNED_PAYLOAD_TRAILER):
        if destination.scheme != "https":
            return Deny(Reason.PLAIN_HTTP_REFUSED, "an unsigned payload needs TLS")
        return declared
    if is_sha256(declared):
        if actual is not None and actual != declared:
            return Deny(Reason.SIGNATURE_REFUSED, "the body is not the one that was signed")
        # A body that streams is checked by AWS, against the hash that we sign again.
        return declared
    if declared.startswith("STREAMING-"):
        detail = (
            "signed chunks and event streams cannot be re-signed; switch payload signing off in the client"
        )
        return Deny(Reason.PLANE_CANNOT, f"{detail} (HTTPS endpoints do without it)")
    return Deny(Reason.HEADER_FORM_REFUSED, f"{CONTENT_HEADER} is neither a hash nor a known word")


def _signed_headers(head: RequestHead, destination: Destination, claim: Claim) -> Headers | Deny:
    """The signed headers with their values: each once, plain ASCII, and no x-amz- header left out."""
    signed: list[tuple[str, str]] = []
    for name in claim.signed_headers:
        values = head.get_all(name)
        if not values and name == "host":
            values = (netloc(destination),)  # HTTP/2 says :authority
        if len(values) != 1:
            return Deny(Reason.HEADER_FORM_REFUSED, f"signed header {name} stands {len(values)} times")
        if not (values[0].isascii() and values[0].isprintable()):
            # Bytes that signers decode differently.
            return Deny(Reason.HEADER_FORM_REFUSED, f"signed header {name} is not printable ASCII")
        signed.append((name, values[0]))
    for name, _ in head.headers:
        if name == "x-amz-s3session-token":
            return Deny(Reason.PLANE_CANNOT, "S3 Express session tokens are not handles")
        if name.startswith("x-amz-") and name not in claim.signed_headers:
            return Deny(Reason.HEADER_FORM_REFUSED, f"header {name} is not signed")
    return tuple(signed)
