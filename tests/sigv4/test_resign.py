"""Real boto3 clients sign with a stand-in pair; AWS, played by an independent verifier, sees the real one."""

import io
import logging
import time
from calendar import timegm
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.decision.message import Edits, Headers, RequestHead
from coatcheck.decision.policy import SigV4Injection
from coatcheck.decision.verdict import Deny, Reason
from coatcheck.sigv4.covered import needs_body_hash
from coatcheck.sigv4.keys import AwsKeys
from coatcheck.sigv4.resign import PRESIGNED_SECONDS, resign
from coatcheck.sigv4.stand_in import environment, stand_in
from tests.known_secrets import known_secret
from tests.sigv4.aws_verifier import Rejected, verify
from tests.sigv4.recording_server import Recording, recording_server

HANDLE = "cch_eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiIxIn0.c2ln_-A"
OTHER = "cch_eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiIyIn0.c2ln_-B"
LONG_LIVED = AwsKeys(known_secret("aws id", prefix="AKIA", length=16), known_secret("aws key", prefix=""))
TEMPORARY = replace(LONG_LIVED, session_token=known_secret("aws token", prefix="IQoJ/+==", length=200))
ANY = SigV4Injection()
ODD_KEY = "a b/ü+~%.txt"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    with recording_server(tmp_path_factory.mktemp("aws")) as recording:
        yield recording


def client(upstream: Recording, service: str, handle: str = HANDLE, **config: Any) -> Any:
    """A boto3 client as it runs in a sandbox: its keys are what the environment there holds."""
    env = environment(handle)
    make: Any = boto3.client  # its stubs have one overload a service, and none for a name in a variable
    return make(
        service,
        region_name="eu-central-1",
        endpoint_url=upstream.url,
        verify=upstream.ca_file,
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=env["AWS_SESSION_TOKEN"],
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, proxies={}, **config),
    )


def recorded(
    upstream: Recording, call: Callable[..., Any], /, **parameters: Any
) -> tuple[RequestHead, bytes]:
    with pytest.raises(ClientError):
        call(**parameters)
    return upstream.only()


def apply(head: RequestHead, edits: Edits) -> RequestHead:
    """What a plane does: remove, then set, and its own changes, which no signature may depend on."""
    gone = {*edits.remove_headers, *(name for name, _ in edits.set_headers)}
    gone |= {"range", "accept-encoding", "user-agent", "connection", "expect"}
    kept = tuple(pair for pair in head.headers if pair[0] not in gone)
    noise = (("user-agent", "another"), ("accept-encoding", "identity"))
    return replace(head, target=edits.target or head.target, headers=(*kept, *edits.set_headers, *noise))


def check(head: RequestHead, body: bytes, keys: AwsKeys, now: float) -> None:
    verify(
        head.method, head.target, list(head.headers), body,
        keys.access_key_id, keys.secret_access_key, keys.session_token, now,
    )  # fmt: skip


def run(
    upstream: Recording,
    head: RequestHead,
    body: bytes = b"",
    *,
    keys: AwsKeys = TEMPORARY,
    handle: str | None = HANDLE,
    allowed: SigV4Injection = ANY,
    now: float | None = None,
) -> Edits | Deny:
    digest = sha256(body).hexdigest() if needs_body_hash(head) else None
    return resign(
        head, upstream.destination, digest, handle, keys, allowed, time.time() if now is None else now
    )


def refused(result: Edits | Deny) -> Reason:
    assert isinstance(result, Deny), "it was signed"
    for value in (HANDLE, TEMPORARY.access_key_id, TEMPORARY.secret_access_key, TEMPORARY.session_token):
        assert value not in repr(result)
    return result.reason


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
    without_hash = resign(item, upstream.destination, None, HANDLE, TEMPORARY, ANY, time.time())
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
        result = resign(streamed, upstream.destination, digest, HANDLE, TEMPORARY, ANY, time.time())
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


@pytest.fixture(scope="module")
def listing(upstream: Recording) -> RequestHead:
    """One good request to spoil."""
    head, _ = recorded(upstream, client(upstream, "s3").list_objects_v2, Bucket="b", Prefix="p")
    return head


def with_header(head: RequestHead, name: str, value: str) -> RequestHead:
    assert head.get(name) is not None and head.get(name) != value
    return replace(head, headers=tuple((n, value if n == name else v) for n, v in head.headers))


def said(head: RequestHead, old: str, new: str) -> RequestHead:
    """With one word of its Authorization header changed."""
    value = head.get("authorization") or ""
    assert old in value
    return with_header(head, "authorization", value.replace(old, new))


def plus(head: RequestHead, *headers: tuple[str, str]) -> RequestHead:
    return replace(head, headers=(*head.headers, *headers))


