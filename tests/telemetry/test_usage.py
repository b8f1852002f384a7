"""One usage record a session."""

from dataclasses import replace

import pytest

from coatcheck.telemetry.events import SessionChange, Usage
from coatcheck.telemetry.usage import GRACE_SECONDS, UsageLedger
from tests.telemetry.samples import COMPLETION, DECISION, DENIED, ENDED, OPENED


@pytest.mark.parametrize("change", ["ended", "revoked", "lapsed", "expired"])
def test_every_kind_of_end_tells_once(change: str) -> None:
    """Requests (refused ones too), bytes and time, when the session's last word was said."""
    ledger = UsageLedger()
    end = replace(ENDED, change=SessionChange(change))
    for event in (OPENED, DENIED, DECISION, COMPLETION):
        assert ledger(event) == []
    assert ledger(end) == [Usage(ENDED.at, "s-1", "acme", "agent-7", 15.0, 2, 10, 2000)]
    assert ledger(end) == [] and ledger(COMPLETION) == []


def test_the_last_bytes_of_an_aborted_request_count() -> None:
    """A revoked session's streams end a moment after it: the record waits for them."""
    ledger = UsageLedger()
    for event in (OPENED, DECISION, ENDED):
        assert ledger(event) == []
    (usage,) = ledger(replace(COMPLETION, at=ENDED.at + 0.1))
    assert usage.bytes_down == 2000 and usage.at == ENDED.at


def test_a_request_that_never_completes_does_not_hold_the_record() -> None:
    """After the grace time any event brings it out, and a shutdown does so at once."""
    ledger = UsageLedger()
    for session in ("s-1", "s-3"):
        ledger(replace(OPENED, session=session))
        ledger(replace(DECISION, session=session))
    ledger(ENDED)
    assert ledger(replace(DENIED, at=ENDED.at + GRACE_SECONDS - 1, session="")) == []
    assert len(ledger(replace(DENIED, at=ENDED.at + GRACE_SECONDS, session=""))) == 1
    ledger(replace(ENDED, session="s-3"))
    assert [usage.session for usage in ledger.close(ENDED.at)] == ["s-3"]


def test_sessions_that_do_not_live_leave_nothing() -> None:
    """Requests in a dead or invented session's name are not counted and take no memory."""
    ledger = UsageLedger()
    for number in range(100):
        ledger(replace(DENIED, session=f"s-{number}"))
        ledger(replace(COMPLETION, session=f"s-{number}"))
    assert not len(ledger)


def test_a_session_goes_on_over_a_restart() -> None:
    """Resumed sessions are counted again, with what the audit log says they used before."""
    ledger = UsageLedger()
    ledger.resume("s-1", "acme", "agent-7", OPENED.at)
    before: list[dict[str, object]] = [
        {"type": "decision", "session": "s-1"},
        {"type": "completion", "session": "s-1", "bytes_up": 7, "bytes_down": 8},
        {"type": "decision", "session": "s-9"},
        {"type": "repeated", "session": "s-1", "what": "decision", "count": 40},
        {"type": "repeated", "session": "s-1", "what": "alarm", "count": 30},
    ]
    ledger.replay(before)
    ledger(DECISION)
    ledger(COMPLETION)
    assert ledger(ENDED) == [Usage(ENDED.at, "s-1", "acme", "agent-7", 15.0, 42, 17, 2008)]
