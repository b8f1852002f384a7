"""Real boto3 clients sign with a stand-in pair; AWS, played by an independent verifier, sees the real one."""

import io
import logging
import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.message import Edits, Headers, RequestHead
from coatcheck.sigv4.covered import needs_body_hash
from coatcheck.sigv4.keys import AwsKeys
from coatcheck.sigv4.resign import PRESIGNED_SECONDS, resign
from coatcheck.sigv4.stand_in import stand_in
from tests.sigv4.aws_verifier import Rejected
from tests.sigv4.recording_server import Recording
from tests.sigv4.signing import (
    HANDLE,
    LONG_LIVED,
    ODD_KEY,
    OTHER,
    TEMPORARY,
    apply,
    check,
    client,
    recorded,
    refused,
    run,
)

CALLS: list[Any] = [
    pytest.param("s3", "put_object", {"Bucket": "b", "Key": ODD_KEY, "Body": b"x" * 5000}, id="s3 put"),
    pytest.param(
        "s3", "put_object", {"Bucket": "b", "Key": "stream", "Body": io.BytesIO(b"y" * 5000)}, id="s3 stream"
    ),
    pytest.param(
        "s3", "put_object", {"Bucket": "b", "Key": "e", "Metadata": {"a": "two  blanks"}}, id="s3 metadata"
    ),
    pytest.param("s3", "get_object", {"Bucket": "b", "Key": ODD_KEY, "Range": "bytes=0-9"}, id="s3 get"),
    pytest.param("s3", "list_objects_v2", {"Bucket": "b", "Prefix": ODD_KEY, "Delimiter": "/"}, id="s3 list"),
    pytest.param("s3", "get_bucket_acl", {"Bucket": "b"}, id="s3 valueless parameter"),
    pytest.param(
        "s3", "delete_objects", {"Bucket": "b", "Delete": {"Objects": [{"Key": ODD_KEY}]}}, id="s3 delete"
    ),
    pytest.param("sqs", "send_message", {"QueueUrl": "https://q/1/q", "MessageBody": "hé"}, id="sqs"),
    pytest.param("dynamodb", "get_item", {"TableName": "t", "Key": {"k": {"S": "ü"}}}, id="dynamodb"),
    pytest.param("sts", "get_caller_identity", {}, id="sts"),
    pytest.param(
        "lambda", "invoke", {"FunctionName": "arn:aws:lambda:x:1:function:f", "Payload": b"{}"}, id="lambda"
    ),
    pytest.param("lambda", "list_functions", {}, id="lambda get"),
]


@pytest.mark.parametrize("keys", [LONG_LIVED, TEMPORARY], ids=["long-lived", "temporary"])
@pytest.mark.parametrize(("service", "operation", "parameters"), CALLS)
def test_aws_accepts_what_we_sign_and_not_what_the_sandbox_signed(
    upstream: Recording, service: str, operation: str, parameters: dict[str, Any], keys: AwsKeys
) -> None:
    """The recorded request fails with the real keys; re-signed it holds, whatever a plane edits besides."""
    if isinstance(parameters.get("Body"), io.BytesIO):
        parameters["Body"].seek(0)
    head, body = recorded(upstream, getattr(client(upstream, service), operation), **parameters)
    with pytest.raises(Rejected):
        check(head, body, keys, time.time())
    result = run(upstream, head, body, keys=keys)
    assert isinstance(result, Edits), result
    sent = apply(head, result)
    check(sent, body, keys, time.time())
    assert HANDLE not in repr(sent) and stand_in(HANDLE)[0] not in repr(sent)
    assert keys.secret_access_key not in repr(sent)
    assert {name for name, _ in result.set_headers} <= {"authorization", "x-amz-security-token"}
    assert result.body is None and result.target is None


def test_s3_uploads_stream_and_others_are_hashed(upstream: Recording) -> None:
    """boto3 uploads to S3 with an unsigned trailer; JSON services sign a hash that they do not send."""
    upload, _ = recorded(upstream, client(upstream, "s3").put_object, Bucket="b", Key="k", Body=b"x")
    assert upload.get("x-amz-content-sha256") == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    assert not needs_body_hash(upload)
    item, body = recorded(upstream, client(upstream, "dynamodb").list_tables)
    assert needs_body_hash(item)
    without_hash = resign(item, upstream.destination, None, HANDLE, TEMPORARY, time.time())
    assert refused(without_hash) is Reason.PLANE_CANNOT
    assert refused(run(upstream, item, body + b" ")) is Reason.SIGNATURE_REFUSED


def test_a_declared_hash_is_checked_where_the_body_is_known(
    upstream: Recording, listing: RequestHead
) -> None:
    """A body that streams is left to AWS, which gets the declared hash signed; a known one must fit."""
    streamed = replace(listing, end_stream=False)
    for digest, accepted in (
        (None, True),
        (sha256(b"").hexdigest(), True),
        (sha256(b"x").hexdigest(), False),
    ):
        result = resign(streamed, upstream.destination, digest, HANDLE, TEMPORARY, time.time())
        assert isinstance(result, Edits) if accepted else refused(result) is Reason.SIGNATURE_REFUSED


