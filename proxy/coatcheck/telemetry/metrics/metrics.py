"""Prometheus metrics: a function of an event, and gauges that are read when somebody scrapes.

Label values come from closed sets only, by construction: our own enumerations, and names that the
policy holds. Nothing that a sandbox says becomes a label, or it could grow our memory (I9).
"""

from collections.abc import Callable, Collection
from enum import StrEnum

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.process_collector import ProcessCollector

from coatcheck.decision.comparison import Comparison
from coatcheck.decision.denial import Reason
from coatcheck.telemetry.event_table import FAIL_CLOSED, TABLE, Metric
from coatcheck.telemetry.events import ApprovalChange, Event, Outcome, Revocation, SessionChange
from coatcheck.telemetry.metrics.pulled import Pulled, PulledCollector
from coatcheck.telemetry.metrics.table import LATENCY_BUCKETS, METRICS, REVOCATION_BUCKETS

CONTENT_TYPE = CONTENT_TYPE_LATEST


class FetchFailure(StrEnum):
    """Why a secret could not be fetched."""

    UNAVAILABLE = "unavailable"
    UNREACHABLE = "unreachable"
    DENIED = "denied"
    BUSY = "busy"
    MISSING = "missing"


class DnsOutcome(StrEnum):
    """What became of a DNS question."""

    ANSWERED = "answered"
    NO_DATA = "no_data"
    MALFORMED = "malformed"
    OVERSIZED = "oversized"
    LIMITED = "limited"


DNS_TYPES = frozenset(
    {"A", "AAAA", "ANY", "CNAME", "HTTPS", "MX", "NS", "PTR", "SOA", "SRV", "SVCB", "TXT", "other", ""}
)
"""What a question may ask for by name here; empty where it got no answer and nobody looked."""


class Sink(StrEnum):
    """Where an event goes after the audit log."""

    METRICS = "metrics"
    USAGE = "usage"
    LOG = "log"
    OTEL = "otel"
    RECENT = "recent"
    """What the page shows."""
    WEBHOOK = "webhook"


class _Labelled:
    """A counter whose children are kept: prometheus_client's `labels()` alone takes 2 µs.

    `closed` holds, for each label, the values that it may have. ValueError for any other.
    """

    __slots__ = ("_children", "_closed", "_counter")

    def __init__(self, counter: Counter, *closed: Collection[object]) -> None:
        self._counter = counter
        self._closed = closed
        self._children: dict[tuple[object, ...], Counter] = {}

    def child(self, *values: object) -> Counter:
        try:
            return self._children[values]
        except KeyError:
            return self._make(values)

    def _make(self, values: tuple[object, ...]) -> Counter:
        for value, allowed in zip(values, self._closed, strict=True):
            if value not in allowed:
                raise ValueError(f"{value!r} is not in the closed set of a label")
        child = self._counter.labels(*("" if value is None else str(value) for value in values))
        self._children[values] = child
        return child

    def start_at_zero(self, *values: object) -> None:
        """Export the child before its first event: `increase()` misses a counter that begins at 1."""
        self.child(*values)


