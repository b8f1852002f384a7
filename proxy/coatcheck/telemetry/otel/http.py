"""Batches to a collector, by OpenTelemetry's OTLP/HTTP exporter over our own bounded session."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.trace import ReadableSpan

from coatcheck.platform.bounded_session import BoundedSession
from coatcheck.platform.http_client import (
    Answer,
    Deadline,
    Failure,
    HttpClient,
    HttpFailure,
    tls_context,
)
from coatcheck.platform.private_files import PrivateFileError, read_private

TRY_SECONDS: Final = 15.0
"""For one batch with all of its tries: the exporter waits 1, 2 and 4 seconds between them, or what
`Retry-After` says, and gives up when that would take longer. Meanwhile the queue fills, and is bounded."""
MAX_HEADERS: Final = 16
ANSWER_SECONDS: Final = 10.0
"""From looking the collector up to its answer's last byte."""
MAX_ANSWER: Final = 64 * 1024
_HEADER: Final = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}):[ \t]*([\x20-\x7e]{0,4096}?)[ \t]*")
_OURS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a batch."""

    why: str = ""
    """Why it was not taken, in words without anything of the headers file; empty: it was."""
    rejected: int = 0
    """Of what was taken, how many items the collector says that it did not keep."""


def headers(text: str) -> dict[str, str]:
    """`Name: value` lines; comments behind `#` at a line's start. ValueError, which repeats no value."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = _HEADER.fullmatch(line)
        if parts is None:
            raise ValueError(f"line {number} is not a header: write it as `Name: value`, in ASCII")
        if parts[1].lower() in _OURS:
            raise ValueError(f"line {number} sets {parts[1]}, which is not its to set")
        found[parts[1]] = parts[2]
    if len(found) > MAX_HEADERS:
        raise ValueError(f"it has {len(found)} headers, and at most {MAX_HEADERS} may be")
    return found


class Collector:
    """One address. Used by one thread."""

    def __init__(self, endpoint: str, headers_file: Path | None, ca_file: Path | None) -> None:
        """`endpoint` is the base: `/v1/traces` and `/v1/logs` are added. `headers_file` is read for each
        try, so that a token can be rotated; only its owner may read it. OSError for a bad `ca_file`."""
        self._base = endpoint.rstrip("/")
        self._headers_file = headers_file
        self._http = HttpClient(tls_context(ca_file, machine=True))
        self._last: Answer | str = ""
        self._hurried = False
        # It logs what the collector answers; and a line about a batch would be in the next batch.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._exporters = self._make()

    def traces(self, spans: Sequence[ReadableSpan]) -> Sent:
        """Never raises; see TRY_SECONDS."""
        return self._sent(lambda: self._exporters[0].export(spans), _rejected_spans)

    def logs(self, records: Sequence[ReadableLogRecord]) -> Sent:
        """As `traces`."""
        return self._sent(lambda: self._exporters[1].export(records), _rejected_records)

    def hurry(self) -> None:
        """From another thread: no try is repeated from now on, nor waited for."""
        self._hurried, before, self._exporters = True, self._exporters, self._make()
        for exporter in before:
            exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make(self) -> tuple[OTLPSpanExporter, OTLPLogExporter]:
        # The exporter reads certificates and headers from the environment and hands them to the session,
        # which ignores them.
        session = BoundedSession(self._exchange)
        return (
            OTLPSpanExporter(
                f"{self._base}/v1/traces",
                timeout=TRY_SECONDS,
                compression=Compression.NoCompression,
                session=session,
            ),
            OTLPLogExporter(
                f"{self._base}/v1/logs",
                timeout=TRY_SECONDS,
                compression=Compression.NoCompression,
                session=session,
            ),
        )

    def _sent(self, export: Callable[[], Enum], rejected: Callable[[bytes], int]) -> Sent:
        self._last = "it could not be encoded"
        done = export()
        last = self._outcome()
        if isinstance(last, str):
            return Sent(last)
        if done.name != "SUCCESS":
            return Sent(f"status {last.status}")
        return Sent(rejected=max(0, rejected(last.body)))

    def _outcome(self) -> Answer | str:
        return self._last

    def _exchange(self, method: str, url: str, _: Mapping[str, str], body: bytes) -> Answer:
        kind = {"Content-Type": "application/x-protobuf"}
        try:
            more = headers(read_private(self._headers_file).decode()) if self._headers_file else {}
            self._last = self._http.exchange_once(
                Deadline(ANSWER_SECONDS, MAX_ANSWER), method, url, more | kind, body, cut=True
            )
        except (PrivateFileError, ValueError) as error:
            failure = HttpFailure(
                f"otel_headers_file cannot be used: {error}", Failure.CONNECTION, connected=False
            )
        except HttpFailure as error:
            failure = error
        else:
            if self._last.status >= 300 and (self._hurried or self._last.status < 400):
                # The exporter takes a redirect for success, and repeats what may be repeated.
                self._last = f"status {self._last.status}"
                raise requests.RequestException(self._last)
            return self._last
        self._last = str(failure)
        if self._hurried:
            raise requests.RequestException(self._last)
        raise failure


def _rejected_spans(answer: bytes) -> int:
    """An answer that is none of OTLP's says 0."""
    try:
        return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)
    except Exception:  # noqa: BLE001 - protobuf's DecodeError has no stable home, and these are foreign bytes
        return 0


def _rejected_records(answer: bytes) -> int:
    try:
        return int(ExportLogsServiceResponse.FromString(answer).partial_success.rejected_log_records)
    except Exception:  # noqa: BLE001
        return 0
