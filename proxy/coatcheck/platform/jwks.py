"""A signer's public keys: a JWKS (RFC 7517), read strictly.

The key says which algorithm it is for, never the token (RFC 8725 3.1): no `none`, no HMAC under a public key.
"""

import json
from typing import Final

import jwt

JWKS_BYTES: Final = 65_536
MAX_KEYS: Final = 16
"""A signer has two while it rotates, a large one a few more."""
_ALGORITHMS: Final = {("RSA", "None"): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}


def parse_jwks(content: bytes) -> dict[str, jwt.PyJWK]:
    """The signature keys of a JWKS by key id. ValueError says what is wrong."""
    if len(content) > JWKS_BYTES:
        raise ValueError(f"it is larger than {JWKS_BYTES} bytes")
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_KEYS:
        raise ValueError(f"it is not a JWKS with 1 to {MAX_KEYS} keys")
    keys: dict[str, jwt.PyJWK] = {}
    for entry in listed:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        algorithm = _ALGORITHMS.get((str(entry.get("kty")), str(entry.get("crv"))))
        kid = entry.get("kid")
        if algorithm is None or entry.get("alg", algorithm) != algorithm:
            continue  # another kind of key than we accept, HMAC above all
        if not isinstance(kid, str) or not kid or kid in keys:
            raise ValueError("its keys need a `kid` each, all different")
        if "d" in entry:  # RFC 7518 6: of every kind, the private part
            raise ValueError(f"key {kid!r} is a private key. Anyone who has read it can sign: replace it")
        try:
            key = jwt.PyJWK(entry, algorithm)
        except jwt.PyJWTError as error:
            raise ValueError(f"key {kid!r} cannot be read") from error
        if algorithm == "RS256" and key.key.key_size < 2048:
            raise ValueError(f"key {kid!r} is an RSA key of less than 2048 bits")
        keys[kid] = key
    if not keys:
        raise ValueError("it holds no RS256, ES256 or EdDSA key")
    return keys
