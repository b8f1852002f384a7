"""What AWS does with a signed request, written from its documentation alone; no botocore in it.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
"""

import hashlib
import hmac
import re
from calendar import timegm
from time import strptime
from urllib.parse import quote, unquote, unquote_to_bytes


class Rejected(Exception):
    """What AWS would answer with 403."""


def verify(
    method: str,
    target: str,
    headers: list[tuple[str, str]],
    body: bytes,
    key_id: str,
    secret_key: str,
    token: str,
    now: float,
) -> None:
    """Raises Rejected unless the request is signed with exactly these keys and unchanged since."""
    path, _, query = target.partition("?")
    halves = [pair.partition("=") for pair in query.split("&")] if query else []
    pairs = [(unquote(name), unquote(value)) for name, _, value in halves]
    said = dict(pairs)
    by_name: dict[str, list[str]] = {}
    for name, value in headers:
        by_name.setdefault(name.lower(), []).append(re.sub(" +", " ", value.strip()))
    if "authorization" in by_name:
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=(\S+), ?SignedHeaders=(\S+), ?Signature=(\S+)",
            by_name["authorization"][0],
        )
        need(found is not None and len(by_name["authorization"]) == 1, "Authorization")
        assert found is not None
        credential, names, signature = found.groups()
        date, sent_token, presigned = (
            by_name["x-amz-date"][0],
            by_name.get("x-amz-security-token", [""]),
            False,
        )
        need(len(sent_token) == 1, "one token")
        need("X-Amz-Signature" not in said, "two signatures")
    else:
        need(said.get("X-Amz-Algorithm") == "AWS4-HMAC-SHA256", "no signature")
        credential, names, signature = (
            said["X-Amz-" + n] for n in ("Credential", "SignedHeaders", "Signature")
        )
        date, sent_token, presigned = said["X-Amz-Date"], [said.get("X-Amz-Security-Token", "")], True
        pairs = [pair for pair in pairs if pair[0] != "X-Amz-Signature"]
    need(sent_token == [token], "InvalidToken")
    sent_id, day, region, service, end = credential.split("/")
    need(sent_id == key_id and end == "aws4_request" and day == date[:8], "InvalidAccessKeyId")
    signed_at = timegm(strptime(date, "%Y%m%dT%H%M%SZ"))
    latest = signed_at + (int(said["X-Amz-Expires"]) if presigned else 900)
    need(signed_at - 900 <= now <= latest, "RequestTimeTooSkewed")
    signed = names.split(";")
    need("host" in signed, "host must be signed")
    need(all(name in signed for name in by_name if name.startswith("x-amz-")), "unsigned x-amz- header")

    if service == "s3":
        uri = quote(unquote_to_bytes(path), safe="/-_.~")
    else:
        segments: list[str] = []
        for segment in path.split("/"):
            if segment == "..":
                del segments[-1:]
            elif segment not in ("", "."):
                segments.append(segment)
        slash = "/" if path.endswith("/") and segments else ""
        uri = quote("/" + "/".join(segments) + slash, safe="/-_.~")
    canonical_query = "&".join(sorted(f"{quote(n, safe='-_.~')}={quote(v, safe='-_.~')}" for n, v in pairs))
    digest = hashlib.sha256(body).hexdigest()
    payload = by_name.get(
        "x-amz-content-sha256", ["UNSIGNED-PAYLOAD" if presigned and service == "s3" else digest]
    )[0]
    if re.fullmatch("[0-9a-f]{64}", payload):
        need(payload == digest, "XAmzContentSHA256Mismatch")
    canonical = "\n".join(
        [method, uri, canonical_query, *(f"{n}:{','.join(by_name[n])}" for n in signed), "", names, payload]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = b"AWS4" + secret_key.encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    need(hmac.new(key, to_sign.encode(), "sha256").hexdigest() == signature, "SignatureDoesNotMatch")


def need(holds: bool, why: str) -> None:
    if not holds:
        raise Rejected(why)
