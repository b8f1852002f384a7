"""The key that signs bundles."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from coatcheck.platform.private_files import PrivateFileError
from coatcheck.policy.bundle.signing_key import make_signing_key, read_signing_key
from coatcheck.policy.bundle.trust_root import read_trust_root
from coatcheck.telemetry.audit.checkpoint import key_id


def test_a_new_key_signs_and_its_public_half_is_a_trust_root(tmp_path: Path) -> None:
    """0600 and 0644, and never over one that is there."""
    path = tmp_path / "key.pem"
    public, name = make_signing_key(path)
    assert path.stat().st_mode & 0o777 == 0o600 and public.stat().st_mode & 0o777 == 0o644
    assert key_id(read_signing_key(path).public_key()) == name
    assert read_trust_root(public).keys() == {name}
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        make_signing_key(path)
    path.rename(tmp_path / "elsewhere.pem")
    with pytest.raises(FileExistsError):
        make_signing_key(path)
    assert (tmp_path / "elsewhere.pem").read_bytes() == before and not path.exists()


@pytest.mark.parametrize("kind", ["words", "elliptic", "with a passphrase"])
def test_what_is_no_such_key_is_refused_without_quoting_it(tmp_path: Path, kind: str) -> None:
    """An error may stand in a build's log."""
    encryption = BestAvailableEncryption(b"sesame") if kind == "with a passphrase" else NoEncryption()
    key = generate_private_key(SECP256R1()) if kind == "elliptic" else Ed25519PrivateKey.generate()
    content = (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption) if kind != "words" else b"hello"
    )
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(PrivateFileError, match="no Ed25519 private key") as raised:
        read_signing_key(path)
    assert raised.value.__cause__ is None and content.splitlines()[0].decode() not in str(raised.value)


def test_a_key_that_others_may_read_is_burnt(tmp_path: Path) -> None:
    """As everywhere: keys at rest are 0600."""
    path = tmp_path / "key.pem"
    make_signing_key(path)
    path.chmod(0o640)
    with pytest.raises(PrivateFileError, match="open to other users"):
        read_signing_key(path)
