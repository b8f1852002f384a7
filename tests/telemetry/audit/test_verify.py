"""Whatever is done to a log shows, and where."""

import base64
import hashlib
import json
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.audit import record as audit_record
from coatcheck.telemetry.audit.verify import FINDINGS, NEXT, Kind, Report, verify
from tests.telemetry.samples import Written, numbered


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def check(written: Written) -> Report:
    return verify(written.path, written.key, written.checkpoints)


def rechained(lines: list[bytes]) -> list[bytes]:
    """The same records with numbers and hashes that fit: what somebody without the key can do."""
    prev, out = audit_record.GENESIS, []
    for seq, line in enumerate(lines, 1):
        record = json.loads(line) | {"seq": seq, "prev": prev}
        out.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        prev = hashlib.sha256(out[-1]).hexdigest()
    return out


def test_an_untouched_log_is_whole(written: Written) -> None:
    """Every record, signature and outside checkpoint of a log that nobody touched holds."""
    report = check(written)
    assert report.ok and report.findings == []
    assert report.types["decision"] == 40
    assert report.signed_through == report.last_seq == report.records
    assert report.checkpoints == len(written.checkpoints.read_bytes().splitlines()) >= 2


def test_a_restarted_log_is_whole(written: Written) -> None:
    """A second run continues the chain of the first."""
    written.append(5)
    report = check(written)
    assert report.ok and report.types["decision"] == 45


def test_a_deleted_end_shows(written: Written) -> None:
    """Cutting off the last records leaves a valid chain, and the outside checkpoint gives it away."""
    written.put(written.lines()[:-12])
    report = check(written)
    assert report.broken is not None and report.broken.kind is Kind.TRUNCATED
    assert f"vouches for {report.last_seq + 12}" in report.broken.what
    assert verify(written.path, written.key).ok, "without the second sink nobody could know"


def test_a_deleted_middle_shows(written: Written) -> None:
    """Removing records from the middle is a gap, at the record after it."""
    lines = written.lines()
    written.put(lines[:9] + lines[12:])
    broken = check(written).broken
    assert broken is not None and (broken.kind, broken.line, broken.seq) == (Kind.GAP, 10, 13)
    assert "records 10 to 12 are missing" in broken.what


def test_a_deleted_beginning_shows(written: Written) -> None:
    """A file begins with the record that opens it."""
    written.put(written.lines()[3:])
    broken = check(written).broken
    assert broken is not None and (broken.kind, broken.line, broken.seq) == (Kind.GAP, 1, 4)


def test_a_beginning_cut_at_a_restart_shows(written: Written) -> None:
    """A restart's record looks like a beginning, but it says where its file began."""
    written.append(5)
    lines = written.lines()
    restart = next(i for i, line in enumerate(lines) if b'"what":"continued"' in line)
    written.put(lines[restart:])
    broken = verify(written.path, written.key).broken
    assert broken is not None and (broken.kind, broken.line) == (Kind.GAP, 1)


def test_an_edited_field_shows(written: Written) -> None:
    """One changed word breaks the link to the record after it, and the changed record is named."""
    lines = written.lines()
    lines[8] = lines[8].replace(b'"outcome":"inject"', b'"outcome":"pass"')
    written.put(lines)
    broken = check(written).broken
    assert broken is not None and (broken.kind, broken.line, broken.seq) == (Kind.REWRITTEN, 9, 9)


def test_swapped_records_show(written: Written) -> None:
    """Order is part of the chain."""
    lines = written.lines()
    lines[6], lines[7] = lines[7], lines[6]
    written.put(lines)
    report = check(written)
    assert not report.ok
    assert Kind.ORDER in {finding.kind for finding in report.findings}
    assert report.broken is not None and report.broken.line == 7


def test_a_duplicated_record_shows(written: Written) -> None:
    """A record counts once."""
    lines = written.lines()
    written.put([*lines[:7], lines[6], *lines[7:]])
    broken = check(written).broken
    assert broken is not None and (broken.kind, broken.line, broken.seq) == (Kind.ORDER, 8, 7)


def test_a_file_given_twice_shows(written: Written) -> None:
    """A whole file that was copied into the log's name space is no second half of it."""
    assert not verify([written.path, written.path], written.key).ok


def test_a_torn_last_line_is_recoverable(written: Written) -> None:
    """What a crash leaves is told, and is no tampering."""
    with written.path.open("ab") as file:
        file.write(b'{"seq":99,"prev":"ab')
    report = check(written)
    assert report.ok and report.broken is None
    assert [finding.kind for finding in report.findings] == [Kind.TORN]


