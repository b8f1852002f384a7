"""OCSF events: what a SIEM reads of an audit record, and that nothing of the record is lost on the way."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.telemetry.audit import record as audit_record
from coatcheck.telemetry.audit.ocsf import event
from coatcheck.telemetry.audit.ocsf_classes import SCHEMA
from coatcheck.telemetry.events import Event, Repeated
from tests.telemetry.ocsf_schema import wrong
from tests.telemetry.samples import ALL_EVENTS, DECISION, Written
from tests.telemetry.test_sandbox_feed import event as sandbox_event


def record(written: Event, **changed: Any) -> dict[str, Any]:
    """The record that the log makes of an event, as a reader has it."""
    kind, fields = audit_record.body(written)
    found: dict[str, Any] = json.loads(audit_record.line(7, "ab" * 32, kind, fields))
    return found | changed


def told(written: Event, **changed: Any) -> dict[str, Any]:
    found = event(record(written, **changed))
    assert found is not None
    return found


def leaves(value: object) -> set[str]:
    """Every text and number in it, as text."""
    if isinstance(value, dict):
        return set().union(*map(leaves, value.values()))
    if isinstance(value, list):
        return set().union(*map(leaves, value))
    return {str(value)}


REPEATED = Repeated(DECISION.at, "decision", "s-1", "acme", Reason.HOST_NOT_ALLOWED, 70, DECISION.at - 10)
EVERY = [*ALL_EVENTS, sandbox_event(), replace(REPEATED, what="alarm"), replace(DECISION, method="PROPFIND")]


@pytest.mark.parametrize("written", EVERY, ids=lambda each: type(each).__name__)
def test_every_record_is_an_event_of_its_class(written: Event) -> None:
    """All that the class requires is there, nothing that neither class nor profiles know, and the numbers of
    class, category and type fit together."""
    found = told(written)
    of_class = found["class_uid"]
    assert wrong(found) == []
    assert found["category_uid"] == of_class // 1000
    assert found["type_uid"] == of_class * 100 + found["activity_id"]
    assert found["activity_id"] != 99 or found["activity_name"]
    assert found["metadata"]["version"] == SCHEMA and found["metadata"]["product"]["name"] == "Coatcheck"
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("written", ALL_EVENTS, ids=lambda each: type(each).__name__)
def test_nothing_of_a_record_is_lost(written: Event) -> None:
    """Each text that was in the record is somewhere in the event."""
    given = record(written)
    texts = {
        value
        for key, value in given.items()
        if key not in ("prev", "type", "destination") and isinstance(value, str) and value
    }
    everything = "\n".join(leaves(told(written)))
    assert [text for text in texts if text not in everything] == []


def test_what_the_schema_does_not_know_is_found() -> None:
    """To an attribute of a profile that is not named, a number that means nothing and a hole it says no."""
    found = told(DECISION)
    host_only = found | {"metadata": found["metadata"] | {"profiles": ["security_control"]}}
    assert wrong(host_only) == ["actor is not known"]
    assert wrong(found | {"disposition_id": 77}) == ["disposition_id cannot be 77"]
    assert wrong({key: value for key, value in found.items() if key != "http_request"}) == [
        "the event has none of http_request, http_response"
    ]
    assert wrong(found | {"time": "now"}) == ["time is no integer"]


def test_checkpoints_are_left_out_and_unknown_records_are_not() -> None:
    """A type of tomorrow becomes a base event with everything in it."""
    assert event({"type": "checkpoint"}) is None
    found = event({"seq": 1, "prev": "0" * 64, "type": "tomorrow", "at": 2.0, "what": "new"})
    assert found is not None and found["class_uid"] == 0 and found["unmapped"] == {"what": "new"}


def test_the_log_of_a_daemon_can_be_told_whole(tmp_path: Path) -> None:
    """Its own records, too."""
    lines = Written(tmp_path, records=3).lines()
    assert [event(json.loads(line)) is None for line in lines] == [b'"checkpoint"' in line for line in lines]
