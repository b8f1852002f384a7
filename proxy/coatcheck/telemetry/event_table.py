"""What each sink makes of each kind of event: one row for each kind, so that a new event is a new row.

A sink has no list of events of its own: it looks up its column here, where `None` means that the event is not
for it. An audit record has the fields of the event's class, in their order.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Literal, NamedTuple

from coatcheck.decision.denial import EXPLANATIONS, Reason
from coatcheck.telemetry.audit import ocsf_classes
from coatcheck.telemetry.events import (
    Alarm,
    ApprovalChange,
    ApprovalEvent,
    Completion,
    DaemonEvent,
    Decision,
    Event,
    Inspected,
    Outcome,
    PolicyEvent,
    Repeated,
    SandboxEvent,
    SessionChange,
    SessionEvent,
    ShadowDifference,
    SlowDecision,
    Usage,
)

FAIL_CLOSED = frozenset(
    {
        Reason.POLICY_MISSING,
        Reason.PLANE_CANNOT,
        Reason.CAPACITY,
        Reason.SECRET_UNAVAILABLE,
        Reason.SECRET_MISSING,
        Reason.SECRET_UNUSABLE,
        Reason.TOO_MANY_SECRETS,
        Reason.AUDIT_UNAVAILABLE,
        Reason.SHARED_STATE_SILENT,
        Reason.INTERNAL_ERROR,
    }
)
"""Refusals that are about us, not about what was asked: an operator is woken for these."""


type Metric = Literal[
    "decisions_total",
    "fail_closed_total",
    "aborted_total",
    "alarms_total",
    "session_changes_total",
    "approvals_total",
    "policy_loads_total",
    "policy_info",
    "bytes_total",
    "scrubbed_total",
    "added_latency_seconds",
    "slow_decisions_total",
]
"""What events move; `metrics/table.py` says what each is. Other metrics are read at a scrape, or counted by
a method of `Metrics`."""
type Count = Callable[[Metric, tuple[object, ...], float], None]
"""Add an amount to a metric, under its labels; or observe it."""


class Line(NamedTuple):
    """One line of the log: `message` with `arguments` in the place of its `%s`."""

    level: int
    message: str
    arguments: tuple[object, ...]


class Logged[E](NamedTuple):
    """How an event is written to the log."""

    least: int
    """The lowest level of its lines."""
    line: Callable[[E], Line | None]
    most: int | None = None
    """The highest level of its lines; None: all have the same. Where not even that is written, no line is put
    together."""


class Use(Enum):
    """What an event means for the usage of its session."""

    REQUEST = auto()
    COMPLETION = auto()
    SESSION = auto()
    """It opens, or ends."""


type Shown = dict[str, Any]
"""One event for the page's scripts: `kind` is `verdict`, `note` or `shadow`."""
type Own = Callable[[str], str]
"""A text without the ids of sessions that the viewer may not see."""


class Delivered(NamedTuple):
    """An event as the webhook names it."""

    name: str
    """The value of `Coatcheck-Event`."""
    about: str
    """For the log, if it was not taken."""


@dataclass(frozen=True, slots=True)
class Row[E]:
    """All that is told of one kind of event."""

    of: type[E]
    kind: str
    """`type` of its audit record; `coatcheck.KIND` is its OTLP name."""
    log: Logged[E] | None
    ocsf: Callable[[ocsf_classes.Record], ocsf_classes.Event]
    """Its audit record in the class of OCSF that it belongs to."""
    page: Callable[[E, Own], Shown] | None
    """What the page shows."""
    kept_for_page: Callable[[E], bool]
    """Whether this one is shown among the latest events."""
    otlp_level: Callable[[E], int | None]
    """The level (of `logging`) of its OTLP log record; None: there is none."""
    subject: str
    """The field that stands behind the kind in that record's body; empty: none."""
    metrics: Callable[[Count, E], None] | None
    """Which metrics it moves, and by how much."""
    usage: Use | None
    webhook: Callable[[E], Delivered] | None


def table(rows: Iterable[Row[Any]], events: Iterable[type]) -> dict[type, Row[Any]]:
    """The rows by event. TypeError when an event has none, or two."""
    made: dict[type, Row[Any]] = {}
    for row in rows:
        if row.of in made:
            raise TypeError(f"{row.of.__name__} has two rows in the table of events")
        made[row.of] = row
    if missing := [each.__name__ for each in events if each not in made]:
        raise TypeError(f"{', '.join(missing)} has no row in the table of events")
    return made


# --- what several rows share -------------------------------------------------------------------------


def _always(_: object) -> bool:
    return True


def _info(_: object) -> int:
    return logging.INFO


