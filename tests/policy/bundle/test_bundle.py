"""Bundles as their format is, and as somebody hostile would write them."""

import base64
import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.policy.bundle.bundle import (
    MAGIC,
    MAX_BUNDLE_BYTES,
    MAX_SIGNATURES,
    build,
    decode,
    sign,
    verified,
)
from coatcheck.policy.file.problem import PolicyError
from coatcheck.policy.file.reading import MAX_BYTES
from coatcheck.telemetry.audit.checkpoint import key_id
from tests.policy.bundle.bundles import CREATED, YAML, signed, unsigned

KEY = Ed25519PrivateKey.from_private_bytes(b"signer of bundles in these tests")
OTHER = Ed25519PrivateKey.from_private_bytes(b"somebody else, whom nobody trust")
TRUSTED = {key_id(KEY.public_key()): KEY.public_key()}
SIGNED = signed(KEY)


def forged(body: bytes) -> bytes:
    """A bundle of whatever second line, with the trusted key's signature: a signer who is careless."""
    what = MAGIC + body + b"\n"
    line = f"signature {key_id(KEY.public_key())} {base64.b64encode(KEY.sign(what)).decode()}\n"
    return what + line.encode()


def body_with(**changes: object) -> bytes:
    body = json.loads(SIGNED.splitlines()[1]) | changes
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def entry(yaml: bytes = YAML, **changes: object) -> dict[str, object]:
    digest = hashlib.sha256(yaml).hexdigest()
    return {"name": "default", "sha256": digest, "yaml": yaml.decode()} | changes


def test_a_bundle_gives_back_what_was_put_in() -> None:
    """Byte for byte: the policies' hashes are those of the files that were reviewed."""
    bundle, key = verified(SIGNED, TRUSTED)
    assert (bundle.version, bundle.owner, bundle.created, key) == (1, "tests", CREATED, *TRUSTED)
    assert bundle.files == {"default": YAML}
    assert bundle.policies()["default"].sha256 == hashlib.sha256(YAML).hexdigest()


def test_the_same_input_gives_the_same_bytes() -> None:
    """Whatever the order of files and of signatures: a release can be built again and compared."""
    files = {"b": YAML, "a": YAML + b"# \xc3\xa4\n"}
    one = build(files, version=3, owner="tests", created=CREATED)
    assert one == build(dict(reversed(files.items())), version=3, owner="tests", created=CREATED)
    twice = sign(sign(one, KEY), OTHER)
    assert twice == sign(sign(one, OTHER), KEY) == sign(twice, KEY)
    assert decode(one).digest == decode(sign(one, KEY)).digest


def test_a_bad_policy_gets_into_no_bundle() -> None:
    """With its file and line, as `policy check` says it."""
    with pytest.raises(PolicyError, match=r"bad\.yaml:1:1: error: the file is empty"):
        build({"bad": b"", "default": YAML}, version=1, owner="tests", created=CREATED)
    with pytest.raises(PolicyError, match="not UTF-8"):
        build({"bad": b"\xff"}, version=1, owner="tests", created=CREATED)


@pytest.mark.parametrize("cut", range(0, len(SIGNED), 7))
def test_what_is_cut_short_is_refused(cut: int) -> None:
    """At whichever byte."""
    with pytest.raises(PolicyError):
        verified(SIGNED[:cut], TRUSTED)


@given(st.integers(0, len(SIGNED) - 1), st.integers(1, 255))
def test_what_was_altered_is_refused(place: int, change: int) -> None:
    """Any byte, the signature's included. The last bits of Base64 say nothing: then it is the same bundle."""
    altered = bytearray(SIGNED)
    altered[place] ^= change
    try:
        bundle, _ = verified(bytes(altered), TRUSTED)
    except PolicyError:
        return
    assert bundle == decode(SIGNED)


