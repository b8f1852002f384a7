"""Signed bundles for tests, and the keys that sign them."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coatcheck.policy.bundle.bundle import build, sign

YAML = b"""version: 1
owner: tests
rules:
  - name: models
    hosts: [api.openai.com]
    methods: [GET]
    paths: [/v1/models]
"""
CREATED = "2026-11-21T20:00:00Z"


def unsigned(version: int = 1, yaml: bytes = YAML) -> bytes:
    """A bundle with policy `default`."""
    return build({"default": yaml}, version=version, owner="tests", created=CREATED)


def signed(key: Ed25519PrivateKey, version: int = 1, yaml: bytes = YAML) -> bytes:
    return sign(unsigned(version, yaml), key)


def pem(*keys: Ed25519PrivateKey) -> bytes:
    """The public halves, as a trust root holds them."""
    return b"".join(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in keys
    )


def put(path: Path, content: bytes) -> Path:
    """Write a file whose mode is the same whatever the umask is; always seen as changed."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o644)
    return path
