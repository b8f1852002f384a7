"""The sink: never waits, loses nothing silently, and a collector that is away costs nothing but telemetry."""

import gc
import logging
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.settings.daemon import Settings
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.events import Event, SessionChange
from coatcheck.telemetry.metrics.metrics import Metrics
from coatcheck.telemetry.otel import otel as module
from coatcheck.telemetry.otel.otel import QUEUE, OpenTelemetry, opentelemetry
from coatcheck.telemetry.repeats import BURST
from coatcheck.telemetry.sinks import Telemetry
from coatcheck.telemetry.usage import UsageLedger
from tests.sandboxes import until
from tests.telemetry.collector import Collector, collecting, plain
from tests.telemetry.metrics.test_metrics import value
from tests.telemetry.samples import ALARM, ALL_EVENTS, COMPLETION, DECISION, DENIED, OPENED, numbered

AT_ONCE = {"Retry-After": "0"}
NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens there."""


def settings(endpoint: str | None, **others: Any) -> Settings:
    return Settings(otel_endpoint=endpoint, **others)


def made(wanted: Settings) -> OpenTelemetry:
    sink = opentelemetry(wanted)
    assert sink is not None
    return sink


@contextmanager
def running(sink: OpenTelemetry) -> Iterator[OpenTelemetry]:
    sink.start()
    try:
        yield sink
    finally:
        sink.stop()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.05)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def test_without_an_endpoint_there_is_no_sink() -> None:
    """And nothing of OpenTelemetry is imported, which the last test of this file shows."""
    assert opentelemetry(settings(None)) is None


def test_requests_become_spans_and_the_rest_log_records(collector: Collector) -> None:
    """With a resource that says which process it was."""
    wanted = settings(collector.url, otel_attributes={"deployment.environment.name": "test"})
    with running(made(wanted)) as sink:
        for event in (*ALL_EVENTS, numbered(1)):
            sink(event)
    assert [plain(span.attributes)["coatcheck.verdict"] for span in collector.spans()] == ["deny", "inject"]
    names = {record.event_name for record in collector.records()}
    assert {"coatcheck.alarm", "coatcheck.policy", "coatcheck.session", "coatcheck.daemon"} <= names
    resource = collector.resource()
    assert resource["service.name"] == "coatcheck" and resource["deployment.environment.name"] == "test"
    counts = sink.counts()
    assert counts["traces", "sent"] == 2 and counts["logs", "sent"] == len(collector.records())


def test_an_event_does_not_wait_for_company(collector: Collector) -> None:
    """One request arrives soon, while the daemon runs."""
    with running(made(settings(collector.url))) as sink:
        sink(DENIED)
        until(lambda: collector.got)
    assert len(collector.spans()) == 1


@pytest.mark.parametrize(("signal", "path"), [("traces", "/v1/traces"), ("logs", "/v1/logs")])
def test_a_signal_alone_may_be_wanted(collector: Collector, signal: str, path: str) -> None:
    """For a collector that knows only one."""
    with running(made(settings(collector.url, otel_signals=(signal,)))) as sink:
        for event in ALL_EVENTS:
            sink(event)
        logging.getLogger("coatcheck.test").warning("a line")
    assert {at for at, _, _ in collector.got} == {path}


def test_the_daemons_own_log_goes_along_masked(collector: Collector) -> None:
    """Lines of events come as records with fields already; what the exporter says of itself stays here."""
    key = "sk-" + "a" * 40
    with running(made(settings(collector.url))):
        logging.getLogger("coatcheck.test").error("a key %s in a message", key)
        logging.getLogger("coatcheck.events").error("an event")
        logging.getLogger("coatcheck.telemetry.otel.otel").error("about itself")
        try:
            raise OSError(key)
        except OSError:
            logging.getLogger("a.library").exception("it broke")
    bodies = [record.body.string_value for record in collector.records()]
    assert bodies == ["a key sk-[masked] in a message", "it broke"]
    assert all(key.encode() not in body for _, _, body in collector.got)
    logging.getLogger("coatcheck.test").error("after the end")
    assert len(collector.records()) == 2


def test_renewals_are_not_told(collector: Collector) -> None:
    """They are in the audit log; twice a minute and session is noise."""
    with running(made(settings(collector.url))) as sink:
        sink(replace(OPENED, change=SessionChange.RENEWED))
        sink(OPENED)
    assert len(collector.records()) == 1


def test_a_batch_that_is_not_taken_comes_again(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """While the collector restarts. What it refuses for good is lost, counted, and said once."""
    collector.answers = [
        (503, AT_ONCE, b""),
        (503, AT_ONCE, b""),
        (200, {}, b""),
        (400, {}, b""),
        (400, {}, b""),
    ]
    with running(made(settings(collector.url, otel_signals=("traces",)))) as sink:
        for count in (3, 4, 5, 6):
            sink(DENIED)
            until(lambda: len(collector.got) == count)  # noqa: B023 - called before the next round
        until(lambda: sink.counts()["traces", "sent"] == 2)
    assert sink.counts()["traces", "not_taken"] == 2
    (said,) = [record.getMessage() for record in caplog.records if "does not take" in record.getMessage()]
    assert "traces: status 400. They are lost and counted (coatcheck_otel_items_total)" in said
    assert "takes traces again" in caplog.text


def test_what_a_collector_takes_and_rejects_is_counted(collector: Collector) -> None:
    """It says so in its answer; one that claims more than it got is not believed."""
    collector.answers = [(200, {}, b"\x0a\x02\x08\x63")]  # rejected_spans: 99
    with running(made(settings(collector.url, otel_signals=("traces",)))) as sink:
        sink(DENIED)
    assert (sink.counts()["traces", "rejected"], sink.counts()["traces", "sent"]) == (1, 0)


def feed(sink: OpenTelemetry, requests: int) -> float:
    """So many requests with long paths; the longest time that one event took to be put, in seconds."""
    longest, path = 0.0, "/" + "p" * 60_000
    for number in range(requests):
        event: Event
        for event in (replace(numbered(number), path=path + str(number)), DENIED):
            began = time.perf_counter()
            sink(event)
            longest = max(longest, time.perf_counter() - began)
    return longest


def test_a_dead_collector_holds_memory_flat_and_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    """10,000 events: what finds no room is dropped and counted, and the end comes in time."""
    with running(made(settings(NOBODY, otel_signals=("traces",)))) as sink:
        tracemalloc.start()
        try:
            longest = feed(sink, 5_000)
            gc.collect()
            after_first, _ = tracemalloc.get_traced_memory()
            feed(sink, 5_000)
            gc.collect()
            after_second, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sink.counts()["traces", "no_room"] >= 20_000 - 2 * QUEUE
        assert after_first < 50e6 and after_second < after_first + 5e6
        assert longest < 1.0  # a turn of the machine, not a wait for the network
        began = time.monotonic()
        sink.stop()
        assert time.monotonic() - began < 20
    assert len([record for record in caplog.records if "does not take" in record.getMessage()]) <= 1


def test_an_event_that_cannot_be_told_silences_no_other(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of its batch go out, it is counted, and said once: a sandbox may have made it what it is."""
    broken = replace(DENIED, destination="https://[x")
    with running(made(settings(collector.url))) as sink:
        for event in (broken, DENIED, broken, "no event", ALARM):
            sink(event)  # type: ignore[arg-type]
        until(lambda: collector.records() and collector.spans())
    assert len(collector.spans()) == len(collector.records()) == 1
    counts = sink.counts()
    assert (counts["traces", "broken"], counts["logs", "broken"]) == (2, 1)
    assert len([line for line in caplog.messages if "could not be sent" in line]) == 2


