"""A platform that signs tokens about its pods, as a Kubernetes API server does."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://kubernetes.default.svc"
AUDIENCE = "coatcheck"

type Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class Platform:
    """One key of each kind that is accepted; `ES256` signs unless a test says otherwise."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.keys: dict[str, Key] = {
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }
        self.publish(*self.keys)

    def publish(self, *algorithms: str) -> None:
        self.write({"keys": [self.jwk(name) for name in algorithms]})

    def write(self, document: object) -> None:
        made = self.file.with_suffix(".new")
        made.write_text(json.dumps(document))
        made.chmod(0o644)
        made.replace(self.file)

    def jwk(self, algorithm: str) -> dict[str, Any]:
        key = self.keys[algorithm].public_key()
        if isinstance(key, rsa.RSAPublicKey):
            made = RSAAlgorithm.to_jwk(key, as_dict=True)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            made = ECAlgorithm(ECAlgorithm.SHA256).to_jwk(key, as_dict=True)
        else:
            made = OKPAlgorithm.to_jwk(key, as_dict=True)
        return made | {"kid": algorithm, "use": "sig"}

    def token(self, uid: object = "pod-a", algorithm: str = "ES256", **changed: Any) -> str:
        """A projected service account token; `changed` claims, or None to leave one out."""
        now = int(time.time())
        claims = {
            "aud": [AUDIENCE],
            "iss": ISSUER,
            "iat": now,
            "nbf": now,
            "exp": now + 600,
            "sub": "system:serviceaccount:agents:default",
            "kubernetes.io": {"namespace": "agents", "pod": {"name": "agent-0", "uid": uid}},
        } | changed
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, self.keys[algorithm], algorithm, headers={"kid": algorithm})
