"""Requests out of audit logs, as they are judged again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.message import Destination
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.audit.requests import Tally, recorded_requests
from coatcheck.telemetry.events import Event, Repeated
from tests.telemetry.samples import ALL_EVENTS, DECISION, DENIED


def written(path: Path, *events: Event, max_bytes: int = 1 << 20) -> Path:
    """A log with these events."""
    path.parent.chmod(0o700)
    log = AuditLog(path, flush_seconds=0.001, max_bytes=max_bytes)
    for event in events:
        log.write(event)
    log.close()
    return path


def test_decisions_come_back_as_they_were(tmp_path: Path) -> None:
    """And nothing else does; what else was there is counted."""
    counted = Repeated(DECISION.at, "decision", "s-1", "acme", Reason.RATE_LIMITED, 40, DECISION.at)
    in_samples = sum(each.count for each in ALL_EVENTS if isinstance(each, Repeated))
    tally = Tally()
    log = written(tmp_path / "audit.jsonl", *ALL_EVENTS, counted, replace(counted, what="alarm"))
    one, other = recorded_requests([log], tally)
    assert one.destination == Destination("https", "api.example.com", 443) and one.whole
    assert (one.method, one.path, one.credentials) == (DECISION.method, DECISION.path, ("openai",))
    assert other.reason is Reason.HOST_NOT_ALLOWED
    assert (tally.requests, tally.repeated, tally.unreadable) == (2, 40 + in_samples, 0)


def test_all_files_of_a_log_are_read_in_order(tmp_path: Path) -> None:
    """Rotated ones first; one of them alone when it is named."""
    log = tmp_path / "audit.jsonl"
    expected = [f"r{number}" for number in range(40)]
    for part in range(4):  # rotation is the flushing thread's: each file is closed when it is over its size
        written(
            log,
            *(replace(DECISION, request_id=name) for name in expected[part * 10 : part * 10 + 10]),
        )
        if part < 3:
            first = json.loads(log.read_text().splitlines()[0])["seq"]
            log.rename(tmp_path / f"audit-{first + part:016d}.jsonl")
    assert [each.request_id for each in recorded_requests([log], Tally())] == expected
    alone = sorted(tmp_path.glob("audit-*.jsonl"))[1]
    assert [each.request_id for each in recorded_requests([alone], Tally())] == expected[10:20]


def test_a_request_that_failed_on_its_way_counts_once(tmp_path: Path) -> None:
    """It has two records: that it was let through, and why it did not arrive."""
    late = replace(DENIED, reason=Reason.UPSTREAM_UNREACHABLE)
    log = written(tmp_path / "audit.jsonl", DECISION, late)
    assert len(list(recorded_requests([log], Tally()))) == 1


def test_a_method_that_was_cut_is_known_as_such(tmp_path: Path) -> None:
    """As long as a sandbox likes, and then none that a rule could name."""
    long = replace(DENIED, method="GET" * 2000)
    (found,) = recorded_requests([written(tmp_path / "audit.jsonl", long)], Tally())
    assert not found.whole


@pytest.mark.parametrize("path", ["/v1/cch_***", "/v1/cch_[masked]", "/v1/" + "x" * 4000])
def test_what_was_masked_or_cut_is_known_as_such(tmp_path: Path, path: str) -> None:
    """A path that is not the one that was asked for cannot be judged."""
    (found,) = recorded_requests([written(tmp_path / "audit.jsonl", replace(DECISION, path=path))], Tally())
    assert not found.whole


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "maybe"},
        {"reason": "because"},
        {"credentials": "openai"},
        {"credentials": [7]},
        {"path": None},
        {"at": "noon"},
        {"method": ["GET"]},
    ],
    ids=str,
)
def test_a_line_that_is_none_of_ours_is_counted_and_passed_over(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """Anyone who may write into the file chooses what stands there: nothing of it may end the reading."""
    log = written(tmp_path / "audit.jsonl", DECISION)
    record = json.loads(log.read_text().splitlines()[1]) | change
    with log.open("ab") as file:
        file.write(json.dumps(record).encode() + b"\n" + b"[" * 60_000 + b"\n" + b"x" * 200_000 + b"\n{}\n")
    tally = Tally()
    found = list(recorded_requests([log], tally))
    pieces = 1 + 4 + 1  # the brackets; 200 kB, read in pieces of 64 KiB; no record
    assert (len(found), tally.unreadable) == (1, 1 + pieces)


def test_a_host_that_was_refused_by_its_form_is_none(tmp_path: Path) -> None:
    """No policy was asked about it."""
    log = written(tmp_path / "audit.jsonl", replace(DENIED, destination="-"))
    (found,) = recorded_requests([log], Tally())
    assert found.destination is None


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    """Is no empty one."""
    with pytest.raises(FileNotFoundError):
        list(recorded_requests([tmp_path / "audit.jsonl"], Tally()))
