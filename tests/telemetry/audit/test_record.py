"""A record is one bounded line of ASCII, whatever a sandbox put into a request."""

import dataclasses
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.telemetry.audit import record as audit_record
from coatcheck.telemetry.events import Event
from tests.telemetry.samples import ALL_EVENTS, DECISION


def written(event: Event) -> bytes:
    return audit_record.line(7, audit_record.GENESIS, *audit_record.body(event))


@pytest.mark.parametrize("event", ALL_EVENTS, ids=lambda event: type(event).__name__)
def test_a_record_reads_back_as_its_event(event: Event) -> None:
    """Every field of every event is in its record, under its own name and with its value."""
    record = json.loads(written(event))
    assert (record.pop("seq"), record.pop("prev")) == (7, audit_record.GENESIS)
    assert record.pop("type") == audit_record.TYPES[type(event)]
    fields = dataclasses.asdict(event)
    assert record == {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}


@given(text=st.text(max_size=5000) | st.text(alphabet='"\\\n\r\x00\x7f\x85\u2028\u202e😀,{}', max_size=5000))
def test_no_text_breaks_a_line_or_outgrows_its_field(text: str) -> None:
    """Quotes, newlines, controls, separators and length: one line, one object, bounded, printable ASCII."""
    line = written(replace(DECISION, path=text, detail=text, credentials=(text,)))
    assert line.endswith(b"\n") and all(0x20 <= byte < 0x7F for byte in line[:-1])
    record = json.loads(line)
    assert set(record) == {"seq", "prev", "type", *(f.name for f in dataclasses.fields(DECISION))}
    assert record["outcome"] == "inject" and record["seq"] == 7
    assert len(audit_record.text(text)) <= audit_record.FIELD_BYTES
    if len(audit_record.text(text)) < audit_record.FIELD_BYTES // 2 and "cch_" not in text:
        assert record["path"] == text


@pytest.mark.parametrize("character", ["a", "\n", "é", "😀", "\x7f", '"', "\ud800"])
def test_a_long_text_is_cut_and_says_so(character: str) -> None:
    """What does not fit is cut; how much there was is told."""
    escaped = audit_record.text(character * 100_000)
    assert len(escaped) <= audit_record.FIELD_BYTES
    value = json.loads(escaped)
    assert value.startswith(character * 100) and value.endswith("[cut, 100000 characters]")


def test_the_longest_record_fits_a_reader() -> None:
    """Everything at its limit at once stays below what verify and tail will read as one line."""
    long = "😀" * 100_000
    names = [f.name for f in dataclasses.fields(DECISION) if isinstance(getattr(DECISION, f.name), str)]
    texts: dict[str, Any] = {name: long for name in names if name != "outcome"}
    longest = replace(DECISION, **texts, credentials=(long,) * 1000)
    assert len(written(longest)) <= audit_record.LINE_BYTES


def test_a_handle_that_slipped_through_is_masked() -> None:
    """Events carry no handles; if one does, the log still does not."""
    line = written(replace(DECISION, path="/bot" + "cch_" + "eyJhbGciOiJFZERTQSJ9.e30.c2ln" + "/send"))
    assert b"eyJ" not in line and json.loads(line)["path"] == "/botcch_[masked]/send"


def test_what_json_cannot_say_is_null() -> None:
    """A clock gone wrong does not make the log unreadable."""
    assert json.loads(written(replace(DECISION, at=float("nan"))))["at"] is None


def test_recurring_texts_are_kept_within_a_bound() -> None:
    """A sandbox that invents hosts cannot grow the store of texts already written."""
    store = audit_record.Written()
    for number in range(3 * store.MOST):
        assert store[f"h{number}"] == f'"h{number}"'
    store["x" * 1000]
    assert len(store) <= store.MOST and "x" * 1000 not in store
