"""OpenTelemetry (the extra `otel`): a span for each request, and log records, to a collector over OTLP/HTTP.

The caller only puts an event into a bounded queue; one thread makes and sends what is in it. A
collector that is slow, gone or hostile costs counted events and nothing else: what loses nothing is the
audit log.
"""

import logging
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from coatcheck import __version__
from coatcheck.platform.errors import CoatcheckError
from coatcheck.platform.outage import Outage
from coatcheck.settings.daemon import Settings
from coatcheck.telemetry.event_table import TABLE
from coatcheck.telemetry.events import Completion, Decision, Event
from coatcheck.telemetry.log import LogLine, line
from coatcheck.telemetry.otel.requests import Request, Requests

if TYPE_CHECKING:
    from coatcheck.telemetry.otel.http import Collector, Sent
    from coatcheck.telemetry.otel.otlp import Maker

logger = logging.getLogger(__name__)

QUEUE: Final = 8192
"""Events that wait: a second and more of all that a daemon can do, below 10 MB as requests usually are and
below 50 MB with the longest paths."""
BATCH: Final = 512
"""Events that are sent together: half a megabyte at most as a rule."""
EVERY_SECONDS: Final = 1.0
"""How long an event waits for company."""
LONGEST_PATH: Final = 2048
OUTCOMES: Final = ("sent", "no_room", "not_taken", "rejected", "broken")
"""What may become of an item; `broken`: it could not be told, by a fault of ours."""
STOP_SECONDS: Final = 2.0


class ExtraMissing(CoatcheckError, ValueError):
    """OpenTelemetry is configured and its package is not installed. `hint` says what to do."""

    def __init__(self) -> None:
        super().__init__(
            "otel_endpoint is set, and this installation cannot speak OTLP",
            "install the extra: pip install 'coatcheck[otel]'; or unset COATCHECK_OTEL_ENDPOINT",
        )


def opentelemetry(settings: Settings) -> "OpenTelemetry | None":
    """What the settings ask for. ExtraMissing without the package; ValueError for a bad CA file."""
    if settings.otel_endpoint is None:
        return None
    try:
        from coatcheck.telemetry.otel.http import Collector
        from coatcheck.telemetry.otel.otlp import Maker
    except ImportError as missing:
        raise ExtraMissing from missing

    here = {
        "service.name": "coatcheck",
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}",
        "host.name": socket.gethostname(),
    }
    try:
        collector = Collector(settings.otel_endpoint, settings.otel_headers_file, settings.otel_ca_file)
    except OSError as error:
        raise ValueError(f"otel_ca_file cannot be used: {error.strerror or error}") from error
    return OpenTelemetry(collector, Maker(here | settings.otel_attributes), settings.otel_signals)


class OpenTelemetry:
    """A sink: `sink(event)`. Thread-safe, and never waits."""

    def __init__(self, collector: "Collector", maker: "Maker", signals: tuple[str, ...]) -> None:
        self._collector, self._maker, self._signals = collector, maker, signals
        self._queue: deque[Event | LogLine] = deque()
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._counting = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter(
            {(signal, outcome): 0 for signal in signals for outcome in OUTCOMES}
        )
        self._outage = Outage()
        self._requests = Requests()
        self._handler = _Lines(self)
        self._thread = threading.Thread(target=self._run, name="opentelemetry", daemon=True)

    def start(self) -> None:
        """Begin to send, and to take lines of the log."""
        if "logs" in self._signals:
            logging.getLogger().addHandler(self._handler)
        self._thread.start()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """What waits is sent if that is quick: one try a batch, `seconds` in all."""
        logging.getLogger().removeHandler(self._handler)
        self._ending.set()
        self._wake.set()
        self._collector.hurry()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning("the collector is slow: what it had not taken by the end is lost")

    def counts(self) -> Mapping[tuple[str, str], int]:
        """(signal, what became of it) -> how many."""
        with self._counting:
            return dict(self._counts)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Decision | Completion):
            if "traces" not in self._signals:
                return
            if isinstance(event, Decision) and len(event.path) > LONGEST_PATH:
                event = replace(event, path=event.path[:LONGEST_PATH])
        else:
            row = TABLE.get(type(event))  # an event without one is counted as broken when its turn comes
            if "logs" not in self._signals or (row is not None and row.otlp_level(event) is None):
                return
        self.put(event)

    def put(self, told: Event | LogLine) -> None:
        waiting = len(self._queue)
        if waiting >= QUEUE:
            self._count("traces" if isinstance(told, Decision | Completion) else "logs", "no_room", 1)
            return
        self._queue.append(told)
        if waiting >= BATCH and not self._wake.is_set():
            self._wake.set()

    # --- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._ending.is_set() and not self._queue):
            if len(self._queue) < BATCH:
                self._wake.wait(0 if self._ending.is_set() else EVERY_SECONDS)
            self._wake.clear()
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._safely(partial(self._tell, batch))
        self._safely(lambda: self._send_requests(self._requests.rest()))

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the thread lives on: what comes later must not wait for ever
            logger.error("a batch for the OpenTelemetry collector was lost (%s)", type(error).__name__)

    def _tell(self, batch: "list[Event | LogLine]") -> None:
        over: list[Request] = []
        others: list[Event | LogLine] = []
        for told in batch:
            if not isinstance(told, Decision | Completion):
                others.append(told)
            elif (request := self._requests.add(told)) is not None:
                over.append(request)
        self._send_requests(over)
        self._send_logs(others)

    def _send_requests(self, over: list[Request]) -> None:
        for start in range(0, len(over), BATCH):
            spans = self._made("traces", over[start : start + BATCH], self._maker.span)
            self._send("traces", len(spans), partial(self._collector.traces, spans))

    def _send_logs(self, told: list[Event | LogLine]) -> None:
        if told:
            records = self._made("logs", told, self._maker.log_record)
            self._send("logs", len(records), partial(self._collector.logs, records))

    def _made[T, M](self, signal: str, items: list[T], make: Callable[[T], M]) -> list[M]:
        made: list[M] = []
        for item in items:
            try:
                made.append(make(item))
            except Exception as error:  # noqa: BLE001 - one that cannot be told must not silence the others
                if not self._counts[signal, "broken"]:  # the rest are counted
                    logger.error("one event of %s could not be sent (%s)", signal, type(error).__name__)
                self._count(signal, "broken", 1)
            time.sleep(0)  # the plane may want the interpreter, and else gets it after 5 ms only
        return made

    def _send(self, signal: str, items: int, send: "Callable[[], Sent]") -> None:
        sent = send()
        if not sent.why:
            refused = min(items, sent.rejected)
            self._count(signal, "sent", items - refused)
            self._count(signal, "rejected", refused)
            if self._outage.over():
                logger.warning("the OpenTelemetry collector takes %s again", signal)
            return
        self._count(signal, "not_taken", items)
        if self._outage.noticed():
            logger.error(
                "the OpenTelemetry collector does not take %s: %s. They are lost and counted "
                "(coatcheck_otel_items_total); the audit log has all of it.", signal, sent.why,
            )  # fmt: skip

    def _count(self, signal: str, what: str, items: int) -> None:
        with self._counting:
            self._counts[signal, what] += items


class _Lines(logging.Handler):
    """The daemon's log, but for what comes as events already, and what this very module says."""

    def __init__(self, sink: OpenTelemetry) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        if record.name not in ("coatcheck.events", logger.name):
            self._sink.put(line(record))
