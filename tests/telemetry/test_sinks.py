"""The audit log first; what the others miss stops nothing."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from coatcheck.telemetry.audit.log import AuditLog, AuditUnavailable
from coatcheck.telemetry.events import Event
from coatcheck.telemetry.metrics.metrics import Metrics
from coatcheck.telemetry.repeats import BURST
from coatcheck.telemetry.sinks import Telemetry
from coatcheck.telemetry.usage import UsageLedger
from coatcheck.telemetry.webhook import Webhook
from tests.telemetry.metrics.test_metrics import value
from tests.telemetry.samples import ALARM, ALL_EVENTS, APPROVAL, COMPLETION, DECISION, DENIED, ENDED, OPENED
from tests.telemetry.test_sandbox_feed import event as sandbox_event


def make(tmp_path: Path) -> Telemetry:
    return Telemetry(AuditLog(tmp_path / "audit" / "audit.jsonl"), Metrics(), UsageLedger())


def types(tmp_path: Path) -> list[str]:
    lines = (tmp_path / "audit" / "audit.jsonl").read_bytes().splitlines()
    return [json.loads(line)["type"] for line in lines]


def test_an_event_reaches_every_sink(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Audit, metrics, usage and log each see it; the usage record lands in the audit log too."""
    telemetry = make(tmp_path)
    with caplog.at_level(logging.INFO, "coatcheck"):
        for event in (OPENED, DECISION, COMPLETION, ALARM, ENDED):
            telemetry.emit(event)
    telemetry.close(ENDED.at)
    assert types(tmp_path) == ["log", "session", "decision", "completion", "alarm", "session", "usage"]
    assert value(telemetry.metrics, "decisions_total", outcome="inject", reason="") == 1
    assert value(telemetry.metrics, "audit_records_total", type="decision") == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_without_audit_nothing_is_told_and_the_caller_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """AuditUnavailable reaches the caller, no other sink counts the request, one line says why."""
    telemetry = make(tmp_path)
    telemetry.emit(OPENED)
    telemetry.audit.close()
    with caplog.at_level(logging.INFO, "coatcheck"):
        for _ in range(3):
            with pytest.raises(AuditUnavailable):
                telemetry.emit(DECISION)
    assert value(telemetry.metrics, "decisions_total", outcome="inject", reason="") == 0
    assert value(telemetry.metrics, "audit_failures_total") == 3
    assert value(telemetry.metrics, "fail_closed_total", reason="audit_unavailable") == 3
    assert len(caplog.records) == 1


class Broken:
    """In place of a sink of any kind."""

    def __call__(self, event: Event) -> list[Event]:
        raise OSError("a bug")

    put = __call__

    def __getattr__(self, name: str) -> Any:
        """Beginning, counting and ending work."""
        return lambda *given: {}


class CountsNoEvent(Metrics):
    def __call__(self, event: Event) -> None:
        raise OSError("a bug")


class Kept(Webhook):
    """Not sent: what would have been."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9/", Path("no secret"))
        self.kept: list[Event] = []

    def put(self, event: Event) -> None:
        self.kept.append(event)


def test_the_webhook_is_told_of_what_was_recorded_and_of_no_request(tmp_path: Path) -> None:
    """A question that stands in no log must not get an answer; requests are too many for it."""
    webhook = Kept()
    telemetry = Telemetry(
        AuditLog(tmp_path / "audit" / "audit.jsonl"), Metrics(), UsageLedger(), webhook=webhook
    )
    for event in ALL_EVENTS:
        telemetry.emit(event)
    telemetry.emit(sandbox_event())
    assert webhook.kept == [APPROVAL, sandbox_event()]
    telemetry.audit.close()
    with pytest.raises(AuditUnavailable):
        telemetry.emit(APPROVAL)
    assert len(webhook.kept) == 2


@pytest.mark.parametrize("sink", ["metrics", "usage", "log", "otel", "recent", "webhook"])
def test_a_sink_that_raises_is_counted_and_stops_nothing(tmp_path: Path, sink: str) -> None:
    """The event is recorded, the other sinks have it, and nobody is refused."""
    log: list[Event] = []
    parts: dict[str, Any] = {"metrics": Metrics(), "usage": UsageLedger(), "log": log.append}
    if sink != "recent":
        parts[sink] = CountsNoEvent() if sink == "metrics" else Broken()
    telemetry = Telemetry(AuditLog(tmp_path / "audit" / "audit.jsonl"), **parts)
    if sink == "recent":
        vars(telemetry)["recent"] = Broken()
    for event in (DENIED, APPROVAL):
        telemetry.emit(event)
    telemetry.close(DENIED.at)
    assert value(telemetry.metrics, "telemetry_failures_total", sink=sink) >= 1
    assert types(tmp_path) == ["log", "decision", "approval"]
    assert sink == "log" or log == [DENIED, APPROVAL]
    assert sink == "recent" or telemetry.recent.last >= 1


def test_close_tells_the_usage_that_was_waiting(tmp_path: Path) -> None:
    """A session whose last request never completed has its record before the log ends."""
    telemetry = make(tmp_path)
    for event in (OPENED, DECISION, ENDED):
        telemetry.emit(event)
    telemetry.close(ENDED.at)
    assert types(tmp_path)[-1] == "usage"


def test_a_flood_of_refusals_does_not_fill_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Counted in the audit log and on stderr, each in the metrics and in what the session used."""
    telemetry = make(tmp_path)
    telemetry.emit(OPENED)
    with caplog.at_level(logging.WARNING, "coatcheck"):
        for _ in range(1000):
            telemetry.emit(DENIED)
            telemetry.emit(ALARM)
        telemetry.settle(DENIED.at + 60)
        telemetry.emit(ENDED)
        telemetry.close(ENDED.at)
    records = [json.loads(line) for line in (tmp_path / "audit" / "audit.jsonl").read_bytes().splitlines()]
    assert [r["type"] for r in records].count("decision") == BURST
    assert [(r["what"], r["count"]) for r in records if r["type"] == "repeated"] == [
        ("decision", 1000 - BURST),
        ("alarm", 1000 - BURST),
    ]
    assert records[-1]["requests"] == 1000
    assert value(telemetry.metrics, "decisions_total", outcome="deny", reason="host_not_allowed") == 1000
    assert len(caplog.records) == BURST + 1


def test_counts_that_wait_are_told_at_the_end(tmp_path: Path) -> None:
    """A daemon that stops in the middle of a flood leaves no refusal uncounted."""
    telemetry = make(tmp_path)
    for _ in range(BURST + 7):
        telemetry.emit(DENIED)
    telemetry.close(DENIED.at)
    assert types(tmp_path)[-1] == "repeated"
