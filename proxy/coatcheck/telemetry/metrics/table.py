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
        _row(
            _H,
            "added_latency_seconds",
            "Seconds from a request's head to its verdict, including the fetch of its secret.",
        ),
        _row(_C, "fail_closed_total", "Requests refused because Coatcheck itself could not act.", "reason"),
        _row(_C, "aborted_total", "Forwarded requests that were cut off before their end.", "reason"),
        _row(
            _C,
            "alarms_total",
            "Handles that were stolen, misplaced, used elsewhere, or found in bodies.",
            "reason",
        ),
        _row(_C, "scrubbed_total", "Echoes of secrets that were redacted from responses."),
        _row(_C, "bytes_total", "Body bytes of forwarded requests (up) and responses (down).", "direction"),
        _row(
            _C,
            "session_changes_total",
            "Changes of sessions: opened, renewed, revoked, lapsed and others.",
            "change",
        ),
        _row(
            _H,
            "revocation_seconds",
            "Seconds from a revocation to the cut of the last connection that depended on it.",
            "what",
        ),
        _row(_C, "approvals_total", "Requests that needed approval, by outcome.", "change"),
        _row(
            _C,
            "policy_loads_total",
            "Loads of policies: accepted, or refused with the old one kept.",
            "result",
        ),
        _row(_C, "slow_decisions_total", "Requests that took more than 5 ms to judge."),
        _row(_C, "shadow_requests_total", "Requests judged by candidate policies, by result.", "result"),
        _row(_C, "audit_records_total", "Records that this process wrote to the audit log.", "type"),
        _row(_C, "audit_failures_total", "Audit records that could not be written; each refused a request."),
        _row(
            _C,
            "audit_checkpoint_failures_total",
            "Checkpoints that could not be written to the second place.",
        ),
        _row(
            _C,
            "telemetry_failures_total",
            "Events that a sink other than the audit log could not process.",
            "sink",
        ),
        _row(
            _C,
            "otel_items_total",
            "Spans and log records for the OpenTelemetry collector, by outcome; absent without a collector.",
            "signal",
            "outcome",
        ),
        _row(
            _C,
            "dns_questions_total",
            "DNS questions of sandboxes, by type and outcome; none is forwarded.",
            "type",
            "outcome",
        ),
        _row(_C, "vault_fetch_failures_total", "Secrets that could not be fetched.", "kind"),
        _row(_G, "vault_breaker_open", "1 while the circuit breaker keeps requests from the secret store."),
        _row(
            _G,
            "secret_age_seconds",
            "Seconds since the secret in memory was read from its store.",
            "credential",
        ),
        _row(_G, "sessions", "Live sessions."),
        _row(_G, "approvals_waiting", "Requests that wait for approval at this daemon now."),
        _row(
            _G, "shared_state_owed", "Revocations that the fleet does not know yet; absent without a fleet."
        ),
        _row(_G, "active_connections", "Client connections open now."),
        _row(_G, "warm_pool", "Machines in the warm pool: starting, or ready.", "state"),
        _row(_G, "policy_info", "1 for each policy in force, by name and SHA-256.", "name", "hash"),
        _row(_G, "policy_refused", "1 while the newest policy files are refused and older ones serve."),
        _row(
            _G,
            "policy_bundle_version",
            "Version of the signed policy bundle in force; absent without a bundle.",
        ),
        _row(_G, "ca_expiry_timestamp_seconds", "When the CA certificate expires, in Unix time."),
        _row(_G, "build_info", "Always 1; the label is the running version.", "version"),
    )
}


def describe() -> tuple[MetricDoc, ...]:
    """All metrics, in the order in which people should read them."""
    return tuple(METRICS.values())
