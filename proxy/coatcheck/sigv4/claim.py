"""What a client says that it signed: AWS Signature Version 4, from a header or a presigned URL.

Pure parsing, strict, without a key: `resign` decides whether it is true. Form:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import string
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import RequestHead

ALGORITHM: Final = "AWS4-HMAC-SHA256"
TOKEN_HEADER: Final = "x-amz-security-token"
CONTENT_HEADER: Final = "x-amz-content-sha256"
S3_SERVICES: Final = frozenset({"s3", "s3express", "s3-object-lambda", "s3-outposts"})
"""They sign the path as it stands; all others normalise and encode it once more."""

LONGEST_EXPIRY: Final = 604_800
"""Seconds: AWS allows a presigned URL seven days."""
MOST_SIGNED_HEADERS: Final = 100

QUERY_NAMES: Final = frozenset(
    {
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Security-Token",
        "X-Amz-Signature",
    }
)
_QUERY_NAMES_LOWER: Final = frozenset(name.lower() for name in QUERY_NAMES)
_SCOPE: Final = frozenset(string.ascii_letters + string.digits + "-_.")
_HEADER_NAME: Final = frozenset(string.ascii_lowercase + string.digits + "-_.")
_HEX: Final = frozenset(string.digits + "abcdef")


@dataclass(frozen=True, slots=True)
class Claim:
    """A signature and all that it says about itself."""

    access_key_id: str = field(repr=False)
    region: str
    service: str
    timestamp: str
    """`20260102T030405Z`."""
    at: float
    """The same as Unix time."""
    signed_headers: tuple[str, ...]
    token: str = field(repr=False)
    """What stands as the session token: the handle, if all is well."""
    signature: str = field(repr=False)
    expires: int | None = None
    """Seconds from `at`, for a presigned URL; None for a signature in the Authorization header."""


def read_claim(head: RequestHead) -> Claim | Deny:
    """The one signature of a request."""
    authorization = head.get_all("authorization")
    pairs = [pair.partition("=")[::2] for pair in head.query.split("&")]
    presigned = any(unquote(name).lower() in _QUERY_NAMES_LOWER for name, _ in pairs)
    if len(authorization) > 1 or (authorization and presigned):
        return Deny(Reason.HEADER_FORM_REFUSED, "more than one signature")
    if presigned:
        return _from_query(head, pairs)
    if not authorization:
        return Deny(Reason.HANDLE_MISSING, "the request is not signed")
    return _from_header(head, authorization[0])


def is_sha256(text: str) -> bool:
    return len(text) == 64 and _HEX.issuperset(text)


def _from_header(head: RequestHead, value: str) -> Claim | Deny:
    algorithm, _, rest = value.partition(" ")
    if algorithm != ALGORITHM:
        return _other_algorithm(algorithm)
    parts = [part.strip(" ").partition("=")[::2] for part in rest.split(",")]
    said = dict(parts)
    if len(parts) != 3 or said.keys() != {"Credential", "SignedHeaders", "Signature"}:
        return _malformed("Authorization is not Credential, SignedHeaders and Signature, once each")
    dates, tokens = head.get_all("x-amz-date"), head.get_all(TOKEN_HEADER)
    if len(dates) != 1 or len(tokens) > 1:
        return _malformed("x-amz-date must stand once, x-amz-security-token at most once")
    if not tokens:
        return Deny(Reason.HANDLE_MISSING, "no x-amz-security-token: AWS_SESSION_TOKEN is not in use")
    return _claim(said["Credential"], dates[0], said["SignedHeaders"], tokens[0], said["Signature"], None)


def _from_query(head: RequestHead, pairs: list[tuple[str, str]]) -> Claim | Deny:
    said: dict[str, str] = {}
    for name, value in pairs:
        if unquote(name).lower() not in _QUERY_NAMES_LOWER:
            continue
        if name not in QUERY_NAMES or name in said:
            return _malformed("a signature's query parameter is repeated or oddly written")
        said[name] = unquote(value)
    algorithm = said.get("X-Amz-Algorithm", "")
    if algorithm != ALGORITHM:
        return _other_algorithm(algorithm)
    if head.get_all(TOKEN_HEADER) or head.get_all("x-amz-date"):
        return _malformed("a presigned URL beside a signature's headers")
    if "X-Amz-Security-Token" not in said:
        return Deny(Reason.HANDLE_MISSING, "no X-Amz-Security-Token: AWS_SESSION_TOKEN is not in use")
    expires = said.get("X-Amz-Expires", "")
    short = expires.isascii() and expires.isdigit() and len(expires) <= 6
    if said.keys() != QUERY_NAMES or not short or not 0 < int(expires) <= LONGEST_EXPIRY:
        return _malformed("a presigned URL's parameter is missing, or X-Amz-Expires is out of range")
    return _claim(
        said["X-Amz-Credential"],
        said["X-Amz-Date"],
        said["X-Amz-SignedHeaders"],
        said["X-Amz-Security-Token"],
        said["X-Amz-Signature"],
        int(expires),
    )


def _claim(
    credential: str, timestamp: str, signed_headers: str, token: str, signature: str, expires: int | None
) -> Claim | Deny:
    scope = credential.split("/")
    if len(scope) != 5 or scope[4] != "aws4_request" or not all(map(_is_scope, scope[:4])):
        return _malformed("Credential is not id/date/region/service/aws4_request")
    at = _unix_time(timestamp)
    if at is None or scope[1] != timestamp[:8]:
        return _malformed("the signature's date is not one date in the form 20260102T030405Z")
    names = tuple(signed_headers.split(";"))
    well_formed = all(name and _HEADER_NAME.issuperset(name) for name in names)
    if len(names) > MOST_SIGNED_HEADERS or not well_formed or list(names) != sorted(set(names)):
        return _malformed("SignedHeaders are not lower-case names, each once, in order")
    if "host" not in names or (expires is None and TOKEN_HEADER not in names):
        return _malformed("host and the session token must be signed")
    if not is_sha256(signature):
        return _malformed("Signature is not 64 lower-case hexadecimal digits")
    return Claim(scope[0], scope[2], scope[3], timestamp, at, names, token, signature, expires)


def _is_scope(part: str) -> bool:
    return 0 < len(part) <= 128 and _SCOPE.issuperset(part)


def _unix_time(timestamp: str) -> float | None:
    digits = timestamp[:8] + timestamp[9:15]
    form = len(timestamp) == 16 and timestamp[8] == "T" and timestamp[15] == "Z"
    if not form or not (digits.isascii() and digits.isdigit()):
        return None
    try:
        return datetime.strptime(timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _other_algorithm(algorithm: str) -> Deny:
    if algorithm == "AWS4-ECDSA-P256-SHA256":
        return Deny(Reason.PLANE_CANNOT, "SigV4A (multi-region) is not re-signed; use one region's endpoint")
    if algorithm == "AWS":
        return Deny(Reason.PLANE_CANNOT, "AWS Signature Version 2 is not re-signed; use version 4")
    return Deny(Reason.HANDLE_MISPLACED, f"the request is not signed with {ALGORITHM}")


def _malformed(detail: str) -> Deny:
    return Deny(Reason.HEADER_FORM_REFUSED, detail)
