"""What is kept for watchers is bounded, fair to tenants, and told whole or said to be missing something."""

from dataclasses import replace

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.telemetry.events import (
    Alarm,
    Completion,
    Decision,
    Event,
    Outcome,
    Repeated,
    SessionChange,
    SessionEvent,
)
from coatcheck.telemetry.recent import KEPT, MAX_ALARMS, MAX_TENANTS, MAX_TEXT, SLOTS, Recent

DENIED = Decision(
    at=1000.0,
    request_id="r1",
    session="ses_a",
    tenant="acme",
    subject="agent",
    policy="default",
    policy_hash="",
    outcome=Outcome.DENY,
    reason=Reason.HOST_NOT_ALLOWED,
    detail="",
    rule="",
    credentials=(),
    method="GET",
    destination="https://evil.example",
    path="/",
    origin="socket",
    alarm=False,
    added_seconds=0.0,
)
ALARM = Alarm(1000.0, Reason.HANDLE_WRONG_HOST, "ses_a", "acme", "openai", "credential openai")


def everybody(_: str) -> bool:
    return True


def of(tenant: str) -> Decision:
    return replace(DENIED, tenant=tenant)


def test_each_is_told_once_and_in_order() -> None:
    """First what is kept, then what came since; of all tenants by time."""
    recent = Recent()
    for tenant in ("acme", "globex", "acme"):
        recent.put(of(tenant))
    first = recent.after(None, everybody, 10)
    assert [each.event.tenant for each in first.events] == ["acme", "globex", "acme"]  # type: ignore[union-attr]
    assert recent.after(first.next, everybody, 10).events == ()
    recent.put(of("acme"))
    later = recent.after(first.next, everybody, 10)
    assert len(later.events) == 1 and not later.missed


def test_other_tenants_are_not_told_of() -> None:
    """Nor of the daemon's own events, which have no tenant."""
    recent = Recent()
    for tenant in ("acme", "globex", ""):
        recent.put(of(tenant))
        recent.put(replace(ALARM, tenant=tenant))
    own = recent.after(None, "acme".__eq__, 10)
    assert {each.event.tenant for each in own.events} == {"acme"}  # type: ignore[union-attr]
    assert [group.tenant for group in recent.alarms("acme".__eq__)] == ["acme"]
    assert sum(map(sum, recent.pace("acme".__eq__, 1000.0))) == 1


def test_a_flood_of_one_tenant_pushes_out_nothing_of_another() -> None:
    """And it is bounded by itself; a watcher that it outran is told so."""
    recent = Recent()
    recent.put(of("globex"))
    at = recent.last
    for _ in range(3 * KEPT):
        recent.put(of("acme"))
    page = recent.after(at, everybody, 10 * KEPT)
    assert len(page.events) == KEPT and page.missed
    assert len(recent.after(None, "globex".__eq__, 10).events) == 1
    assert not recent.after(recent.last - 1, everybody, 10).missed


def test_the_newest_are_told_where_there_are_too_many_for_one_look() -> None:
    """Somebody who watches wants to see now, not a minute ago."""
    recent = Recent()
    recent.put(DENIED)
    at = recent.last
    for number in range(5):
        recent.put(replace(DENIED, request_id=str(number)))
    page = recent.after(at, everybody, 2)
    assert [each.event.request_id for each in page.events] == ["3", "4"]  # type: ignore[union-attr]
    assert page.missed and page.next == recent.last


def test_tenants_are_bounded() -> None:
    """The one that nothing has happened to for longest is forgotten."""
    recent = Recent()
    for number in range(MAX_TENANTS + 1):
        recent.put(of(f"t{number}"))
    assert recent.after(None, "t0".__eq__, 10).events == ()
    assert len(recent.after(None, everybody, 1000).events) == MAX_TENANTS


