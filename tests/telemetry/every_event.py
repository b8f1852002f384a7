"""Every kind of event in every form that some sink treats on its own, and what each sink makes of it."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coatcheck.control.page.present import shown
from coatcheck.decision.denial import Reason
from coatcheck.telemetry.audit import ocsf, record
from coatcheck.telemetry.event_table import TABLE
from coatcheck.telemetry.events import (
    ApprovalChange,
    Completion,
    DaemonEvent,
    Decision,
    Event,
    Inspected,
    Repeated,
    SandboxChange,
    SandboxEvent,
    SessionChange,
)
from coatcheck.telemetry.log import line, log_event
from coatcheck.telemetry.metrics.metrics import Metrics
from coatcheck.telemetry.otel.otlp import Maker
from coatcheck.telemetry.recent import Recent
from coatcheck.telemetry.usage import UsageLedger
from tests.telemetry.collector import record_sent
from tests.telemetry.samples import (
    ALARM,
    ALL_EVENTS,
    APPROVAL,
    COMPLETION,
    DECISION,
    DENIED,
    OPENED,
    POLICY,
    SHADOW,
)

SANDBOX = SandboxEvent(
    DECISION.at, SandboxChange.CREATED, "sbx_1", ("s-1",), "acme", "agent-7", "platform", "uid 0",
    "microvm", "emulated", "", "from the pool",
)  # fmt: skip
LONG = "/" + "x" * 900
FILE = Path(__file__).with_name("every_event.json")
"""Written by `python -m tests.telemetry.every_event`: look at its difference before you commit it."""
OTHERS: tuple[Event, ...] = (
    *(replace(SANDBOX, change=change) for change in SandboxChange),
    replace(SANDBOX, change=SandboxChange.ENDED, ending="killed", sandbox=""),
    *(replace(OPENED, change=change, detail="ses_" + "0a" * 12) for change in SessionChange),
    *(replace(APPROVAL, change=change, approver="") for change in ApprovalChange),
    replace(APPROVAL, path=LONG),
    replace(DENIED, alarm=True, reason=Reason.HANDLE_STOLEN, detail="of ses_" + "0b" * 12, path=LONG),
    replace(DENIED, method="PROPFIND", reason=Reason.INTERNAL_ERROR, destination="http://x.example:81"),
    replace(COMPLETION, status=0, aborted=Reason.LEASE_LAPSED, scrubbed=0),
    replace(COMPLETION, session="nobody"),
    replace(ALARM, session="", tenant="", credential=""),
    replace(POLICY, loaded=False, detail="line 3: " + LONG),
    *(replace(each, result="found", findings=2) for each in ALL_EVENTS if isinstance(each, Inspected)),
    *(
        replace(each, what="alarm", reason=Reason.HANDLE_MISPLACED)
        for each in ALL_EVENTS
        if isinstance(each, Repeated)
    ),
    replace(SHADOW, path=LONG),
    *(DaemonEvent(DECISION.at, what) for what in ("started", "draining", "stopped", "state_lost")),
)  # fmt: skip
EVERY: tuple[Event, ...] = ALL_EVENTS + OTHERS


def _logged(event: Event) -> list[list[str]]:
    """The lines of the log, with all levels on."""
    found: list[list[str]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append([record.levelname, record.name, line(record).message])

    events, handler = logging.getLogger("coatcheck.events"), Kept()
    level, spread = events.level, events.propagate
    events.addHandler(handler)
    events.setLevel(logging.DEBUG)
    events.propagate = False
    try:
        log_event(event)
    finally:
        events.removeHandler(handler)
        events.setLevel(level)
        events.propagate = spread
    return found


def _counted(event: Event) -> list[str]:
    """The lines of /metrics that are not as they were before."""
    metrics = Metrics()

    def lines() -> set[str]:
        text = metrics.render().decode()
        return {each for each in text.splitlines() if each.startswith("coatcheck_")}

    before = lines()
    metrics(event)
    return sorted(lines() - before)


def _used(event: Event) -> list[str]:
    """What the ledger says of a session that had this event, too."""
    ledger = UsageLedger()
    ledger(OPENED)
    found = [*ledger(event), *ledger(replace(OPENED, at=OPENED.at + 9, change=SessionChange.ENDED))]
    return [repr(each) for each in [*found, *ledger.close(OPENED.at + 99)]]


def outputs(event: Event) -> dict[str, Any]:
    """By sink, as JSON can hold it."""
    kind, fields = record.body(event)
    said = json.loads(record.line(7, "0" * 64, kind, fields))
    recent = Recent()
    recent.put(event)
    pages = [
        dict(shown(each, lambda session: session.endswith("0a")))
        for each in recent.after(None, lambda _: True, 9).events
    ]
    for page in pages:
        page.pop("id")
    sent = (
        str(record_sent(Maker({}).log_record(event)))
        if TABLE[type(event)].otlp_level(event) is not None
        else "nothing"
    )
    return {
        "audit": f"{kind} {fields}",
        "ocsf": _without_version(ocsf.event(said)),
        "log": _logged(event),
        "page": pages,
        "groups": [repr(each) for each in recent.alarms(lambda _: True)],
        "otlp": "a span" if isinstance(event, Decision | Completion) else sent,
        "metrics": _counted(event),
        "usage": _used(event),
    }


def _without_version(event: Mapping[str, Any] | None) -> Any:
    """The installed version differs from release to release."""
    return json.loads(
        json.dumps(event), object_hook=lambda each: {k: v for k, v in each.items() if k != "version"}
    )


def whole(events: Iterable[Event] = EVERY) -> str:
    """The file that the test compares with."""
    return json.dumps([{"event": repr(each)} | outputs(each) for each in events], indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(whole())