def test_only_trusted_signatures_count() -> None:
    """A stranger's bundle, one without any signature, and a stranger's signature under a trusted name."""
    mine, theirs = (key_id(key.public_key()).encode() for key in (KEY, OTHER))
    for data, why in (
        (signed(OTHER), "signed by .*, and trusted are"),
        (unsigned(), "not signed"),
        (signed(OTHER).replace(theirs, mine), "changed after"),
        (SIGNED.replace(b'"version":1', b'"version":2'), "changed after"),
    ):
        with pytest.raises(PolicyError, match=why):
            verified(data, TRUSTED)
    both = sign(signed(OTHER), KEY)
    assert verified(both, TRUSTED)[1] in TRUSTED
    assert verified(both, {key_id(OTHER.public_key()): OTHER.public_key()})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"NaN",
        b"[" * 200_000,
        b"9" * 5000,
        b'{"version":1,"version":1}',
        SIGNED.splitlines()[1].replace(b'"version":1', b'"version": 1'),
        SIGNED.splitlines()[1].replace(b'"version":1', b'"version":1,"version":1'),
        body_with(version=True),
        body_with(version=0),
        body_with(version=1.0),
        body_with(version="1"),
        body_with(version=2**53),
        body_with(owner=""),
        body_with(owner="a\nb"),
        body_with(owner=7),
        body_with(created="yesterday"),
        body_with(created=None),
        body_with(more=1),
        body_with(policies=[]),
        body_with(policies={}),
        body_with(policies=[entry(), entry()]),
        body_with(policies=[entry(name="z"), entry(name="a")]),
        body_with(policies=[entry(name="../default")]),
        body_with(policies=[entry(name="/etc/passwd")]),
        body_with(policies=[entry(name="")]),
        body_with(policies=[entry(name=1)]),
        body_with(policies=[entry(sha256="0" * 64)]),
        body_with(policies=[entry() | {"yaml": "\ud800"}]),
        body_with(policies=[entry() | {"yaml": 1}]),
        body_with(policies=[entry(link="/etc/passwd")]),
        body_with(policies=[entry(b"#" * (MAX_BYTES + 1))]),
        body_with(policies=[entry(name=f"p{n:04}") for n in range(1001)]),
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_what_a_signer_vouches_for_is_read_in_one_way_or_not_at_all(body: bytes) -> None:
    """A trusted signature does not make a second form of a bundle, nor a name that is a path."""
    with pytest.raises(PolicyError, match="second line is not what"):
        verified(forged(body), TRUSTED)


def test_a_policy_in_a_signed_bundle_is_still_checked() -> None:
    """A signature says who, not that it is right."""
    bundle, _ = verified(forged(body_with(policies=[entry(b"version: 2\nowner: tests\n")])), TRUSTED)
    with pytest.raises(PolicyError, match=r"default\.yaml:1:10: error"):
        bundle.policies()


@pytest.mark.parametrize(
    "tail",
    [
        b"\n",
        b"signature",
        SIGNED.splitlines(keepends=True)[2],
        SIGNED.splitlines(keepends=True)[2].rstrip(b"\n"),
        b"signature 0000000000000000 " + b"A" * 86 + b"==\r\n",
        b"PK\x03\x04",
        b"signature 0000000000000000 " + b"A" * 86 + b"==\n" + b"x" * 2000,
    ],
)
def test_nothing_else_stands_behind_the_policies(tail: bytes) -> None:
    """A second archive that another program would read, the same key twice, half a line."""
    with pytest.raises(PolicyError, match="not followed by a list of signatures"):
        verified(SIGNED + tail, TRUSTED)


def test_a_bundle_has_a_largest_size_and_a_largest_number_of_signatures() -> None:
    """Looked at before anything is parsed or verified."""
    with pytest.raises(PolicyError, match="larger than"):
        verified(MAGIC + b"x" * (MAX_BUNDLE_BYTES + 2000), TRUSTED)
    with pytest.raises(PolicyError, match="would be larger"):
        build(
            {f"p{n}": YAML + b"#" * 1_000_000 for n in range(17)}, version=1, owner="tests", created=CREATED
        )
    data = unsigned()
    for _ in range(MAX_SIGNATURES):
        data = sign(data, Ed25519PrivateKey.generate())
    with pytest.raises(PolicyError, match="more than 8 signatures"):
        sign(data, KEY)


@pytest.mark.parametrize("data", [b"", b"\n", YAML, b"PK\x03\x04", b"coatcheck policy bundle v2\n{}\n"])
def test_what_is_no_bundle_is_told_so(data: bytes) -> None:
    """A policy file, an archive, a later format."""
    with pytest.raises(PolicyError, match="not a policy bundle"):
        decode(data)