def test_what_a_sandbox_writes_is_cut() -> None:
    """A path of kilobytes is the audit log's business."""
    recent = Recent()
    recent.put(replace(DENIED, path="/" + "x" * 9000, detail="y" * 9000, method="M" * 900))
    recent.put(replace(ALARM, detail="z" * 9000))
    kept = [each.event for each in recent.after(None, everybody, 10).events]
    assert isinstance(kept[0], Decision) and isinstance(kept[1], Alarm)
    assert (len(kept[0].path), len(kept[0].detail), len(kept[0].method)) == (MAX_TEXT, MAX_TEXT, 32)
    assert len(kept[1].detail) == MAX_TEXT


@pytest.mark.parametrize(
    "event",
    [
        Completion(1.0, "r", "ses_a", 200, 1, 1, 1.0, 0, None),
        SessionEvent(1.0, SessionChange.RENEWED, "ses_a", "acme", "agent", "default", "launcher"),
    ],
)
def test_what_is_no_news_is_not_kept(event: Event) -> None:
    """A lease that is renewed every minute would push all else out."""
    recent = Recent()
    recent.put(event)
    assert recent.last == 0


def test_alarms_of_one_kind_are_one_group_with_the_request_that_raised_it() -> None:
    """The request is told right before its alarm; repeated ones are counted in."""
    recent = Recent()
    refused = replace(DENIED, reason=Reason.HANDLE_WRONG_HOST, alarm=True, path="/steal")
    for at in (1000.0, 1001.0):
        recent.put(replace(refused, at=at))
        recent.put(replace(ALARM, at=at))
    recent.put(Repeated(1011.0, "alarm", "ses_a", "acme", Reason.HANDLE_WRONG_HOST, 40, 1001.0))
    recent.put(replace(ALARM, credential="github", at=1012.0))
    newest, older = recent.alarms(everybody)
    assert (newest.credential, newest.count, newest.where) == ("github", 1, "")
    assert (older.count, older.first, older.last) == (42, 1000.0, 1011.0)
    assert older.where == "GET https://evil.example/steal"
    told = [type(each.event) for each in recent.after(None, everybody, 10).events]
    assert told == [Decision, Decision, Repeated, Alarm]  # not twice where the refusal says it


def test_a_tenant_with_many_alarms_does_not_hide_those_of_another() -> None:
    """Past the bound its own oldest gives way."""
    recent = Recent()
    recent.put(replace(ALARM, tenant="globex", session="ses_quiet"))
    for number in range(MAX_ALARMS + 50):
        recent.put(replace(ALARM, session=f"ses_{number}"))
    groups = recent.alarms(everybody)
    assert len(groups) == MAX_ALARMS
    assert any(group.session == "ses_quiet" for group in groups)
    assert groups[0].session == f"ses_{MAX_ALARMS + 49}"


def test_the_pace_counts_what_was_allowed_and_refused() -> None:
    """In slots of ten seconds, counted refusals included; what is older than ten minutes is gone."""
    recent = Recent()
    recent.put(replace(DENIED, outcome=Outcome.PASS, reason=None))
    recent.put(DENIED)
    recent.put(Repeated(1005.0, "decision", "ses_a", "acme", Reason.HOST_NOT_ALLOWED, 7, 1001.0))
    pace = recent.pace(everybody, 1012.0)
    assert len(pace) == SLOTS and pace[-2:] == [(1, 8), (0, 0)]
    assert sum(map(sum, recent.pace(everybody, 3000.0))) == 0
    for slot in range(200):
        recent.put(replace(DENIED, at=2000.0 + slot * 10))
    assert sum(map(sum, recent.pace(everybody, 3990.0))) == SLOTS


def test_alarms_of_other_daemons_stand_among_our_own() -> None:
    """The same at two daemons is one, counted together; nobody sees those of other tenants."""
    recent = Recent()
    recent.put(ALARM)
    (here,) = recent.alarms(everybody)
    same = replace(here, first=900.0, last=1100.0, count=4, detail="newer")
    others = replace(here, session="ses_b", tenant="globex", last=1200.0)
    recent.elsewhere = lambda: [same, others]
    assert recent.alarms(everybody) == [others, replace(same, count=5)]
    assert recent.alarms("acme".__eq__) == [replace(same, count=5)]
    assert recent.alarms_here() == [here]