@pytest.mark.parametrize("keys", [LONG_LIVED, TEMPORARY], ids=["long-lived", "temporary"])
@pytest.mark.parametrize("operation", ["get_object", "put_object"])
def test_a_presigned_url_is_signed_again_for_a_minute(
    upstream: Recording, operation: str, keys: AwsKeys
) -> None:
    """Made for a week, it leaves with the real keys and at most sixty seconds to live."""
    parameters = {"Bucket": "b", "Key": ODD_KEY}
    s3 = client(upstream, "s3", signature_version="s3v4")
    url = s3.generate_presigned_url(operation, Params=parameters, ExpiresIn=604_800)
    target = url.removeprefix(upstream.url)
    method, body = ("GET", b"") if operation == "get_object" else ("PUT", b"data")
    host = upstream.url.removeprefix("https://")
    head = RequestHead(method, target, (("host", host),), end_stream=not body)
    now = time.time()
    with pytest.raises(Rejected):
        check(head, body, keys, now)
    result = run(upstream, head, body, keys=keys, now=now + 3600)
    assert isinstance(result, Edits), result
    sent = apply(head, result)
    check(sent, body, keys, now + 3600)
    with pytest.raises(Rejected, match="RequestTimeTooSkewed"):
        check(sent, body, keys, now + 3600 + PRESIGNED_SECONDS + 2)
    assert HANDLE not in sent.target and keys.secret_access_key not in sent.target
    assert refused(run(upstream, head, body, keys=keys, now=now + 604_802)) is Reason.SIGNATURE_REFUSED
    tampered = replace(head, target=target.replace("/b/", "/c/"))
    assert refused(run(upstream, tampered, body, keys=keys)) is Reason.SIGNATURE_REFUSED
    twice = replace(head, target=f"{target}&X-Amz-Expires=5")
    assert refused(run(upstream, twice, body)) is Reason.HEADER_FORM_REFUSED
    odd = replace(head, target=f"{target}&x-amz-expires=5")
    assert refused(run(upstream, odd, body)) is Reason.HEADER_FORM_REFUSED
    both = replace(head, headers=(*head.headers, ("authorization", "AWS4-HMAC-SHA256 x")))
    assert refused(run(upstream, both, body)) is Reason.HEADER_FORM_REFUSED


def test_an_sts_url_is_signed_again(upstream: Recording) -> None:
    """Presigned for a service other than S3: the payload is the empty body's hash."""
    url = client(upstream, "sts").generate_presigned_url("get_caller_identity", HttpMethod="GET")
    host = upstream.url.removeprefix("https://")
    head = RequestHead("GET", url.removeprefix(upstream.url), (("host", host),))
    result = run(upstream, head)
    assert isinstance(result, Edits), result
    check(apply(head, result), b"", TEMPORARY, time.time())


def test_the_host_is_signed_as_it_is_sent(upstream: Recording, listing: RequestHead) -> None:
    """A client's odd writing of the host is edited to the canonical one, and that is what is signed."""
    host = listing.get("host") or ""
    key_id, key = stand_in(HANDLE)
    odd = RequestHead("GET", "/", (("host", host.upper()),))
    signed = sign_with_curl_rules(odd, key_id, key)
    result = run(upstream, signed)
    assert isinstance(result, Edits) and ("host", host) in result.set_headers
    check(apply(signed, result), b"", TEMPORARY, time.time())
    no_host = replace(listing, headers=tuple(pair for pair in listing.headers if pair[0] != "host"))
    over_http2 = run(upstream, no_host)
    assert isinstance(over_http2, Edits) and "host" not in dict(over_http2.set_headers)


def sign_with_curl_rules(head: RequestHead, key_id: str, key: str) -> RequestHead:
    """Signs for `execute-api` in eu-west-1, by botocore's add_auth: the client's side."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    host = head.get("host") or ""
    request = AWSRequest(head.method, f"https://{host.lower()}{head.target}", {"host": host})
    SigV4Auth(Credentials(key_id, key, HANDLE), "execute-api", "eu-west-1").add_auth(request)
    headers: Headers = tuple((name.lower(), value) for name, value in request.headers.items())
    return replace(head, headers=headers)


def test_nothing_is_logged(
    upstream: Recording, listing: RequestHead, caplog: pytest.LogCaptureFixture
) -> None:
    """botocore's `add_auth` would log the canonical request, real session token included."""
    with caplog.at_level(logging.DEBUG):
        assert isinstance(run(upstream, listing), Edits)
    assert caplog.records == []


def test_the_stand_in_looks_like_a_key_pair_and_follows_from_the_handle() -> None:
    """Twenty and forty characters, as SDKs that check expect; another handle, another pair."""
    key_id, key = stand_in(HANDLE)
    assert len(key_id) == 20 and key_id.isalnum() and key_id.isupper() and len(key) == 40
    assert stand_in(HANDLE) == (key_id, key) != stand_in(OTHER)