def _nothing(_: object) -> None:
    """No OTLP log record: a request is a span, made of its verdict and its end."""


def _whose(tenant: str, session: str, credential: str = "") -> str:
    """Only what is known: a connection of no session has none of these, a misplaced handle no credential."""
    known = (("tenant", tenant), ("session", session), ("credential", credential))
    return " ".join(f"{word} {name}" for word, name in known if name) or "no session"


def _note(words: str, session: str, tenant: str, topic: str, detail: str = "") -> Shown:
    return {
        "kind": "note",
        "topic": topic,
        "words": words,
        "detail": detail,
        "session": session,
        "tenant": tenant,
    }


# --- requests ----------------------------------------------------------------------------------------

_OUTCOMES: Final = {
    Outcome.PASS: "allowed, without a credential",
    Outcome.INJECT: "allowed, credential injected",
}


def _decision_line(event: Decision) -> Line:
    said = (event.outcome.value, event.reason or "-", event.method, event.destination, event.path)
    return Line(logging.DEBUG, "%s %s %s %s%s", said)


def _decision_shown(event: Decision, own: Own) -> Shown:
    return {
        "kind": "verdict",
        "outcome": event.outcome.value,
        "words": EXPLANATIONS[event.reason].message if event.reason else _OUTCOMES[event.outcome],
        "reason": event.reason.value if event.reason else "",
        "detail": own(event.detail),
        "alarm": event.alarm,
        "session": event.session,
        "tenant": event.tenant,
        "subject": event.subject,
        "rule": event.rule,
        "credentials": list(event.credentials),
        "method": event.method,
        "url": event.destination + event.path,
        "approver": event.approved_by,
        "request": event.request_id,
    }


def _decision_counted(count: Count, event: Decision) -> None:
    count("decisions_total", (event.outcome, event.reason), 1)
    count("added_latency_seconds", (), event.added_seconds)
    if event.reason in FAIL_CLOSED:
        count("fail_closed_total", (event.reason,), 1)


def _completion_counted(count: Count, event: Completion) -> None:
    count("bytes_total", ("up",), event.bytes_up)
    count("bytes_total", ("down",), event.bytes_down)
    if event.scrubbed:
        count("scrubbed_total", (), event.scrubbed)
    if event.aborted is not None:
        count("aborted_total", (event.aborted,), 1)


def _alarm_line(event: Alarm) -> Line:
    whose = _whose(event.tenant, event.session, event.credential)
    return Line(logging.WARNING, "alarm %s: %s: %s", (event.reason.value, whose, event.detail))


def _alarm_shown(event: Alarm, own: Own) -> Shown:
    words = EXPLANATIONS[event.reason].message
    return _note(words, event.session, event.tenant, "alarm", own(event.detail))


def _repeated_line(event: Repeated) -> Line | None:
    if event.what != "alarm":
        return None
    said = (event.reason.value, _whose(event.tenant, event.session), event.count)
    return Line(logging.WARNING, "alarm %s: %s: %d more", said)


def _repeated_shown(event: Repeated, _: Own) -> Shown:
    words = f"{event.count} more times: {EXPLANATIONS[event.reason].message}"
    return _note(words, event.session, event.tenant, "repeated")


def _slow_line(event: SlowDecision) -> Line:
    said = (event.request_id, 1000 * event.seconds, _whose(event.tenant, event.session), event.count)
    return Line(logging.WARNING, "request %s took %.1f ms to judge: %s; %d slow since the last word", said)


def _slow_shown(event: SlowDecision, _: Own) -> Shown:
    words = f"judging a request took {1000 * event.seconds:.1f} ms"
    return _note(words, event.session, event.tenant, "slow")


def _approval_line(event: ApprovalEvent) -> Line:
    if event.change is not ApprovalChange.ASKED:
        answered = (event.approval, event.change.value, event.approver)
        return Line(logging.INFO, "approval %s %s %s", answered)
    asked = (
        event.approval, event.tenant, event.session, event.method, event.destination, event.path, event.rule,
    )  # fmt: skip
    if not event.readings:
        return Line(logging.WARNING, "approval %s asked: %s/%s wants %s %s%s by rule %s", asked)
    said = (*asked, "; ".join(event.readings))
    return Line(logging.WARNING, "approval %s asked: %s/%s wants %s %s%s by rule %s (also: %s)", said)


def _approval_shown(event: ApprovalEvent, _: Own) -> Shown:
    by = f", by {event.approver}" if event.approver else ""
    also = f" (also: {'; '.join(event.readings)})" if event.readings else ""
    what = f"{event.method} {event.destination}{event.path}{also}"
    return _note(f"approval {event.change.value}{by}", event.session, event.tenant, "approval", what)


