"""The key that signs checkpoints."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coatcheck.platform.private_files import PrivateFileError
from coatcheck.telemetry.audit.checkpoint import (
    SINK_QUEUE,
    CheckpointSigner,
    CheckpointSink,
    load_public_key,
    signature_holds,
    statement,
)


def test_the_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    """The first start makes it (0600), later ones read it, and the .pub file verifies what it signed."""
    path = tmp_path / "audit-key.pem"
    first, again = CheckpointSigner.load_or_create(path), CheckpointSigner.load_or_create(path)
    assert first.key_id == again.key_id and path.stat().st_mode & 0o777 == 0o600
    public = load_public_key(tmp_path / "audit-key.pem.pub")
    signature = again.sign("log", 7, "ab", 1.5)
    assert signature_holds(public, signature, statement("log", 7, "ab", 1.5))
    assert not signature_holds(public, signature, statement("log", 8, "ab", 1.5))
    assert not signature_holds(public, "not base64", statement("log", 7, "ab", 1.5))


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """A signature proves nothing under a key that others hold."""
    path = tmp_path / "audit-key.pem"
    CheckpointSigner.load_or_create(path)
    path.chmod(0o644)
    with pytest.raises(PrivateFileError, match="open to other users"):
        CheckpointSigner.load_or_create(path)


def test_another_kind_of_public_key_is_refused(tmp_path: Path) -> None:
    """The message says which file is wanted."""
    pem = generate_private_key(SECP256R1()).public_key()
    (tmp_path / "key.pub").write_bytes(pem.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ValueError, match="Ed25519"):
        load_public_key(tmp_path / "key.pub")


def test_a_dead_sink_holds_a_bounded_queue(tmp_path: Path) -> None:
    """Checkpoints beyond the queue's bound are dropped and counted; offering never blocks."""
    sink = CheckpointSink(tmp_path / "missing" / "checkpoints.jsonl")
    for _ in range(SINK_QUEUE * 3):
        sink.offer(b"{}\n")
    sink.close()
    assert sink.failures == SINK_QUEUE * 3
