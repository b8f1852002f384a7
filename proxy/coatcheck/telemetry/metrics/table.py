"""Every metric that Coatcheck exports; docs/reference/metrics.md is generated from this table."""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "coatcheck_"


class Type(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricDoc:
    """One metric. `name` is as scraped; a counter's ends in `_total`."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()


LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
)  # fmt: skip
"""Seconds: from a verdict on a cached handle (~0.1 ms) to a cold secret from a slow Vault."""

REVOCATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds: from one idle connection to a plane that has thousands of them, with I5's bound among them."""

_C, _G, _H = Type.COUNTER, Type.GAUGE, Type.HISTOGRAM


def _row(type_: Type, name: str, text: str, *labels: str) -> MetricDoc:
    return MetricDoc(PREFIX + name, type_, text, labels)


METRICS: dict[str, MetricDoc] = {
    doc.name.removeprefix(PREFIX): doc
    for doc in (
        _row(
            _C, "decisions_total", "Verdicts on requests; reason is empty when allowed.", "outcome", "reason"
        ),
        _row(_H, "added_latency_seconds", "From a request's head to its verdict, secret fetch included."),
        _row(_C, "fail_closed_total", "Refused because Coatcheck itself could not act.", "reason"),
        _row(_C, "aborted_total", "Forwarded requests that were cut off before their end.", "reason"),
        _row(_C, "alarms_total", "Handles stolen, misplaced, elsewhere or found in bodies.", "reason"),
        _row(_C, "scrubbed_total", "Echoes of secrets that were taken out of responses."),
        _row(_C, "bytes_total", "Body bytes of forwarded requests (up) and responses (down).", "direction"),
        _row(_C, "session_changes_total", "Sessions opened, renewed, revoked, lapsed, …", "change"),
        _row(
            _H,
            "revocation_seconds",
            "From a revocation being in force to the last connection that depended on it being cut.",
            "what",
        ),
        _row(_C, "approvals_total", "Requests that somebody was asked about, and what came of it.", "change"),
        _row(_C, "policy_loads_total", "Policies loaded, or refused with the old one kept.", "result"),
        _row(_C, "shadow_requests_total", "Requests that candidate policies judged, too.", "result"),
        _row(_C, "audit_records_total", "Records in the audit log, by this process.", "type"),
        _row(_C, "audit_failures_total", "Records that could not be written; each refused a request."),
        _row(_C, "audit_checkpoint_failures_total", "Checkpoints that missed the second sink."),
        _row(
            _C, "telemetry_failures_total", "Events that a sink other than the audit log failed on.", "sink"
        ),
        _row(
            _C,
            "otel_items_total",
            "Spans and log records for the OpenTelemetry collector, and what became of them; absent without.",
            "signal",
            "outcome",
        ),
        _row(
            _C,
            "dns_questions_total",
            "DNS questions of sandboxes, by type and what became of them; none is ever forwarded.",
            "type",
            "outcome",
        ),
        _row(_C, "vault_fetch_failures_total", "Secrets that could not be fetched.", "kind"),
        _row(_G, "vault_breaker_open", "1 while the breaker keeps requests from the secret store."),
        _row(_G, "secret_age_seconds", "Since the secret in memory was read from its store.", "credential"),
        _row(_G, "sessions", "Live sessions."),
        _row(_G, "approvals_waiting", "Requests that wait for somebody's answer now, at this daemon."),
        _row(_G, "shared_state_owed", "What was revoked here and a fleet does not know; absent without."),
        _row(_G, "active_connections", "Client connections open now."),
        _row(_G, "warm_pool", "Sandboxes that stand by for whoever asks: starting, or ready.", "state"),
        _row(_G, "policy_info", "1 for each policy in force, by name and SHA-256.", "name", "hash"),
        _row(_G, "policy_refused", "1 while the newest policy files are refused and older ones serve."),
        _row(_G, "policy_bundle_version", "Version of the signed policy bundle in force; absent without."),
        _row(_G, "ca_expiry_timestamp_seconds", "When the CA certificate ends, Unix time."),
        _row(_G, "build_info", "1; the version that runs.", "version"),
    )
}


def describe() -> tuple[MetricDoc, ...]:
    """All metrics, in the order in which people should read them."""
    return tuple(METRICS.values())
