"""The verifier in docs/ needs none of our code, and comes to the same result as ours."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.audit.record import CHECKPOINT, LOG, TYPES
from coatcheck.telemetry.audit.verify import verify
from tests.telemetry.audit.test_verify import rechained, rotated_log
from tests.telemetry.samples import Written

VERIFIER = Path(__file__).parent.parent / "docs/verify_audit.py"


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def pem(written: Written) -> Path:
    """The public key, as an auditor keeps it."""
    path = written.path.parent.parent / "kept.pub"
    path.write_bytes(written.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def run(*words: object) -> tuple[int, str]:
    """Its exit code and what it said. -I -S: without site-packages there is no `coatcheck` to import."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", VERIFIER, *map(str, words)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def judge(written: Written, *more: object) -> tuple[int, str]:
    """Of the log as it is now, with key and checkpoints. Our own verifier must come to the same."""
    code, said = run("--key", pem(written), "--checkpoints", written.checkpoints, *more, written.path)
    assert code == (0 if verify(written.path, written.key, written.checkpoints).ok else 1), said
    return code, said


def test_an_untouched_log_is_whole(written: Written) -> None:
    """Chain, signatures and outside checkpoints hold, over a restart, too."""
    written.append(5)
    code, said = judge(written)
    last = audit_file.parse(written.lines()[-1])["seq"]
    assert code == 0 and f"whole: records 1 to {last}, signed through" in said


@pytest.mark.parametrize("at", [0, 7, 20, -2], ids=["first", "early", "middle", "last_but_one"])
def test_a_changed_record_shows(written: Written, at: int) -> None:
    """One letter of one record."""
    lines = written.lines()
    lines[at] = (
        lines[at].replace(b'"type":"', b'"typo":"', 1) if at == 0 else lines[at].replace(b"e", b"a", 1)
    )
    written.put(lines)
    assert judge(written)[0] == 1


@pytest.mark.parametrize("cut", [slice(0, -6), slice(3, None)], ids=["end", "beginning"])
def test_what_was_cut_off_shows(written: Written, cut: slice) -> None:
    """The end only by the checkpoints that were kept elsewhere."""
    written.put(written.lines()[cut])
    assert judge(written)[0] == 1


def test_a_removed_and_a_moved_record_show(written: Written) -> None:
    """A gap, and an order that is none."""
    lines = written.lines()
    written.put(lines[:9] + lines[10:])
    assert judge(written)[0] == 1
    written.put([*lines[:9], lines[10], lines[9], *lines[11:]])
    assert judge(written)[0] == 1


def test_a_log_that_was_written_anew_shows(written: Written) -> None:
    """All hashes fit again; the signatures do not."""
    lines = written.lines()
    changed = json.loads(lines[9]) | {"tenant": "somebody else"}
    written.put(rechained([*lines[:9], json.dumps(changed).encode(), *lines[10:]]))
    code, said = judge(written)
    assert code == 1 and "signature does not hold" in said


def test_another_key_vouches_for_nothing(written: Written, tmp_path: Path) -> None:
    """Nor is a log called signed by a key that was not its own."""
    other = tmp_path / "other.pub"
    public = Ed25519PrivateKey.generate().public_key()
    other.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    code, said = run("--key", other, written.path)
    assert code == 1 and "nothing is signed with the key" in said


def test_rotated_files_are_one_log(tmp_path: Path) -> None:
    """Given oldest first they are whole; without the one in the middle they are not."""
    written = rotated_log(tmp_path)
    files = audit_file.log_files(written.path)
    assert len(files) > 2
    assert run("--key", pem(written), *files)[0] == 0
    assert run("--key", pem(written), files[0], *files[2:])[0] == 1


def test_a_torn_last_line_is_no_fraud(written: Written) -> None:
    """A crash may leave one, and the daemon mends it."""
    with written.path.open("ab") as file:
        file.write(b'{"seq":9999,"prev":"')
    code, said = judge(written)
    assert code == 0 and "cut short" in said


def test_what_is_no_key_and_no_log_is_said(written: Written, tmp_path: Path) -> None:
    """An answer, not a traceback; and never `whole`."""
    wrong = tmp_path / "wrong"
    wrong.write_text("nothing of the kind\n")
    for words in (("--key", wrong, written.path), (tmp_path / "absent",), (wrong,)):
        code, said = run(*words)
        assert code != 0 and "whole:" not in said and "Traceback" not in said, said


def test_its_signatures_are_those_of_rfc_8032() -> None:
    """The third test vector of section 7.1, and one bit beside it."""
    script = (
        f"import runpy; v = runpy.run_path({str(VERIFIER)!r}, run_name='read')['signature_holds'];"
        "k = bytes.fromhex('fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025');"
        "s = bytes.fromhex('6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a');"
        "m = bytes.fromhex('af82');"
        "print(v(k, m, s), v(k, m, s[:-1] + bytes([s[-1] ^ 1])), v(k, b'x', s), v(k[::-1], m, s))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "False", "False"]


def test_its_page_names_every_type_of_record_and_how_short_it_is() -> None:
    """Somebody who does not trust us reads both, and finds in the log nothing that was not announced."""
    page = (VERIFIER.parent / "audit-log.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| `type` |"))
    assert set(re.findall(r"`([a-z_]+)`", row)) - {"type"} == {*TYPES.values(), LOG, CHECKPOINT}
    (lines,) = re.findall(r"(\d+) lines of Python's standard library", page)
    assert len(VERIFIER.read_text().splitlines()) <= int(lines)