def _shadow_line(event: ShadowDifference) -> Line:
    said = (
        event.change.value, event.policy, event.method, event.destination, event.path, event.active,
        event.candidate,
    )  # fmt: skip
    return Line(logging.INFO, "shadow %s: policy %s %s %s%s: now %s; candidate %s", said)


def _shadow_shown(event: ShadowDifference, _: Own) -> Shown:
    return {
        "kind": "shadow",
        "session": event.session,
        "tenant": event.tenant,
        "policy": event.policy,
        "change": event.change.value,
        "method": event.method,
        "url": event.destination + event.path,
        "active": event.active,
        "candidate": event.candidate,
        "unrecorded": event.unrecorded,
    }


# --- sessions and sandboxes --------------------------------------------------------------------------

_CHANGES: Final = {
    SessionChange.OPENED: "session opened",
    SessionChange.REVOKED: "session revoked",
    SessionChange.LAPSED: "lease was not renewed: session over",
    SessionChange.EXPIRED: "session reached its maximum age",
    SessionChange.ENDED: "session ended",
    SessionChange.HANDLE_REVOKED: "handle revoked",
    SessionChange.CREDENTIAL_REVOKED: "credential taken from the session",
    SessionChange.REBOUND: "session rebound: handles from before are refused",
}
_QUIET: Final = frozenset({SessionChange.RENEWED, SessionChange.HANDLE_MINTED})
"""They happen to every session again and again, and change nothing for a person who watches."""


def _session_line(event: SessionEvent) -> Line:
    return Line(logging.DEBUG, "session %s %s by %s", (event.session, event.change.value, event.caller))


def _session_shown(event: SessionEvent, own: Own) -> Shown:
    words = f"{_CHANGES.get(event.change, event.change.value)}, by {event.caller}"
    return _note(words, event.session, event.tenant, "session", own(event.detail))


def _session_level(event: SessionEvent) -> int | None:
    """Every lease is renewed twice a minute: that is in the audit log and in the metrics."""
    return None if event.change is SessionChange.RENEWED else logging.INFO


def _sandbox_line(event: SandboxEvent) -> Line:
    said = (event.sandbox, event.change.value, event.backend, event.isolation, event.ending, event.detail)
    return Line(logging.INFO, "sandbox %s %s %s (%s) %s %s", said)


def _inspected_line(event: Inspected) -> Line:
    if event.result == "found":
        found = (event.sandbox, event.findings)
        return Line(logging.CRITICAL, "inspection of sandbox %s found secrets in it: %d findings", found)
    said = (event.sandbox, event.result, event.bytes)
    return Line(logging.INFO, "inspection of sandbox %s: %s, %d bytes", said)


# --- the daemon --------------------------------------------------------------------------------------


def _policy_line(event: PolicyEvent) -> Line:
    if event.loaded:
        return Line(logging.INFO, "policy %s loaded, sha256 %s %s", (event.name, event.sha256, event.detail))
    return Line(logging.ERROR, "policy %s refused, the old one stays: %s", (event.name, event.detail))


def _policy_shown(event: PolicyEvent, _: Own) -> Shown:
    words = f"policy {event.name} {'in force' if event.loaded else 'refused, the old one stays'}"
    return _note(words, "", "", "policy", event.detail or event.sha256[:16])


def _policy_counted(count: Count, event: PolicyEvent) -> None:
    count("policy_loads_total", ("loaded" if event.loaded else "refused",), 1)
    if event.loaded:
        count("policy_info", (event.name, event.sha256), 1)


def _daemon_line(event: DaemonEvent) -> Line:
    return Line(logging.INFO, "%s %s", (event.what, event.detail))


def _daemon_shown(event: DaemonEvent, _: Own) -> Shown:
    return _note(f"daemon: {event.what.replace('_', ' ')}", "", "", "daemon", event.detail)


# --- the table ---------------------------------------------------------------------------------------

