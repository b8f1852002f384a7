"""What was changed after it was signed, or signed for something else, is refused and never signed again."""

import time
from calendar import timegm
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.sigv4 import SigV4Injection
from coatcheck.sigv4.resign import resign
from tests.sigv4.recording_server import Recording
from tests.sigv4.signing import (
    HANDLE,
    OTHER,
    TEMPORARY,
    apply,
    check,
    client,
    recorded,
    refused,
    run,
)


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
    result = resign(head, plain, None, HANDLE, TEMPORARY, time.time())
    assert refused(result) is Reason.PLAIN_HTTP_REFUSED


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
