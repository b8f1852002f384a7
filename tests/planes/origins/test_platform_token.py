"""What a platform's token proves, and all the tokens that prove nothing."""

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.planes.origins.platform_keys import KeyFile, read_jwks
from coatcheck.planes.origins.platform_token import PlatformTokens
from tests.planes.platform import AUDIENCE, ISSUER, Platform

ORIGIN = Origin(OriginClass.TOKEN, f"{ISSUER}|pod-a")


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(tmp_path / "jwks.json")


@pytest.fixture
def tokens(platform: Platform) -> PlatformTokens:
    return PlatformTokens(KeyFile(platform.file), ISSUER, AUDIENCE)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_genuine_token_proves_its_pod(platform: Platform, tokens: PlatformTokens, algorithm: str) -> None:
    """Each accepted algorithm, first verified and then from the cache, until it expires."""
    token = platform.token(algorithm=algorithm)
    now = time.time()
    proof = tokens.proof(token, now)
    assert proof is not None
    assert proof.origin == ORIGIN
    assert tokens.proof(token, now) is proof
    assert tokens.proof(token, proof.expires_at - 1) is not None
    assert tokens.proof(token, proof.expires_at) is None
    assert tokens.proof(token, proof.expires_at) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": ["other"]},
        {"aud": [AUDIENCE, "other"]},
        {"aud": None},
        {"iss": "https://other.example"},
        {"iss": None},
        {"exp": 1},
        {"exp": None},
        {"exp": "9999999999"},
        {"exp": float("inf")},
        {"exp": True},
        pytest.param({"nbf": int(time.time()) + 3600}, id="not yet"),
        {"kubernetes.io": None},
        {"kubernetes.io": {"namespace": "agents"}},
        {"kubernetes.io": "pod-a"},
        {"uid": ""},
        {"uid": "a|b"},
        {"uid": 7},
        {"uid": "x" * 65},
    ],
    ids=str,
)
def test_a_token_that_says_something_else_proves_nothing(
    platform: Platform, tokens: PlatformTokens, changed: dict[str, Any]
) -> None:
    """Another audience, one more audience, another issuer, no or wrong times, no pod."""
    assert tokens.proof(platform.token(**changed), time.time()) is None


def test_a_forged_token_proves_nothing(platform: Platform, tokens: PlatformTokens, tmp_path: Path) -> None:
    """Signed by another key of the same name, with `none`, or with the public key as an HMAC secret."""
    forged = Platform(tmp_path / "forger.json").token()
    claims = jwt.decode(forged, options={"verify_signature": False})
    public = platform.keys["RS256"].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def encoded(part: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    unsigned = f"{encoded({'alg': 'none', 'kid': 'ES256'})}.{encoded(claims)}."
    signed = f"{encoded({'alg': 'HS256', 'kid': 'RS256'})}.{encoded(claims)}"
    mac = hmac.digest(pem, signed.encode(), hashlib.sha256)
    confused = f"{signed}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
    genuine = platform.token()
    head, body, signature = genuine.split(".")
    tampered = f"{head}.{encoded(claims | {'aud': [AUDIENCE]})}.{signature}"
    for token in (forged, unsigned, confused, tampered, f"{head}.{body}.", "a.b.c", "x" * 9000, ""):
        assert tokens.proof(token, time.time()) is None
    assert tokens.proof(genuine, time.time()) is not None


def test_a_key_that_is_gone_takes_its_tokens_with_it(platform: Platform, tokens: PlatformTokens) -> None:
    """Verified and cached a moment ago, refused once the issuer's keys have changed; then again accepted."""
    token = platform.token()
    assert tokens.proof(token, time.time()) is not None
    platform.publish("RS256")
    assert tokens.proof(token, time.time()) is None
    platform.publish("RS256", "ES256")
    assert tokens.proof(token, time.time()) is not None


def test_a_file_that_cannot_be_read_takes_all(platform: Platform, tokens: PlatformTokens) -> None:
    """Broken, gone, or writable by anybody: no token counts."""
    token = platform.token()
    platform.write({"keys": []})
    assert tokens.proof(token, time.time()) is None
    platform.publish("ES256")
    platform.file.chmod(0o666)
    assert tokens.proof(token, time.time()) is None
    platform.file.unlink()
    assert tokens.proof(token, time.time()) is None
    platform.publish("ES256")
    assert tokens.proof(token, time.time()) is not None


def test_the_cache_is_bounded(
    platform: Platform, tokens: PlatformTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that makes the platform sign many tokens gets no memory of ours for it."""
    monkeypatch.setattr("coatcheck.planes.origins.platform_token.CACHED", 3)
    for number in range(5):
        assert tokens.proof(platform.token(f"pod-{number}"), time.time()) is not None
    assert len(tokens.proofs) == 3


def jwk(**changed: Any) -> dict[str, Any]:
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    made: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(small, as_dict=True)
    return made | {"kid": "k"} | changed


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "not a JWKS"),
        ({"keys": {}}, "not a JWKS"),
        ({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "k"}]}, "no RS256"),
        ({"keys": [{"kty": "EC", "crv": "P-384", "kid": "k"}]}, "no RS256"),
        ({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "x": "AA", "y": "AA"}]}, "cannot be read"),
        ({"keys": [jwk(use="enc")]}, "no RS256"),
        ({"keys": [jwk(alg="RS512")]}, "no RS256"),
        ({"keys": [jwk(kid=None)]}, "kid"),
        ({"keys": [jwk()]}, "2048"),
        ({"keys": [{"kty": "oct"}] * 17}, "1 to 16"),
    ],
)
def test_keys_that_are_not_to_be_trusted_are_refused(tmp_path: Path, document: object, why: str) -> None:
    """The error says what is wrong with the file."""
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(document))
    file.chmod(0o644)
    with pytest.raises(ValueError, match=why):
        read_jwks(file)


def test_two_keys_of_one_name_are_refused(platform: Platform) -> None:
    """Which of them verifies would be a matter of their order."""
    platform.publish("ES256", "ES256")
    with pytest.raises(ValueError, match="all different"):
        read_jwks(platform.file)