TABLE: Final[Mapping[type, Row[Any]]] = table(
    (
        Row(
            of=Decision,
            kind="decision",
            log=Logged(logging.DEBUG, _decision_line),
            ocsf=ocsf_classes.decision,
            page=_decision_shown,
            kept_for_page=_always,
            otlp_level=_nothing,
            subject="reason",
            metrics=_decision_counted,
            usage=Use.REQUEST,
            webhook=None,
        ),
        Row(
            of=Completion,
            kind="completion",
            log=None,
            ocsf=ocsf_classes.completion,
            page=None,
            kept_for_page=_always,
            otlp_level=_nothing,
            subject="",
            metrics=_completion_counted,
            usage=Use.COMPLETION,
            webhook=None,
        ),
        Row(
            of=Alarm,
            kind="alarm",
            log=Logged(logging.WARNING, _alarm_line),
            ocsf=ocsf_classes.alarm,
            page=_alarm_shown,
            kept_for_page=_always,
            otlp_level=lambda _: logging.WARNING,
            subject="reason",
            metrics=lambda count, event: count("alarms_total", (event.reason,), 1),
            usage=None,
            webhook=None,
        ),
        Row(
            of=Repeated,
            kind="repeated",
            log=Logged(logging.WARNING, _repeated_line),
            ocsf=ocsf_classes.repeated,
            page=_repeated_shown,
            kept_for_page=_always,
            otlp_level=lambda event: logging.WARNING if event.what == "alarm" else logging.INFO,
            subject="reason",
            metrics=None,
            usage=None,
            webhook=None,
        ),
        Row(
            of=ApprovalEvent,
            kind="approval",
            log=Logged(logging.INFO, _approval_line, most=logging.WARNING),
            ocsf=ocsf_classes.base,
            page=_approval_shown,
            kept_for_page=lambda event: event.change is not ApprovalChange.ASKED,  # it is shown as waiting
            otlp_level=_info,
            subject="change",
            metrics=lambda count, event: count("approvals_total", (event.change,), 1),
            usage=None,
            # A sandbox and an approval can both be `refused`: one name each.
            webhook=lambda event: Delivered(f"approval_{event.change}", event.approval),
        ),
        Row(
            of=ShadowDifference,
            kind="shadow",
            log=Logged(logging.INFO, _shadow_line),
            ocsf=ocsf_classes.base,
            page=_shadow_shown,
            kept_for_page=_always,
            otlp_level=_info,
            subject="change",
            metrics=None,  # requests that are compared are counted, and not only those that differ
            usage=None,
            webhook=None,
        ),
        Row(
            of=SessionEvent,
            kind="session",
            log=Logged(logging.DEBUG, _session_line),
            ocsf=ocsf_classes.session,
            page=_session_shown,
            kept_for_page=lambda event: event.change not in _QUIET,
            otlp_level=_session_level,
            subject="change",
            metrics=lambda count, event: count("session_changes_total", (event.change,), 1),
            usage=Use.SESSION,
            webhook=None,
        ),
        Row(
            of=Usage,
            kind="usage",
            log=None,
            ocsf=ocsf_classes.base,
            page=None,
            kept_for_page=_always,
            otlp_level=_info,
            subject="",
            metrics=None,
            usage=None,
            webhook=None,
        ),
        Row(
            of=SandboxEvent,
            kind="sandbox",
            log=Logged(logging.INFO, _sandbox_line),
            ocsf=ocsf_classes.sandbox,
            page=None,  # which lists the sandboxes themselves
            kept_for_page=_always,
            otlp_level=_info,
            subject="change",
            metrics=None,
            usage=None,
            webhook=lambda event: Delivered(event.change.value, event.sandbox or "nothing"),
        ),
        Row(
            of=SlowDecision,
            kind="slow_decision",
            log=Logged(logging.WARNING, _slow_line),
            ocsf=ocsf_classes.slow_decision,
            page=_slow_shown,
            kept_for_page=_always,
            otlp_level=lambda _: logging.WARNING,
            subject="request_id",
            metrics=lambda count, event: count("slow_decisions_total", (), event.count),
            usage=None,
            webhook=None,
        ),
        Row(
            of=Inspected,
            kind="inspection",
            log=Logged(logging.INFO, _inspected_line, most=logging.CRITICAL),
            ocsf=ocsf_classes.inspection,
            page=None,
            kept_for_page=_always,
            otlp_level=lambda event: logging.CRITICAL if event.result == "found" else logging.INFO,
            subject="result",
            metrics=None,
            usage=None,
            webhook=None,
        ),
        Row(
            of=PolicyEvent,
            kind="policy",
            log=Logged(logging.INFO, _policy_line, most=logging.ERROR),
            ocsf=ocsf_classes.policy,
            page=_policy_shown,
            kept_for_page=_always,
            otlp_level=lambda event: logging.INFO if event.loaded else logging.ERROR,
            subject="",
            metrics=_policy_counted,
            usage=None,
            webhook=None,
        ),
        Row(
            of=DaemonEvent,
            kind="daemon",
            log=Logged(logging.INFO, _daemon_line),
            ocsf=ocsf_classes.daemon,
            page=_daemon_shown,
            kept_for_page=_always,
            otlp_level=_info,
            subject="what",
            metrics=None,
            usage=None,
            webhook=None,
        ),
    ),
    Event.__value__.__args__,
)
"""By the event's class."""
