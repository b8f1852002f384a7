"""Events in the words of the refusals, without what belongs to other tenants."""

from dataclasses import replace

import pytest

from coatcheck.control.page.present import only_own, shown, shown_alarm
from coatcheck.decision.comparison import Comparison
from coatcheck.decision.denial import EXPLANATIONS, Reason
from coatcheck.telemetry.events import (
    ApprovalChange,
    ApprovalEvent,
    DaemonEvent,
    Event,
    Outcome,
    PolicyEvent,
    Repeated,
    SessionChange,
    SessionEvent,
    ShadowDifference,
)
from coatcheck.telemetry.recent import AlarmGroup, Numbered
from tests.telemetry.test_recent import ALARM, DENIED

OWN, OTHER = "ses_" + 24 * "a", "ses_" + 24 * "b"


def sees(session: str) -> bool:
    return session == OWN


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_reads_as_the_sandbox_read_it(reason: Reason) -> None:
    """Every reason, word for word."""
    told = shown(Numbered(1, replace(DENIED, reason=reason)), sees)
    assert told["words"] == EXPLANATIONS[reason].message and told["reason"] == reason


def test_what_was_allowed_says_whether_a_credential_went_with_it() -> None:
    """And which rule let it through."""
    passed = replace(DENIED, outcome=Outcome.PASS, reason=None, rule="docs")
    assert shown(Numbered(1, passed), sees)["words"] == "allowed, without a credential"
    injected = replace(passed, outcome=Outcome.INJECT, credentials=("openai",))
    told = shown(Numbered(1, injected), sees)
    assert (told["words"], told["credentials"]) == ("allowed, credential injected", ["openai"])


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Repeated(1.0, "decision", OWN, "acme", Reason.HOST_NOT_ALLOWED, 40, 0.0), "40 more times: no rule"),
        (ALARM, "this credential may not be sent"),
        (
            SessionEvent(1.0, SessionChange.REVOKED, OWN, "acme", "agent", "default", "alice", "leaked"),
            "session revoked, by alice",
        ),
        (
            ApprovalEvent(
                1.0, ApprovalChange.APPROVED, "apr_1", "r", OWN, "acme", "agent", "default", "push", (),
                "POST", "https://github.com", "/x", "alice", 0.0,
            ),
            "approval approved, by alice",
        ),
        (PolicyEvent(1.0, "default", "ab" * 32, loaded=False, detail="line 3"), "policy default refused"),
        (DaemonEvent(1.0, "audit_truncated", "2 records"), "daemon: audit truncated"),
    ],
)  # fmt: skip
def test_everything_else_is_a_note_in_plain_words(event: Event, words: str) -> None:
    """With who did it, where somebody did."""
    told = shown(Numbered(1, event), sees)
    assert told["kind"] == "note" and words in told["words"]


def test_a_shadow_difference_says_both_answers() -> None:
    """What is so, and what would be."""
    event = ShadowDifference(
        1.0, OWN, "acme", "default", "", Comparison.ALLOWS, "GET", "https://x.example", "/", "no", "yes", 3
    )
    told = shown(Numbered(1, event), sees)
    assert (told["kind"], told["active"], told["candidate"], told["unrecorded"]) == ("shadow", "no", "yes", 3)


def test_a_stolen_handles_owner_is_not_named_to_another_tenant() -> None:
    """The record says from which session: an id that is none of the reader's business."""
    detail = f"handle x of session {OTHER}, used by session {OWN}"
    hidden = f"handle x of session another tenant's, used by session {OWN}"
    stolen = replace(DENIED, reason=Reason.HANDLE_STOLEN, detail=detail)
    group = AlarmGroup("acme", OWN, Reason.HANDLE_STOLEN, "", 1.0, 1.0, 1, detail, "")
    assert only_own(detail, sees) == hidden
    assert shown(Numbered(1, stolen), sees)["detail"] == hidden
    assert shown(Numbered(1, replace(ALARM, detail=detail)), sees)["detail"] == hidden
    assert shown_alarm(group, sees)["detail"] == hidden


def test_an_id_tells_events_apart_and_nothing_else() -> None:
    """Not how many others there were in between."""
    first, again, second = (shown(Numbered(number, DENIED), sees)["id"] for number in (7, 7, 8))
    assert first == again != second and len(first) == 18