def test_a_record_cut_in_the_middle_shows_by_its_checkpoint(written: Written) -> None:
    """Cutting the file inside a line looks torn, but an outside checkpoint knows what was whole."""
    content = written.path.read_bytes()
    written.path.write_bytes(content[: len(content) // 2])
    kinds = {finding.kind for finding in check(written).findings}
    assert kinds == {Kind.TORN, Kind.TRUNCATED}


def test_an_older_copy_put_back_shows(written: Written) -> None:
    """A rolled-back log is behind its checkpoints, even after the daemon has gone on with it."""
    old = written.path.read_bytes()
    written.append(30)
    written.path.write_bytes(old)
    assert [finding.kind for finding in check(written).findings] == [Kind.TRUNCATED]

    log = written.open()
    assert log.recovery.missing > 0
    log.close()
    assert b'"what":"recovered"' in written.path.read_bytes()
    written.append(30)
    kinds = {finding.kind for finding in check(written).findings}
    assert Kind.CHECKPOINTS in kinds and Kind.REWRITTEN in kinds


def test_a_log_rewritten_without_the_key_shows(written: Written) -> None:
    """Anyone who edits and chains anew cannot sign anew."""
    lines = written.lines()
    lines[8] = lines[8].replace(b'"outcome":"inject"', b'"outcome":"pass"')
    written.put(rechained(lines))
    assert verify(written.path).ok, "the chain alone holds: signatures are what is left"
    broken = verify(written.path, written.key).broken
    assert broken is not None and broken.kind is Kind.SIGNATURE


def test_a_log_rewritten_without_checkpoints_shows(written: Written) -> None:
    """Leaving the checkpoints out is no way around them."""
    written.put(rechained([line for line in written.lines() if b'"type":"checkpoint"' not in line]))
    assert verify(written.path).ok
    assert [f.kind for f in verify(written.path, written.key).findings] == [Kind.UNSIGNED]
    assert Kind.REWRITTEN in {f.kind for f in verify(written.path, checkpoints=written.checkpoints).findings}


def test_a_log_replaced_by_another_shows(written: Written, tmp_path: Path) -> None:
    """A valid log under the same key, but another one, does not stand in for the first."""
    other = Written(tmp_path / "other", records=60)
    other.signer, other.key = written.signer, written.key
    other.path.unlink()
    other.append(60)
    written.path.write_bytes(other.path.read_bytes())
    report = check(written)
    assert report.broken is not None and report.broken.kind is Kind.REWRITTEN


def test_another_key_shows(written: Written) -> None:
    """Signatures count only under a key that the verifier brings."""
    stranger = Ed25519PrivateKey.generate().public_key()
    kinds = {finding.kind for finding in verify(written.path, stranger).findings}
    assert kinds == {Kind.SIGNATURE, Kind.UNSIGNED}
    assert verify(written.path, [stranger, written.key]).ok, "after a change of key both are given"


def test_a_forged_signature_shows(written: Written) -> None:
    """A checkpoint with the right key's id and a signature of nothing is found at its line."""
    lines = written.lines()
    at = max(i for i, line in enumerate(lines) if b'"type":"checkpoint"' in line)
    record = json.loads(lines[at]) | {"signature": base64.b64encode(bytes(64)).decode()}
    lines[at] = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    written.put(lines)
    broken = verify(written.path, written.key).broken
    assert broken is not None and (broken.kind, broken.line) == (Kind.SIGNATURE, at + 1)


@pytest.mark.parametrize("junk", [b"\n", b"[]\n", b'{"seq":"1"}\n', b"\xff\xfe\n", b"x" * 200_000 + b"\n"])
def test_junk_between_records_shows(written: Written, junk: bytes) -> None:
    """A line that is no record is named, whatever it is."""
    lines = written.lines()
    written.put([*lines[:5], junk, *lines[5:]])
    broken = check(written).broken
    assert broken is not None and (broken.kind, broken.line) == (Kind.UNREADABLE, 6)


def rotated_log(tmp_path: Path) -> Written:
    written = Written(tmp_path, records=0, max_bytes=4000)
    for _ in range(4):
        log = written.open()
        before = len(audit_file.log_files(written.path))
        for number in range(8):
            log.write(numbered(number))
        deadline = time.monotonic() + 10
        while len(audit_file.log_files(written.path)) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        log.close()
    return written


def test_rotated_files_are_one_chain(tmp_path: Path) -> None:
    """One path stands for all its files, and a file missing between two others shows."""
    written = rotated_log(tmp_path)
    files = audit_file.log_files(written.path)
    assert len(files) == 5 and files[-1] == written.path
    report = check(written)
    assert report.ok and report.types["decision"] == 32 and report.files == 5
    del files[1]
    broken = verify(files, written.key).broken
    assert broken is not None and (broken.kind, broken.line) == (Kind.GAP, 1)


def test_without_archived_files_the_report_says_where_it_begins(tmp_path: Path) -> None:
    """The oldest files may live elsewhere: the rest verifies, and what it does not cover is told."""
    written = rotated_log(tmp_path)
    audit_file.log_files(written.path)[0].unlink()
    report = check(written)
    assert report.ok and report.first_seq > 1


def test_one_break_does_not_fill_the_report(written: Written) -> None:
    """However much is broken, a bounded number of findings is kept and all are counted."""
    written.put([b"x\n"] * 500)
    report = check(written)
    assert report.problems >= 500 and len(report.findings) == FINDINGS


def test_every_finding_says_what_to_do() -> None:
    """No kind of finding leaves a person without a next step."""
    assert set(NEXT) == set(Kind) and all(NEXT.values())


def test_no_log_is_an_error_and_not_a_success(tmp_path: Path) -> None:
    """Verifying nothing must not say that all is well."""
    with pytest.raises(FileNotFoundError, match="no audit log"):
        verify(tmp_path / "audit.jsonl")
