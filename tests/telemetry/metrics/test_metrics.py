"""Metrics count what happened, with labels that nobody outside can choose."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coatcheck.decision.denial import Reason
from coatcheck.telemetry.metrics.metrics import FetchFailure, Metrics, Sink
from coatcheck.telemetry.metrics.pulled import NAMES
from coatcheck.telemetry.metrics.table import PREFIX, describe
from tests.telemetry.samples import ALARM, ALL_EVENTS, COMPLETION, DECISION, DENIED, POLICY


def scrape(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return scrape(metrics)[(f"{PREFIX}{name}", frozenset(labels.items()))]


def test_the_table_is_what_is_exported() -> None:
    """Every metric of the table is scraped, under its name, type and labels, and nothing else is."""
    metrics = Metrics()
    for event in ALL_EVENTS:
        metrics(event)
    metrics.pulled.credentials = lambda: ["openai"]
    metrics.pulled.secret_ages = lambda: {"openai": 3.0}
    metrics.pulled.warm_pool = lambda: {"ready": 1.0}
    metrics.pulled.otel_counts = lambda: {("traces", "sent"): 1}
    families = list(text_string_to_metric_families(metrics.render().decode()))
    exported = {f.name: f for f in families if not f.name.startswith("process_")}
    docs = {doc.name.removesuffix("_total"): doc for doc in describe()}
    assert set(exported) == set(docs)
    for name, doc in docs.items():
        family = exported[name]
        assert (family.type, family.documentation) == (doc.type.value, doc.help)
        labels = {key for sample in family.samples for key in sample.labels} - {"le"}
        assert labels == set(doc.labels), name


def test_a_decision_is_counted_by_outcome_and_reason() -> None:
    """Allowed requests have no reason; refusals that are our own fault count as failing closed."""
    metrics = Metrics()
    for event in (DECISION, DECISION, DENIED, replace(DENIED, reason=Reason.SECRET_UNAVAILABLE)):
        metrics(event)
    assert value(metrics, "decisions_total", outcome="inject", reason="") == 2
    assert value(metrics, "decisions_total", outcome="deny", reason="host_not_allowed") == 1
    assert value(metrics, "fail_closed_total", reason="secret_unavailable") == 1
    assert value(metrics, "added_latency_seconds_bucket", le="0.0005") == 4
    assert value(metrics, "added_latency_seconds_bucket", le="0.00025") == 0


def test_completions_alarms_and_failures_are_counted() -> None:
    """Bytes both ways, echoes taken out, aborts, alarms, sinks and fetches that failed."""
    metrics = Metrics()
    metrics(COMPLETION)
    metrics(replace(COMPLETION, aborted=Reason.SESSION_REVOKED))
    metrics(ALARM)
    metrics.audit_failed()
    metrics.sink_failed(Sink.USAGE)
    metrics.fetch_failed(FetchFailure.DENIED)
    assert value(metrics, "bytes_total", direction="up") == 20
    assert value(metrics, "bytes_total", direction="down") == 4000
    assert value(metrics, "scrubbed_total") == 2
    assert value(metrics, "aborted_total", reason="session_revoked") == 1
    assert value(metrics, "alarms_total", reason="handle_stolen") == 1
    assert value(metrics, "fail_closed_total", reason="audit_unavailable") == 1
    assert value(metrics, "telemetry_failures_total", sink="usage") == 1
    assert value(metrics, "vault_fetch_failures_total", kind="denied") == 1


def test_closed_labels_start_at_zero() -> None:
    """A first refusal, and the first stolen handle, is an increase that Prometheus sees."""
    metrics = Metrics()
    for reason in Reason:
        assert value(metrics, "alarms_total", reason=reason.value) == 0
        assert value(metrics, "decisions_total", outcome="deny", reason=reason.value) == 0


def test_a_label_value_from_outside_is_an_error() -> None:
    """What is not in the closed set never becomes a series."""
    metrics = Metrics()
    before = set(scrape(metrics))
    for wrong in (replace(DENIED, reason="made_up"), replace(DENIED, outcome="maybe")):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="closed set"):
            metrics(wrong)
    with pytest.raises(ValueError, match="closed set"):
        metrics.fetch_failed("odd")  # type: ignore[arg-type]
    assert set(scrape(metrics)) == before


def test_series_do_not_grow_with_traffic() -> None:
    """A million hosts, paths and sessions are the same series as one."""
    metrics = Metrics()
    metrics(DECISION)
    before = set(scrape(metrics))
    for number in range(2000):
        metrics(replace(DECISION, destination=f"https://h{number}", path=f"/{number}", session=f"s-{number}"))
    assert set(scrape(metrics)) == before


def test_gauges_are_read_when_scraped() -> None:
    """Sessions, connections, ages and expiry come from their owners; unknown credentials stay out."""
    metrics = Metrics()
    pulled = metrics.pulled
    pulled.sessions, pulled.active_connections = (lambda: 3), (lambda: 4)
    pulled.ca_expiry, pulled.breaker_open = (lambda: 1.8e9), (lambda: True)
    pulled.credentials = lambda: {"openai"}
    pulled.secret_ages = lambda: {"openai": 12.5, "made up by a sandbox": 1.0}
    pulled.audit_counts, pulled.checkpoint_failures = (lambda: {"decision": 9, "odd": 1}), (lambda: 2)
    found = scrape(metrics)
    assert value(metrics, "sessions") == 3 and value(metrics, "active_connections") == 4
    assert value(metrics, "ca_expiry_timestamp_seconds") == 1.8e9
    assert value(metrics, "vault_breaker_open") == 1
    assert value(metrics, "secret_age_seconds", credential="openai") == 12.5
    assert value(metrics, "audit_records_total", type="decision") == 9
    assert value(metrics, "audit_checkpoint_failures_total") == 2
    assert not [key for key in found if "made up" in str(key) or "odd" in str(key)]


def test_a_source_that_fails_is_nan_and_the_rest_is_scraped() -> None:
    """A wrong number would be worse than none, and one broken source does not blind the operator."""
    metrics = Metrics()

    def broken() -> float:
        raise RuntimeError("state is gone")

    def broken_ages() -> Mapping[str, float]:
        raise RuntimeError("state is gone")

    metrics.pulled.sessions, metrics.pulled.secret_ages = broken, broken_ages
    metrics(DECISION)
    assert value(metrics, "sessions") != value(metrics, "sessions")
    assert value(metrics, "decisions_total", outcome="inject", reason="") == 1


def test_only_the_policies_in_force_are_told() -> None:
    """A reload replaces the hash; a refused one does not; a file that is gone leaves; names are bounded."""
    metrics = Metrics()
    metrics(POLICY)
    metrics(replace(POLICY, sha256="ef" * 32))
    metrics(replace(POLICY, sha256="00" * 32, loaded=False))
    infos = [dict(labels) for name, labels in scrape(metrics) if name == f"{PREFIX}policy_info"]
    assert infos == [{"name": "platform", "hash": "ef" * 32}]
    assert value(metrics, "policy_loads_total", result="refused") == 1
    metrics.pulled.policies_in_force({f"p{number}": "aa" for number in range(2 * NAMES)})
    assert len(metrics.pulled.policies) == NAMES
    metrics.pulled.policies_in_force({})
    assert f"{PREFIX}policy_info{{" not in metrics.render().decode()
