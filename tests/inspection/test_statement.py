"""The statement: what is signed, and who can check it with what."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coatcheck.inspection.holdings import UNAVAILABLE, Holdings
from coatcheck.inspection.residue import Value
from coatcheck.inspection.scanner import Found, Scanned, Searched
from coatcheck.inspection.statement import StatementRefused, compose, result_of, sign, signed_bytes, verify
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner, statement

SIGNER = CheckpointSigner(Ed25519PrivateKey.generate())
HOLDINGS = Holdings((Value("openai", b"x" * 40),), {"openai": 1}, {"pin": "too short"})
REGION = Searched("guest memory", "memory", 1 << 28, 1 << 20, 1, {})
FOUND = Found("openai", "guest memory", "", 4096, "page-edge", "base64")


def made(scanned: Scanned | None = None, holdings: Holdings = HOLDINGS) -> dict[str, Any]:
    return compose(
        sandbox="sbx_1", sessions=("ses_2", "ses_1"), policies={"default": "ab" * 32}, began_at=1.5,
        ended_at=3.25, paused_seconds=1.1, holdings=holdings, forms=6,
        scanned=scanned or Scanned((FOUND,), 1, (REGION,)),
    )  # fmt: skip


def test_it_says_what_was_searched_and_for_what() -> None:
    """Bytes, regions, credentials checked and not checked with why, time, daemon, sandbox, sessions."""
    said = made()
    assert (said["sandbox"], said["sessions"], said["result"]) == ("sbx_1", ["ses_1", "ses_2"], "found")
    assert (said["bytes_searched"], said["findings_total"]) == (1 << 20, 1)
    assert said["checked"] == {"openai": 1} and said["not_checked"] == {"pin": "too short"}
    assert said["findings"][0]["offset"] == 4096 and said["regions"][0]["bytes"] == 1 << 28
    assert said["began_at_ms"] == 1500 and said["daemon"].startswith("coatcheck ")
    assert any("compressed" in what for what in said["not_searched_for"])


def test_nothing_found_needs_everything_read() -> None:
    """What could not be read, or what we could not know, is no proof."""
    assert result_of(Scanned((), 0, (REGION,)), HOLDINGS) == "nothing_found"
    unread = Searched("r", "process", 1, 1, 1, {"a page cannot be read": 1})
    assert result_of(Scanned((), 0, (REGION, unread)), HOLDINGS) == "incomplete"
    unknown = Holdings((), {}, {"openai": UNAVAILABLE})
    assert result_of(Scanned((), 0, (REGION,)), unknown) == "incomplete"
    assert result_of(Scanned((FOUND,), 1, (unread,)), unknown) == "found"


def test_whoever_has_the_public_key_can_check_it() -> None:
    """And gets the statement that was signed."""
    content = json.dumps(sign(made(), SIGNER), indent=2).encode()
    assert verify(content, [SIGNER.public_key]) == made()


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said["statement"].update(result="nothing_found"),
        lambda said: said["statement"]["findings"].clear(),
        lambda said: said["statement"].update(more=1),
        lambda said: said.update(signature=base64.b64encode(bytes(64)).decode()),
        lambda said: said.update(signature="?"),
    ],
    ids=["result", "findings", "more", "zeros", "garbage"],
)
def test_a_changed_statement_is_refused(change: Any) -> None:
    """Whatever was changed in it."""
    said = sign(made(), SIGNER)
    change(said)
    with pytest.raises(StatementRefused, match="not by this key"):
        verify(json.dumps(said).encode(), [SIGNER.public_key])


def test_another_key_or_another_paper_is_refused() -> None:
    """A checkpoint of the audit log, which the same key signs, is no statement."""
    other = CheckpointSigner(Ed25519PrivateKey.generate())
    content = json.dumps(sign(made(), SIGNER)).encode()
    with pytest.raises(StatementRefused, match="not by this key"):
        verify(content, [other.public_key])
    assert verify(content, [other.public_key, SIGNER.public_key])
    assert not signed_bytes(made()).startswith(statement("log", 1, "0", 1.0)[:20])
    for paper in (
        b"",
        b"{}",
        b"[]",
        b'{"statement": 1, "signature": ""}',
        b'{"statement":{"a":1.5},"signature":""}',
    ):
        with pytest.raises(StatementRefused, match="not a signed statement"):
            verify(paper, [SIGNER.public_key])
    twice = content.replace(b'"result"', b'"result": "nothing_found", "result"', 1)
    with pytest.raises(StatementRefused, match="not a signed statement"):
        verify(twice, [SIGNER.public_key])


@pytest.mark.needs_debian("openssl")
def test_openssl_is_enough_to_check_it(tmp_path: Path) -> None:
    """As docs/inspection.md says; none of our code is needed."""
    (tmp_path / "statement.json").write_text(json.dumps(sign(made(), SIGNER), indent=2))
    pem = SIGNER.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pub").write_bytes(pem)
    text = (Path(__file__).parents[2] / "docs/inspection.md").read_text()
    script = text.partition("```sh\n# openssl\n")[2].partition("```")[0]
    assert "pkeyutl" in script
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Signature Verified Successfully" in done.stdout, done.stderr
    (tmp_path / "statement.json").write_text(
        json.dumps(sign(made(), SIGNER)).replace('"found"', '"nothing_found"')
    )
    assert subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, check=False).returncode
