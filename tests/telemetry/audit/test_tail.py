"""What a person sees of the log."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.audit.tail import Filters, records, render, tail
from coatcheck.telemetry.event_table import TABLE
from tests.telemetry.samples import ALL_EVENTS, DECISION, numbered


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "audit" / "audit.jsonl"
    log = AuditLog(path)
    for event in ALL_EVENTS:
        log.write(event)
    log.close()
    return path


def test_every_event_has_its_line(path: Path) -> None:
    """One printable line each, with what matters in it."""
    lines = list(tail(path))
    assert len(lines) == len(ALL_EVENTS) + 1 and all(line.isprintable() for line in lines)
    assert lines[1] == (
        "2025-10-09 08:53:20.250Z  inject        acme/s-1  POST https://api.example.com/v1/chat/completions"
        "  rule=model calls  credentials=openai"
    )
    assert "deny          host_not_allowed  acme/s-1" in lines[2]
    assert "ALARM         handle_stolen  acme/s-2  openai" in lines[6]


@pytest.mark.parametrize("kind", sorted(row.kind for row in TABLE.values()))
def test_every_kind_of_record_has_a_word_of_its_own(kind: str) -> None:
    """A record that nobody thought of here would stand there as a question mark."""
    assert not render({"type": kind, "at": 1.0}).split("Z", 1)[1].strip().startswith("?")


def test_filters_narrow(path: Path) -> None:
    """Each filter compares one field as a whole."""

    def count(**wanted: str) -> int:
        return len(list(records(path, filters=Filters(**wanted))))  # type: ignore[arg-type]

    assert count(type="decision") == 2
    assert count(outcome="deny") == 1 and count(outcome="den") == 0
    assert count(reason="handle_stolen") == 1
    assert count(session="s-2") == 1 and count(tenant="acme", session="s-1", type="usage") == 1
    assert len(list(records(path, filters=Filters(since=DECISION.at + 5, session="s-1")))) == 1


def test_the_terminal_is_not_the_sandbox_s_to_write_to(tmp_path: Path) -> None:
    """Escape sequences, newlines and bidi marks in a path come out as text."""
    path = tmp_path / "audit" / "audit.jsonl"
    log = AuditLog(path)
    log.write(replace(DECISION, path="/\x1b]0;owned\x07\n2025 pass\u202e", alarm=True))
    log.close()
    (line,) = tail(path, filters=Filters(type="decision"))
    assert line.isprintable() and "\\x1b]0;owned\\x07\\n2025 pass\\u202e" in line and "ALARM" in line


def test_hostile_records_still_render() -> None:
    """A log that somebody else wrote makes odd lines, never an exception."""
    assert render({}).startswith("?")
    assert render({"type": "\x1b[2J", "at": 1e300}).isprintable()
    assert render({"type": "decision", "credentials": [{}], "path": 7, "at": "now"}).isprintable()


def test_last_limits_and_none_reads_everything(tmp_path: Path) -> None:
    """`last` counts matching records; None goes back through all files."""
    path = tmp_path / "audit" / "audit.jsonl"
    for number in range(3):
        log = AuditLog(path)
        log.write(numbered(number))
        log.close()
        path.rename(audit_file.rotated_name(path, audit_file.read_end(path).first_seq))
    decisions = Filters(type="decision")
    assert [r["request_id"] for r in records(path, filters=decisions, last=None)] == ["r0", "r1", "r2"]
    assert [r["request_id"] for r in records(path, filters=decisions, last=1)] == ["r2"]


def test_follow_goes_on_across_a_rotation(tmp_path: Path) -> None:
    """Records that come later are told as they come, also from the next file."""
    path = tmp_path / "audit" / "audit.jsonl"
    log = AuditLog(path, flush_seconds=0.01, max_bytes=2000)
    log.write(numbered(0))
    seen: list[str] = []

    def follow() -> None:
        for record in records(path, follow=True, filters=Filters(type="decision")):
            seen.append(str(record["request_id"]))
            if len(seen) == 61:
                return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    for number in range(1, 61):
        log.write(numbered(number))
        if number % 15 == 0:
            time.sleep(0.05)  # lets the flushing thread rotate in between, faster than the follower looks
    follower.join(20)
    log.close()
    assert seen == [f"r{number}" for number in range(61)]
    assert len(audit_file.log_files(path)) > 2


def test_no_log_says_so(tmp_path: Path) -> None:
    """Nothing to read is an error with a hint."""
    with pytest.raises(FileNotFoundError, match="no audit log"):
        next(records(tmp_path / "audit.jsonl"))
