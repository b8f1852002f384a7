"""Gauges that nobody keeps up to date: they are read from their owners when somebody scrapes."""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coatcheck import __version__
from coatcheck.telemetry.audit.record import KINDS
from coatcheck.telemetry.metrics.table import METRICS

_log = logging.getLogger(__name__)

NAMES = 1000
"""Policies and credentials that are exported at most: beyond, a scrape costs more than it tells."""


def _unknown() -> float:
    return math.nan


def _none() -> dict[str, float]:
    return {}


@dataclass(slots=True)
class Pulled:
    """Where the gauges come from. The composition root sets each callable; it must be quick and thread-safe.

    One that raises is NaN in the scrape: a wrong number would be worse. One that was never set has its
    default.
    """

    sessions: Callable[[], float] = _unknown
    active_connections: Callable[[], float] = _unknown
    approvals_waiting: Callable[[], float] = _unknown
    warm_pool: Callable[[], Mapping[str, float]] = _none
    """How many there are, by state; empty where there is no pool."""
    ca_expiry: Callable[[], float] = _unknown
    """Unix time, seconds."""
    breaker_open: Callable[[], bool] = lambda: False
    secret_ages: Callable[[], Mapping[str, float]] = _none
    """Seconds by credential name; names that `credentials` does not hold are left out."""
    credentials: Callable[[], Collection[str]] = _none
    """The names of all credentials in force: the closed set for that label."""
    audit_counts: Callable[[], Mapping[str, int]] = dict
    checkpoint_failures: Callable[[], int] = int
    policy_refused: Callable[[], bool] = lambda: False
    bundle_version: Callable[[], int | None] = lambda: None
    """Of the signed bundle in force; None where there is none, and then nothing is exported."""
    owed: Callable[[], int | None] = lambda: None
    """Of what was taken here, what a fleet's other daemons must still be told; None: there are none."""
    otel_counts: Callable[[], Mapping[tuple[str, str], int]] = dict
    """By signal and what became of it; empty, and not exported, where no collector is configured."""
    policies: dict[str, str] = field(default_factory=dict)
    """SHA-256 by name, of the policies in force."""

    def policy_loaded(self, name: str, sha256: str) -> None:
        """Policy `name` is in force with this hash, instead of any earlier one."""
        if name in self.policies or len(self.policies) < NAMES:
            self.policies = {**self.policies, name: sha256}

    def policies_in_force(self, policies: Mapping[str, str]) -> None:
        """Exactly these are in force: those whose file is gone leave the scrape."""
        self.policies = dict(list(policies.items())[:NAMES])


class PulledCollector(Collector):
    """Asks `Pulled` at each scrape."""

    def __init__(self, pulled: Pulled) -> None:
        self._pulled = pulled

    def collect(self) -> Iterator[Metric]:
        pulled = self._pulled
        yield _gauge("sessions", _read(pulled.sessions, math.nan))
        yield _gauge("approvals_waiting", _read(pulled.approvals_waiting, math.nan))
        owed = _read(pulled.owed, None)
        yield _gauges("shared_state_owed", [] if owed is None else [((), float(owed))])
        yield _gauge("active_connections", _read(pulled.active_connections, math.nan))
        standing_by: Mapping[str, float] = {}
        pool = _read(pulled.warm_pool, standing_by)
        yield _gauges("warm_pool", [((state,), count) for state, count in pool.items()])
        yield _gauge("ca_expiry_timestamp_seconds", _read(pulled.ca_expiry, math.nan))
        yield _gauge("vault_breaker_open", _read(pulled.breaker_open, math.nan))
        no_ages: Mapping[str, float] = {}
        no_names: Collection[str] = ()
        ages, known = _read(pulled.secret_ages, no_ages), frozenset(_read(pulled.credentials, no_names))
        credentials = [(name, age) for name, age in ages.items() if name in known][:NAMES]
        yield _gauges("secret_age_seconds", [((name,), age) for name, age in credentials])
        yield _gauges("policy_info", [((name, sha256), 1.0) for name, sha256 in pulled.policies.items()])
        yield _gauge("policy_refused", _read(pulled.policy_refused, math.nan))
        version = _read(pulled.bundle_version, None)
        yield _gauges("policy_bundle_version", [] if version is None else [((), float(version))])
        yield _gauges("build_info", [((__version__,), 1.0)])
        no_counts: Mapping[str, int] = {}
        counts = _read(pulled.audit_counts, no_counts)
        records = _counter("audit_records_total")
        for kind in sorted(KINDS):
            records.add_metric([kind], counts.get(kind, 0))
        yield records
        no_items: Mapping[tuple[str, str], int] = {}
        items = _counter("otel_items_total")
        for labels, count in sorted(_read(pulled.otel_counts, no_items).items()):
            items.add_metric(labels, count)
        yield items
        missed = _counter("audit_checkpoint_failures_total")
        missed.add_metric([], _read(pulled.checkpoint_failures, math.nan))
        yield missed


def _read[V](source: Callable[[], V], otherwise: V) -> V:
    try:
        return source()
    except Exception as error:  # noqa: BLE001 - one broken source must not take the whole scrape away
        _log.warning("a metric could not be read (%s)", type(error).__name__)
        return otherwise


def _gauge(name: str, value: float) -> Metric:
    return _gauges(name, [((), value)])


def _gauges(name: str, values: list[tuple[tuple[str, ...], float]]) -> Metric:
    doc = METRICS[name]
    family = GaugeMetricFamily(doc.name, doc.help, labels=doc.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _counter(name: str) -> CounterMetricFamily:
    doc = METRICS[name]
    return CounterMetricFamily(doc.name, doc.help, labels=doc.labels)