SPOILT: list[Any] = [
    pytest.param(lambda h: replace(h, method="DELETE"), Reason.SIGNATURE_REFUSED, id="method"),
    pytest.param(
        lambda h: replace(h, target=h.target.replace("/b?", "/c?")), Reason.SIGNATURE_REFUSED, id="path"
    ),
    pytest.param(lambda h: replace(h, target=h.target + "&a=b"), Reason.SIGNATURE_REFUSED, id="query"),
    pytest.param(lambda h: replace(h, target=h.target + "#f"), Reason.PATH_FORM_REFUSED, id="fragment"),
    pytest.param(
        lambda h: replace(h, target=h.target + "\t"), Reason.PATH_FORM_REFUSED, id="stripped by urlsplit"
    ),
    pytest.param(
        lambda h: with_header(h, "host", "localhost:1"), Reason.SIGNATURE_REFUSED, id="signed header"
    ),
    pytest.param(
        lambda h: with_header(h, "x-amz-content-sha256", "0" * 64), Reason.SIGNATURE_REFUSED, id="body hash"
    ),
    pytest.param(
        lambda h: with_header(h, "x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
        Reason.SIGNATURE_REFUSED,
        id="unsigned",
    ),
    pytest.param(
        lambda h: with_header(h, "x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
        Reason.PLANE_CANNOT,
        id="signed chunks",
    ),
    pytest.param(
        lambda h: with_header(h, "x-amz-content-sha256", "nonsense"),
        Reason.HEADER_FORM_REFUSED,
        id="unknown payload",
    ),
    pytest.param(
        lambda h: with_header(h, "x-amz-date", "20200101T000000Z"),
        Reason.HEADER_FORM_REFUSED,
        id="date of another day",
    ),
    pytest.param(
        lambda h: with_header(h, "x-amz-date", (h.get("x-amz-date") or "")[:9] + "000000Z"),
        Reason.SIGNATURE_REFUSED,
        id="time",
    ),
    pytest.param(
        lambda h: with_header(h, "x-amz-date", "²0200101T000000Z"), Reason.HEADER_FORM_REFUSED, id="digits"
    ),
    pytest.param(lambda h: said(h, "eu-central-1", "us-east-1"), Reason.SIGNATURE_REFUSED, id="region"),
    pytest.param(lambda h: said(h, "/s3/", "/sqs/"), Reason.SIGNATURE_REFUSED, id="service"),
    pytest.param(
        lambda h: said(h, "Credential=CCHA", "Credential=AKIA"), Reason.SIGNATURE_REFUSED, id="key id"
    ),
    pytest.param(lambda h: said(h, "aws4_request", "aws4_requesT"), Reason.HEADER_FORM_REFUSED, id="scope"),
    pytest.param(lambda h: said(h, "host;", "host;host;"), Reason.HEADER_FORM_REFUSED, id="name twice"),
    pytest.param(lambda h: said(h, "host;", ""), Reason.HEADER_FORM_REFUSED, id="host unsigned"),
    pytest.param(
        lambda h: said(h, ";x-amz-security-token", ""), Reason.HEADER_FORM_REFUSED, id="token unsigned"
    ),
    pytest.param(
        lambda h: said(h, ";x-amz-content-sha256", ""), Reason.HEADER_FORM_REFUSED, id="hash unsigned"
    ),
    pytest.param(
        lambda h: said(h, ";x-amz-date", ";x-amz-date;z"), Reason.HEADER_FORM_REFUSED, id="absent header"
    ),
    pytest.param(
        lambda h: said(h, ", Signature=", ", Signature=0, Signature="), Reason.HEADER_FORM_REFUSED, id="twice"
    ),
    pytest.param(
        lambda h: said(h, ", Signature=", ", More=0, Signature="),
        Reason.HEADER_FORM_REFUSED,
        id="a field more",
    ),
    pytest.param(
        lambda h: with_header(h, "authorization", (h.get("authorization") or "")[:-64] + "0" * 64),
        Reason.SIGNATURE_REFUSED,
        id="signature",
    ),
    pytest.param(
        lambda h: with_header(h, "authorization", (h.get("authorization") or "").upper()),
        Reason.HEADER_FORM_REFUSED,
        id="upper case",
    ),
    pytest.param(
        lambda h: said(h, "AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), Reason.PLANE_CANNOT, id="SigV4A"
    ),
    pytest.param(lambda h: with_header(h, "authorization", "AWS AKIA:sig"), Reason.PLANE_CANNOT, id="SigV2"),
    pytest.param(
        lambda h: with_header(h, "authorization", "Bearer x"), Reason.HANDLE_MISPLACED, id="not AWS"
    ),
    pytest.param(lambda h: replace(h, headers=h.headers[:1]), Reason.HANDLE_MISSING, id="no signature"),
    pytest.param(
        lambda h: plus(h, ("authorization", "Bearer x")), Reason.HEADER_FORM_REFUSED, id="two signatures"
    ),
    pytest.param(
        lambda h: plus(h, ("x-amz-date", "20200101T000000Z")), Reason.HEADER_FORM_REFUSED, id="two dates"
    ),
    pytest.param(lambda h: plus(h, ("host", "localhost")), Reason.HEADER_FORM_REFUSED, id="two hosts"),
    pytest.param(
        lambda h: plus(h, ("x-amz-security-token", OTHER)), Reason.HEADER_FORM_REFUSED, id="two tokens"
    ),
    pytest.param(
        lambda h: plus(h, ("x-amz-acl", "public-read")), Reason.HEADER_FORM_REFUSED, id="unsigned x-amz-"
    ),
    pytest.param(lambda h: plus(h, ("x-amz-s3session-token", "t")), Reason.PLANE_CANNOT, id="S3 Express"),
    pytest.param(lambda h: plus(h, ("x-note", OTHER)), Reason.HANDLE_MISPLACED, id="second handle"),
    pytest.param(
        lambda h: with_header(h, "x-amz-security-token", OTHER), Reason.HANDLE_MISPLACED, id="other token"
    ),
    pytest.param(
        lambda h: with_header(h, "x-amz-security-token", "é"), Reason.HEADER_FORM_REFUSED, id="odd token"
    ),
]


@pytest.mark.parametrize(("spoil", "reason"), SPOILT)
def test_a_request_changed_after_it_was_signed_is_refused(
    upstream: Recording, listing: RequestHead, spoil: Callable[[RequestHead], RequestHead], reason: Reason
) -> None:
    """Method, path, query, headers, date, scope, token, signature: every change is refused."""
    assert isinstance(run(upstream, listing), Edits)
    assert refused(run(upstream, spoil(listing))) is reason


def test_another_handles_signature_is_refused(upstream: Recording) -> None:
    """Signed throughout with a handle other than the one that was checked."""
    head, _ = recorded(upstream, client(upstream, "s3", OTHER).list_buckets)
    assert refused(run(upstream, head)) is Reason.HANDLE_MISPLACED
    assert refused(run(upstream, head, handle=None)) is Reason.HANDLE_MISSING


@pytest.mark.parametrize(("seconds", "accepted"), [(-902, False), (-890, True), (890, True), (902, False)])
def test_a_signature_lives_fifteen_minutes(
    upstream: Recording, listing: RequestHead, seconds: int, accepted: bool
) -> None:
    """Either way of our clock, as with AWS."""
    signed_at = timegm(time.strptime(listing.get("x-amz-date") or "", "%Y%m%dT%H%M%SZ"))
    result = run(upstream, listing, now=signed_at + seconds)
    assert isinstance(result, Edits) if accepted else refused(result) is Reason.SIGNATURE_REFUSED


@pytest.mark.parametrize(
    ("allowed", "accepted"),
    [
        (SigV4Injection(frozenset({"s3"}), frozenset({"eu-central-1"})), True),
        (SigV4Injection(services=frozenset({"sqs"})), False),
        (SigV4Injection(regions=frozenset({"us-east-1"})), False),
    ],
)
def test_services_and_regions_are_the_credentials(
    upstream: Recording, listing: RequestHead, allowed: SigV4Injection, accepted: bool
) -> None:
    """A key for one service signs for no other."""
    result = run(upstream, listing, allowed=allowed)
    assert isinstance(result, Edits) if accepted else refused(result) is Reason.HANDLE_WRONG_HOST


def test_an_unsigned_payload_needs_tls(upstream: Recording) -> None:
    """Over plain HTTP nothing would protect the body."""
    head, _ = recorded(upstream, client(upstream, "s3").put_object, Bucket="b", Key="k", Body=b"x")
    plain = replace(upstream.destination, scheme="http")
    result = resign(head, plain, None, HANDLE, TEMPORARY, ANY, time.time())
    assert refused(result) is Reason.PLAIN_HTTP_REFUSED


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


@settings(max_examples=300)
@given(data=st.data())
def test_no_text_makes_it_raise_or_sign(
    upstream: Recording, listing: RequestHead, data: st.DataObject
) -> None:
    """Any one place of a good request replaced by any text: a refusal, never an exception or a signature."""
    at = data.draw(st.integers(0, len(listing.headers)))
    if at == len(listing.headers):
        old = listing.target
    else:
        old = listing.headers[at][1]
    start = data.draw(st.integers(0, len(old)))
    end = data.draw(st.integers(start, len(old)))
    text = st.text(st.characters(min_codepoint=0, max_codepoint=0xFF), max_size=12)
    new = (
        old[:start]
        + data.draw(text | st.sampled_from(["%", "X-Amz-Signature=", ";", "²", "/", "="]))
        + old[end:]
    )
    if at == len(listing.headers):
        spoilt = replace(listing, target=new)
    else:
        name = listing.headers[at][0]
        spoilt = replace(listing, headers=(*listing.headers[:at], (name, new), *listing.headers[at + 1 :]))
    result = run(upstream, spoilt)
    if isinstance(result, Deny):
        refused(result)
        return
    # What the signature does not cover may change, and what canonical form makes equal stays signed.
    check(apply(spoilt, result), b"", TEMPORARY, time.time())


def test_the_stand_in_looks_like_a_key_pair_and_follows_from_the_handle() -> None:
    """Twenty and forty characters, as SDKs that check expect; another handle, another pair."""
    key_id, key = stand_in(HANDLE)
    assert len(key_id) == 20 and key_id.isalnum() and key_id.isupper() and len(key) == 40
    assert stand_in(HANDLE) == (key_id, key) != stand_in(OTHER)
