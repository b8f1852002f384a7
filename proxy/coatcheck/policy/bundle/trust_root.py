"""Whose bundles count: Ed25519 public keys in one PEM file, several while one is replaced."""

import re
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from coatcheck.policy.bundle.bundle import refused
from coatcheck.policy.file.loading import read_file
from coatcheck.telemetry.audit.checkpoint import key_id

MAX_KEYS: Final = 16
MAX_TRUST_BYTES: Final = 64 * 1024

_BLOCK = re.compile(rb"-----BEGIN PUBLIC KEY-----\n[A-Za-z0-9+/=\n]{1,1000}-----END PUBLIC KEY-----")


def read_trust_root(path: Path) -> dict[str, Ed25519PublicKey]:
    """The keys in the file at `path`, by id. PolicyError when it cannot be read, or when there is anything
    else in it but comments (`#`): a key that is passed over would look like one that is trusted."""
    data = read_file(path, MAX_TRUST_BYTES).replace(b"\r\n", b"\n")
    if len(data) > MAX_TRUST_BYTES:
        raise refused(f"{path.name} is not a list of keys", "put Ed25519 public keys (PEM) into it")
    rest = [line.strip() for line in _BLOCK.sub(b"", data).split(b"\n")]
    if any(line and not line.startswith(b"#") for line in rest):
        raise refused(
            f"{path.name} holds something else than public keys",
            "concatenate the .pub files of the signers; lines that begin with # are comments",
        )
    keys: dict[str, Ed25519PublicKey] = {}
    for block in _BLOCK.findall(data):
        try:
            key = load_pem_public_key(block)
        except ValueError:
            key = None
        if not isinstance(key, Ed25519PublicKey):
            raise refused(f"a key in {path.name} is not an Ed25519 public key", "coatcheck policy key FILE")
        keys[key_id(key)] = key
    if not 0 < len(keys) <= MAX_KEYS:
        raise refused(f"{path.name} holds {len(keys)} keys", f"put 1 to {MAX_KEYS} of them there")
    return keys
