"""A JWKS is read strictly: few keys, asymmetric ones only, each with a name. More in test_platform_token."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from coatcheck.platform.jwks import JWKS_BYTES, MAX_KEYS, parse_jwks
from tests.planes.platform import Platform


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    return Platform(tmp_path_factory.mktemp("keys") / "jwks.json")


def test_each_key_is_for_the_algorithm_that_it_is_of(platform: Platform) -> None:
    """A shared secret, a key for encryption and a curve that we do not take are left out."""
    keys = parse_jwks(platform.file.read_bytes())
    assert {kid: key.algorithm_name for kid, key in keys.items()} == {
        name: name for name in ("RS256", "ES256", "EdDSA")
    }
    listed = json.loads(platform.file.read_bytes())["keys"]
    others = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "mac"},
        listed[0] | {"use": "enc", "kid": "enc"},
        listed[1] | {"crv": "P-384", "kid": "p384"},
        listed[0] | {"alg": "HS256", "kid": "odd"},
    ]
    assert parse_jwks(json.dumps({"keys": [*others, listed[1]]}).encode()).keys() == {"ES256"}
    with pytest.raises(ValueError, match="no RS256, ES256 or EdDSA key"):
        parse_jwks(json.dumps({"keys": others}).encode())


def test_a_document_beyond_all_size_is_refused(platform: Platform) -> None:
    """Before it is parsed."""
    with pytest.raises(ValueError, match="larger than"):
        parse_jwks(b" " * (JWKS_BYTES + 1))
    with pytest.raises(ValueError, match=f"1 to {MAX_KEYS} keys"):
        parse_jwks(json.dumps({"keys": [platform.jwk("ES256")] * (MAX_KEYS + 1)}).encode())


@pytest.mark.parametrize("kind", ["RS256", "ES256", "EdDSA"])
def test_a_published_private_key_is_refused(platform: Platform, kind: str) -> None:
    """Anyone who reads it can sign; and looking at its primes takes seconds of the processor's time."""
    private = jwk_of(platform.keys[kind])
    with pytest.raises(ValueError, match="private"):
        parse_jwks(json.dumps({"keys": [platform.jwk("ES256") | {"kid": "sound"}, private]}).encode())


def jwk_of(key: object) -> dict[str, object]:
    """With everything that signs."""
    match key:
        case rsa.RSAPrivateKey():
            made = RSAAlgorithm.to_jwk(key, as_dict=True)
        case ec.EllipticCurvePrivateKey():
            made = ECAlgorithm(ECAlgorithm.SHA256).to_jwk(key, as_dict=True)
        case ed25519.Ed25519PrivateKey():
            made = OKPAlgorithm.to_jwk(key, as_dict=True)
        case _:
            raise TypeError(key)
    return made | {"kid": "private"}
