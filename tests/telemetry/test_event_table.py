"""One row for each event, and what every sink makes of it; a new event is a new row and nothing else."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import pytest

from coatcheck.control.page.present import shown
from coatcheck.telemetry.audit import ocsf, ocsf_classes
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.event_table import TABLE, Delivered, Line, Logged, Row, Use, table
from coatcheck.telemetry.events import Event
from coatcheck.telemetry.metrics.metrics import Metrics
from coatcheck.telemetry.otel.http import Collector as ToCollector
from coatcheck.telemetry.otel.otel import OpenTelemetry
from coatcheck.telemetry.otel.otlp import Maker
from coatcheck.telemetry.sinks import Telemetry
from coatcheck.telemetry.usage import UsageLedger
from coatcheck.telemetry.webhook import Webhook
from tests.telemetry.collector import Collector, collecting
from tests.telemetry.every_event import EVERY, FILE, outputs
from tests.telemetry.metrics.test_metrics import value
from tests.telemetry.samples import ENDED, OPENED

EVENTS: tuple[type, ...] = Event.__value__.__args__


@dataclass(frozen=True, slots=True)
class Dummy:
    """An event that there is not yet."""

    at: float
    session: str
    tenant: str
    bytes_up: int
    bytes_down: int
    detail: str


DUMMY = Dummy(OPENED.at + 1, "s-1", "acme", 7, 9, "something new")
ROW = Row(
    of=Dummy,
    kind="dummy",
    log=Logged(logging.WARNING, lambda event: Line(logging.WARNING, "dummy %s", (event.detail,))),
    ocsf=ocsf_classes.base,
    page=lambda event, own: {"kind": "note", "words": own(event.detail)},
    kept_for_page=lambda event: True,
    otlp_level=lambda event: logging.ERROR,
    subject="detail",
    metrics=lambda count, event: count("scrubbed_total", (), 5),
    usage=Use.COMPLETION,
    webhook=lambda event: Delivered("dummied", event.session),
)


def test_every_sink_says_of_every_event_what_it_always_said() -> None:
    """To the byte: programs read these. After a change that is wanted, write the file anew and look at it."""
    wanted = json.loads(FILE.read_text())
    assert len(wanted) == len(EVERY)
    for event, said in zip(EVERY, wanted, strict=True):
        assert {"event": repr(event)} | outputs(event) == said


def test_every_event_and_each_of_its_forms_is_in_that_file() -> None:
    """Or it would hold nothing for them."""
    assert {type(event) for event in EVERY} == set(EVENTS) == set(TABLE)


def test_an_event_without_a_row_and_a_row_without_a_column_are_errors_at_import() -> None:
    """And two rows for one event, of which one would be silently ignored."""
    with pytest.raises(TypeError, match="Dummy has no row"):
        table(TABLE.values(), (*EVENTS, Dummy))
    with pytest.raises(TypeError, match="Decision has two rows"):
        table((*TABLE.values(), *TABLE.values()), EVENTS)
    for left_out in fields(Row):
        given = {each.name: getattr(ROW, each.name) for each in fields(Row) if each is not left_out}
        with pytest.raises(TypeError, match=left_out.name):
            Row(**given)
    assert table((*TABLE.values(), ROW), (*EVENTS, Dummy))[Dummy] is ROW


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def test_one_row_is_enough_for_an_event_to_reach_every_sink(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    collector: Collector,
) -> None:
    """Audit log, OCSF, log, metrics, usage, page, OTLP, webhook."""
    monkeypatch.setitem(cast(dict[type, Row[Any]], TABLE), Dummy, ROW)
    secret = tmp_path / "secret"
    secret.write_text("a secret of a webhook")
    secret.chmod(0o600)
    webhook = Webhook(collector.url, secret)
    webhook.start()
    otel = OpenTelemetry(ToCollector(collector.url, None, None), Maker({}), ("traces", "logs"))
    path, metrics = tmp_path / "audit" / "audit.jsonl", Metrics()
    telemetry = Telemetry(AuditLog(path), metrics, UsageLedger(), otel=otel, webhook=webhook)
    with caplog.at_level(logging.INFO, "coatcheck"):
        for event in (OPENED, DUMMY, ENDED):
            telemetry.emit(cast(Event, event))
    telemetry.close(ENDED.at + 60)
    webhook.stop(10)
    records = {each["type"]: each for each in map(json.loads, path.read_bytes().splitlines())}
    assert records["dummy"]["detail"] == "something new"
    assert (records["usage"]["bytes_up"], records["usage"]["bytes_down"]) == (7, 9)
    siem = ocsf.event(records["dummy"])
    assert siem is not None and siem["unmapped"]["bytes_up"] == 7
    assert [record.getMessage() for record in caplog.records] == ["dummy something new"]
    assert value(metrics, "scrubbed_total") == 5
    latest = telemetry.recent.after(None, lambda tenant: tenant == "acme", 9).events
    assert [shown(each, lambda _: True).get("words") for each in latest][1] == "something new"
    found = [record for record in collector.records() if record.event_name == "coatcheck.dummy"]
    assert [(each.severity_text, each.body.string_value) for each in found] == [
        ("ERROR", "dummy something new")
    ]
    sent = [(head, body) for _, head, body in collector.got if "Coatcheck-Event" in head]
    assert [(head["Coatcheck-Event"], json.loads(body)["detail"]) for head, body in sent] == [
        ("dummied", "something new")
    ]