def test_it_is_one_sink_of_many(tmp_path: Path, collector: Collector) -> None:
    """Refusals that repeat are counted there as in the audit log; its own counts are metrics."""
    metrics = Metrics()
    log = AuditLog(tmp_path / "audit" / "audit.jsonl")
    telemetry = Telemetry(log, metrics, UsageLedger(), otel=made(settings(collector.url)))
    for _ in range(BURST + 50):
        telemetry.emit(DENIED)
    telemetry.emit(DECISION)
    telemetry.emit(COMPLETION)
    telemetry.close(DECISION.at)
    assert len(collector.spans()) == BURST + 1
    (repeated,) = [record for record in collector.records() if record.event_name == "coatcheck.repeated"]
    assert plain(repeated.attributes)["coatcheck.count"] == 50
    assert value(metrics, "otel_items_total", signal="traces", outcome="sent") == BURST + 1
    assert value(metrics, "otel_items_total", signal="traces", outcome="no_room") == 0


def test_a_ca_file_that_is_none_is_told_at_the_start(tmp_path: Path) -> None:
    """Not at the first batch."""
    with pytest.raises(ValueError, match="otel_ca_file cannot be used"):
        opentelemetry(settings("https://collector.example", otel_ca_file=tmp_path / "missing.pem"))


WITHOUT_THE_EXTRA = """
import sys
sys.modules["opentelemetry"] = None
from coatcheck.cli import main
main()
"""


def test_without_the_extra_there_is_one_clear_error(tmp_path: Path) -> None:
    """The daemon says what to install, and does not start half. Nothing needs it before it is configured."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRA, "serve"],
        env={"COATCHECK_STATE_DIR": str(tmp_path / "state"), "COATCHECK_OTEL_ENDPOINT": NOBODY},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("error: otel_endpoint is set, and this installation cannot speak OTLP\n")
    assert "pip install 'coatcheck[otel]'" in done.stderr and "Traceback" not in done.stderr
