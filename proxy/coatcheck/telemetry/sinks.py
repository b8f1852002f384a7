"""Where every event goes, and in which order: the audit log first, and nothing leaves if that fails."""

import logging
from collections.abc import Callable

from coatcheck.platform.outage import Outage
from coatcheck.telemetry.audit.log import AuditLog, AuditUnavailable
from coatcheck.telemetry.events import Event, Repeated
from coatcheck.telemetry.log import log_event
from coatcheck.telemetry.metrics.metrics import Metrics, Sink
from coatcheck.telemetry.otel.otel import OpenTelemetry
from coatcheck.telemetry.recent import Recent
from coatcheck.telemetry.repeats import Repeats
from coatcheck.telemetry.usage import UsageLedger
from coatcheck.telemetry.webhook import Webhook, delivers

_log = logging.getLogger(__name__)


class Telemetry:
    """Emits events. Thread-safe: the plane and the control API have loops of their own."""

    def __init__(
        self,
        audit: AuditLog,
        metrics: Metrics,
        usage: UsageLedger,
        log: Callable[[Event], None] = log_event,
        otel: OpenTelemetry | None = None,
        webhook: Webhook | None = None,
    ) -> None:
        """The caller starts and stops `webhook`."""
        self.audit, self.metrics, self.usage = audit, metrics, usage
        self._write_log = log
        self._outage = Outage()
        self._repeats = Repeats()
        self._webhook = webhook
        self._otel = otel
        if otel is not None:
            metrics.pulled.otel_counts = otel.counts
            otel.start()
        self.recent = Recent()
        metrics.pulled.audit_counts = lambda: audit.counts
        metrics.pulled.checkpoint_failures = lambda: audit.second_sink_failures

    def emit(self, event: Event) -> None:
        """Tell of `event`. AuditUnavailable when it could not be recorded: then the caller refuses with
        `Reason.AUDIT_UNAVAILABLE` and does not emit again, since that could not be recorded either.

        Other sinks never raise: what they miss stands in the audit log. Refusals that repeat are counted
        in the log, not recorded each (`repeats`); metrics and usage see them all.
        """
        recorded = self._repeats.admit(event)
        if recorded:
            self._record(event)
        self._tell(self._repeats.due(event.at))
        self._feed(Sink.METRICS, self.metrics, event)
        self._feed(Sink.USAGE, self._use, event)
        if recorded:
            self._show(event)
        if self._webhook is not None and delivers(type(event)):
            self._feed(Sink.WEBHOOK, self._webhook.put, event)

    def _record(self, event: Event) -> None:
        try:
            self.audit.write(event)
        except AuditUnavailable as error:
            self.metrics.audit_failed()
            if self._outage.noticed():
                _log.critical("requests are refused: %s", error)
            raise
        if self._outage.why is not None and self._outage.over():
            _log.warning("the audit log can be written again")

    def settle(self, at: float) -> None:
        """Tell what has been counted for a while. Call it about once a second. `at`: Unix time."""
        self._tell(self._repeats.due(at))

    def _tell(self, counts: list[Repeated]) -> None:
        for count in counts:
            try:
                self.audit.write(count)
            except AuditUnavailable:
                return  # the log itself tells how many records it has lost
            self._show(count)

    def _show(self, event: Event) -> None:
        """To those who get what the audit log has: refusals that repeat would fill a disk, flood a collector,
        and push all else off the page."""
        self._feed(Sink.LOG, self._write_log, event)
        if self._otel is not None:
            self._feed(Sink.OTEL, self._otel, event)
        self._feed(Sink.RECENT, self.recent.put, event)

    def _use(self, event: Event) -> None:
        for used in self.usage(event):
            self.audit.write(used)

    def _feed[E: Event](self, sink: Sink, take: Callable[[E], None], event: E) -> None:
        try:
            take(event)
        except Exception as error:  # noqa: BLE001 - it is in the audit log: no sink's mistake refuses a request
            self._failed(sink, error)

    def close(self, at: float) -> None:
        """Tell the usage of sessions that have ended and all counts, then close the log. `at`: Unix time."""
        self._tell(self._repeats.due(at, everything=True))
        try:
            for used in self.usage.close(at):
                self.audit.write(used)
        except AuditUnavailable as error:
            self._failed(Sink.USAGE, error)
        self.audit.close()
        if self._otel is not None:
            self._otel.stop()

    def _failed(self, sink: Sink, error: Exception) -> None:
        self.metrics.sink_failed(sink)
        if sink is not Sink.LOG:
            _log.error("the %s sink missed an event (%s)", sink.value, type(error).__name__)
