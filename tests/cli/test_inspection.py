"""`coatcheck sandbox inspect`: its words, its exit codes, and --verify for somebody who has the key alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from coatcheck.cli.errors import CommandError
from coatcheck.cli.inspection import inspect
from coatcheck.inspection.statement import StatementRefused, sign
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from tests.inspection.test_statement import made

SIGNER = CheckpointSigner(Ed25519PrivateKey.generate())


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and standard output; what the command's frame would tell is raised."""
    app = typer.Typer()
    app.command("inspect")(inspect)
    app.callback()(lambda: None)
    done = CliRunner().invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A statement that found something, and the public key."""
    statement, key = tmp_path / "statement.json", tmp_path / "key.pub"
    statement.write_text(json.dumps(sign(made(), SIGNER)))
    key.write_bytes(SIGNER.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return statement, key


def test_verify_shows_what_was_found_and_exits_with_1(files: tuple[Path, Path]) -> None:
    """The answer is no; where it stands is told, and what it is is not."""
    code, out = run("--verify", files[0], "--key", files[1])
    assert code == 1 and "the signature holds" in out
    assert "FOUND openai (page-edge, base64) in guest memory at 4096" in out
    assert "pin: too short" in out and "found: 1 findings in 1.0 MB of sbx_1" in out


@pytest.mark.parametrize(("result", "code"), [("nothing_found", 0), ("incomplete", 1), ("found", 1)])
def test_the_exit_code_is_the_result(
    tmp_path: Path, files: tuple[Path, Path], result: str, code: int
) -> None:
    """Only a search of everything that found nothing is a yes."""
    said: dict[str, Any] = made() | {"result": result, "findings": [], "findings_total": 0}
    files[0].write_text(json.dumps(sign(said, SIGNER)))
    assert run("--verify", files[0], "--key", files[1])[0] == code
    as_json = run("--verify", files[0], "--key", files[1], "--json")
    assert as_json[0] == code and json.loads(as_json[1])["statement"] == said


def test_a_changed_statement_is_refused(files: tuple[Path, Path]) -> None:
    """With words that say what to do next."""
    files[0].write_text(files[0].read_text().replace('"found"', '"nothing_found"'))
    with pytest.raises(StatementRefused) as refused:
        run("--verify", files[0], "--key", files[1])
    assert SIGNER.key_id in refused.value.hint


@pytest.mark.parametrize(
    "arguments", [(), ("sbx_1", "--verify", "x"), ("--verify", "x")], ids=["nothing", "both", "no-key"]
)
def test_wrong_use_is_told(arguments: tuple[str, ...]) -> None:
    """Exit code 2, and what to give."""
    with pytest.raises(CommandError) as refused:
        run(*arguments)
    assert refused.value.exit_code == 2 and refused.value.hint