class Metrics:
    """All metrics, in a registry of their own. `metrics(event)` counts; `render()` is what is scraped.

    Thread-safe. `pulled` holds the callables behind the gauges; each may be set at any time.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # half of all series, and nobody reads them
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self.pulled = Pulled()
        self._registry.register(PulledCollector(self.pulled))
        optional_reasons = (None, *Reason)
        self._decisions = _Labelled(self._counter("decisions_total"), Outcome, optional_reasons)
        self._fail_closed = _Labelled(self._counter("fail_closed_total"), FAIL_CLOSED)
        self._aborted = _Labelled(self._counter("aborted_total"), Reason)
        self._alarms = _Labelled(self._counter("alarms_total"), Reason)
        self._changes = _Labelled(self._counter("session_changes_total"), SessionChange)
        self._approvals = _Labelled(self._counter("approvals_total"), ApprovalChange)
        self._slow = self._counter("slow_decisions_total")
        self._loads = _Labelled(self._counter("policy_loads_total"), ("loaded", "refused"))
        self._failures = _Labelled(self._counter("telemetry_failures_total"), Sink)
        self._questions = _Labelled(self._counter("dns_questions_total"), DNS_TYPES, DnsOutcome)
        self._fetches = _Labelled(self._counter("vault_fetch_failures_total"), FetchFailure)
        self._compared = _Labelled(self._counter("shadow_requests_total"), Comparison)
        self._bytes = _Labelled(self._counter("bytes_total"), ("up", "down"))
        self._scrubbed = self._counter("scrubbed_total")
        self._audit_failures = self._counter("audit_failures_total")
        doc = METRICS["added_latency_seconds"]
        self._latency = Histogram(doc.name, doc.help, buckets=LATENCY_BUCKETS, registry=self._registry)
        doc = METRICS["revocation_seconds"]
        revocations = Histogram(
            doc.name, doc.help, doc.labels, buckets=REVOCATION_BUCKETS, registry=self._registry
        )
        self._revocations = {what: revocations.labels(what) for what in Revocation}
        self._moves: dict[tuple[Metric, tuple[object, ...]], Callable[[float], None]] = {}
        """As many as there are children: the labels are of closed sets."""
        self._start_at_zero()

    def _counter(self, name: str) -> Counter:
        doc = METRICS[name]
        return Counter(doc.name, doc.help, doc.labels, registry=self._registry)

    def _start_at_zero(self) -> None:
        self._decisions.start_at_zero(Outcome.PASS, None)
        self._decisions.start_at_zero(Outcome.INJECT, None)
        for reason in Reason:
            self._decisions.start_at_zero(Outcome.DENY, reason)
            self._aborted.start_at_zero(reason)
            self._alarms.start_at_zero(reason)
        for reason in FAIL_CLOSED:
            self._fail_closed.start_at_zero(reason)
        for failure in FetchFailure:
            self._fetches.start_at_zero(failure)
        for kind in ("A", "AAAA"):
            self._questions.start_at_zero(kind, DnsOutcome.ANSWERED)
        for outcome in (DnsOutcome.MALFORMED, DnsOutcome.OVERSIZED, DnsOutcome.LIMITED):
            self._questions.start_at_zero("", outcome)
        for comparison in Comparison:
            self._compared.start_at_zero(comparison)
        for sink in Sink:
            self._failures.start_at_zero(sink)
        for change in SessionChange:
            self._changes.start_at_zero(change)
        for answer in ApprovalChange:
            self._approvals.start_at_zero(answer)
        for result in ("loaded", "refused"):
            self._loads.start_at_zero(result)
        for direction in ("up", "down"):
            self._bytes.start_at_zero(direction)

    def __call__(self, event: Event) -> None:
        """Count `event`. ValueError when a label value is outside its closed set."""
        count = TABLE[type(event)].metrics
        if count is not None:
            count(self._count, event)

    def _count(self, name: Metric, labels: tuple[object, ...], amount: float) -> None:
        try:
            move = self._moves[name, labels]
        except KeyError:
            if name == "policy_info":  # a gauge, and hashes are no closed set
                self.pulled.policy_loaded(*map(str, labels))
                return
            move = self._moves[name, labels] = self._move(name, labels)
        move(amount)

    def _move(self, name: Metric, labels: tuple[object, ...]) -> Callable[[float], None]:
        """What an event moves; ValueError when a label is outside its closed set."""
        match name:
            case "decisions_total":
                return self._decisions.child(*labels).inc
            case "fail_closed_total":
                return self._fail_closed.child(*labels).inc
            case "aborted_total":
                return self._aborted.child(*labels).inc
            case "alarms_total":
                return self._alarms.child(*labels).inc
            case "session_changes_total":
                return self._changes.child(*labels).inc
            case "approvals_total":
                return self._approvals.child(*labels).inc
            case "slow_decisions_total":
                return self._slow.inc
            case "policy_loads_total":
                return self._loads.child(*labels).inc
            case "bytes_total":
                return self._bytes.child(*labels).inc
            case "scrubbed_total":
                return self._scrubbed.inc
            case "added_latency_seconds":
                return self._latency.observe
            case "policy_info":
                raise ValueError("a gauge that is read when somebody scrapes")

    def audit_failed(self) -> None:
        """A record could not be written, and so a request was refused."""
        self._audit_failures.inc()
        self._fail_closed.child(Reason.AUDIT_UNAVAILABLE).inc()

    def sink_failed(self, sink: Sink) -> None:
        """A sink raised; the event is in the audit log all the same."""
        self._failures.child(sink).inc()

    def compared(self, result: Comparison) -> None:
        """A candidate policy judged a request, too."""
        self._compared.child(result).inc()

    def fetch_failed(self, kind: FetchFailure) -> None:
        """A secret could not be fetched."""
        self._fetches.child(kind).inc()

    def dns_asked(self, outcome: DnsOutcome, kind: str) -> None:
        """A sandbox asked for a name; `kind` is the question's type, in letters. Its name is nowhere."""
        self._questions.child(kind, outcome).inc()

    def revoked(self, what: Revocation, seconds: float) -> None:
        """A revocation cut the last connection that depended on it, so long after it was in force."""
        self._revocations[what].observe(seconds)

    def render(self) -> bytes:
        """The text that Prometheus scrapes; its type is CONTENT_TYPE."""
        return generate_latest(self._registry)
