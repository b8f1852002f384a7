"""The private key that signs bundles: a PEM file that only its owner can read."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from coatcheck.platform.private_files import PrivateFileError, read_private, write_atomically
from coatcheck.telemetry.audit.checkpoint import key_id


def make_signing_key(path: Path) -> tuple[Path, str]:
    """A new key in `path` (0600). Where its public half is (`path.pub`), and its id.

    FileExistsError where one of them is already: a key that is lost cannot sign the next version.
    """
    if not path.name:
        raise IsADirectoryError(21, "this is a directory, not a file for a key", str(path))
    key = Ed25519PrivateKey.generate()
    public = path.with_name(path.name + ".pub")
    if path.exists(follow_symlinks=False):
        raise FileExistsError(17, "there is a key already", str(path))
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_atomically(public, pem, mode=0o644)
    write_atomically(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return public, key_id(key.public_key())


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """The Ed25519 key in `path`. PrivateFileError when others may read it, or when it is something else."""
    content = read_private(path)
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # their texts could quote the file
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise PrivateFileError(
            f"{path} holds no Ed25519 private key without a passphrase", "make one: coatcheck policy key FILE"
        ) from None
    return key
