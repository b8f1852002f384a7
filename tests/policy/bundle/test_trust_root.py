"""The file of keys whose bundles count."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from coatcheck.policy.bundle.trust_root import MAX_KEYS, read_trust_root
from coatcheck.policy.file.problem import PolicyError
from coatcheck.telemetry.audit.checkpoint import key_id
from tests.policy.bundle.bundles import pem, put

ONE, TWO = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


def test_several_keys_while_one_is_replaced(tmp_path: Path) -> None:
    """With comments and empty lines between, and with Windows' line ends."""
    content = b"# alice, since 2026\n" + pem(ONE) + b"\n  # bob\n" + pem(TWO)
    for each in (content, content.replace(b"\n", b"\r\n")):
        found = read_trust_root(put(tmp_path / "keys.pem", each))
        assert found.keys() == {key_id(ONE.public_key()), key_id(TWO.public_key())}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"# nobody\n",
        pem(ONE)[:-10],
        pem(ONE) + pem(TWO).replace(b"-----BEGIN", b"----BEGIN"),
        pem(ONE) + b"trailing words",
        pem(ONE).replace(b"\nM", b"\nN"),
        pem(ONE) + ONE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        generate_private_key(SECP256R1())
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        pem(*(Ed25519PrivateKey.generate() for _ in range(MAX_KEYS + 1))),
        b"#" * 100_000,
    ],
    ids=[
        "empty",
        "comment",
        "cut",
        "one damaged",
        "words",
        "damaged",
        "private",
        "other kind",
        "many",
        "large",
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    """A key that is silently passed over looks like one that is trusted."""
    with pytest.raises(PolicyError):
        read_trust_root(put(tmp_path / "keys.pem", content))


def test_a_trust_root_that_anybody_may_write_is_none(tmp_path: Path) -> None:
    """Nor is one that is not there, or that is a link to somewhere else."""
    root = put(tmp_path / "keys.pem", pem(ONE))
    root.chmod(0o666)
    with pytest.raises(PolicyError, match="anyone can write"):
        read_trust_root(root)
    with pytest.raises(PolicyError, match="no such file"):
        read_trust_root(tmp_path / "gone.pem")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link.pem").symlink_to(root)
    with pytest.raises(PolicyError, match="leads out"):
        read_trust_root(tmp_path / "elsewhere/link.pem")
