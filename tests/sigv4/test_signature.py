"""The signature agrees with the examples in AWS's own documentation; so does the tests' verifier."""

import subprocess
import sys
from calendar import timegm
from hashlib import sha256

import pytest

from coatcheck.decision.message import Destination
from coatcheck.sigv4.covered import ToSign
from coatcheck.sigv4.signature import signature
from tests.sigv4.aws_verifier import Rejected, verify

S3 = Destination("https", "examplebucket.s3.amazonaws.com", 443)
S3_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
DAY = "20130524T000000Z"
NOW = float(timegm((2013, 5, 24, 0, 0, 0)))
EMPTY = sha256(b"").hexdigest()
WELCOME = b"Welcome to Amazon S3."
HOST = ("host", "examplebucket.s3.amazonaws.com")

EXAMPLES = [
    # https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
    pytest.param(
        "GET",
        "/test.txt",
        (HOST, ("range", "bytes=0-9"), ("x-amz-content-sha256", EMPTY), ("x-amz-date", DAY)),
        b"",
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        id="get object",
    ),
    pytest.param(
        "PUT",
        "/test%24file.text",
        (
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            HOST,
            ("x-amz-content-sha256", sha256(WELCOME).hexdigest()),
            ("x-amz-date", DAY),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ),
        WELCOME,
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        id="put object",
    ),
    pytest.param(
        "GET",
        "/?lifecycle",
        (HOST, ("x-amz-content-sha256", EMPTY), ("x-amz-date", DAY)),
        b"",
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        id="bucket lifecycle",
    ),
    pytest.param(
        "GET",
        "/?max-keys=2&prefix=J",
        (HOST, ("x-amz-content-sha256", EMPTY), ("x-amz-date", DAY)),
        b"",
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        id="list objects",
    ),
]


@pytest.mark.parametrize(("method", "target", "headers", "body", "want"), EXAMPLES)
def test_s3s_documented_examples_come_out(
    method: str, target: str, headers: tuple[tuple[str, str], ...], body: bytes, want: str
) -> None:
    """The four header examples of the S3 reference, and our verifier accepts them."""
    payload = dict(headers)["x-amz-content-sha256"]
    what = ToSign("us-east-1", "s3", method, S3, target, headers, payload)
    assert signature(S3_KEY, DAY, what) == want
    names = ";".join(name for name, _ in headers)
    scope = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
    said = f"AWS4-HMAC-SHA256 Credential={scope},SignedHeaders={names},Signature={want}"
    sent = [*headers, ("authorization", said)]
    verify(method, target, sent, body, "AKIAIOSFODNN7EXAMPLE", S3_KEY, "", NOW)
    with pytest.raises(Rejected):
        verify(method, target + "x", sent, body, "AKIAIOSFODNN7EXAMPLE", S3_KEY, "", NOW)


def test_s3s_documented_presigned_url_comes_out() -> None:
    """The query example of the S3 reference."""
    target = (
        "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1"
        "%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    )
    want = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    what = ToSign("us-east-1", "s3", "GET", S3, target, (HOST,), "UNSIGNED-PAYLOAD")
    assert signature(S3_KEY, DAY, what) == want
    signed = f"{target}&X-Amz-Signature={want}"
    verify("GET", signed, [HOST], b"", "AKIAIOSFODNN7EXAMPLE", S3_KEY, "", NOW + 86_000)
    with pytest.raises(Rejected):
        verify("GET", signed, [HOST], b"", "AKIAIOSFODNN7EXAMPLE", S3_KEY, "", NOW + 86_401)


def test_iams_documented_example_comes_out() -> None:
    """`ListUsers` of the general reference: a service that encodes its path twice."""
    headers = (
        ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
        ("host", "iam.amazonaws.com"),
        ("x-amz-date", "20150830T123600Z"),
    )
    target = "/?Action=ListUsers&Version=2010-05-08"
    iam = Destination("https", "iam.amazonaws.com", 443)
    what = ToSign("us-east-1", "iam", "GET", iam, target, headers, EMPTY)
    want = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    assert signature("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830T123600Z", what) == want


@pytest.mark.parametrize(
    ("sent", "canonical"),
    [("/b/a(1),%7e", "/b/a%281%29%2C~"), ("/b?q=a,b&p=%2f:", "/b?p=%2F%3A&q=a%2Cb"), ("/b?acl", "/b?acl=")],
)
def test_odd_but_equal_writings_have_one_signature(sent: str, canonical: str) -> None:
    """curl and others send what they do not encode as AWS does, and sign what AWS will make of it."""
    assert sent != canonical
    first, second = (
        signature(S3_KEY, DAY, ToSign("us-east-1", "s3", "GET", S3, target, (HOST,), EMPTY))
        for target in (sent, canonical)
    )
    assert first == second
    other = ToSign("us-east-1", "s3", "GET", S3, sent + "1", (HOST,), EMPTY)
    assert signature(S3_KEY, DAY, other) != first


def test_botocore_is_imported_by_the_first_policy_that_signs() -> None:
    """Not at the start of a daemon, and not by the first request, which would wait for it."""
    program = (
        "import sys, coatcheck.daemon; before = 'botocore' in sys.modules;"
        "from coatcheck.injectors.sigv4 import SigV4Injection; SigV4Injection().prepare();"
        "print(before, 'botocore.auth' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
