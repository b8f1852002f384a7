"""Events as OTLP: the protobuf messages that an OpenTelemetry collector takes. Needs the extra `otel`.

Only the wire format is taken from OpenTelemetry, not its SDK: that one reads dozens of OTEL_… variables, and
its exporter follows redirects, takes proxies and passwords from the environment, and reads whatever a
collector answers (ADR 35).
"""

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from coatcheck import __version__
from coatcheck.telemetry.event_table import TABLE
from coatcheck.telemetry.events import Event, Outcome
from coatcheck.telemetry.log import LogLine
from coatcheck.telemetry.otel.requests import Request
from coatcheck.telemetry.redaction import mask, mask_handles

SCHEMA: Final = "https://opentelemetry.io/schemas/1.37.0"
"""Of the attributes that are not our own."""
TEXT: Final = 2048
"""Characters of one attribute, as in the audit log."""
ITEMS: Final = 16
"""Of one list."""
_METHODS: Final = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"}
)
"""Those that the conventions know; another is `_OTHER`, so that a sandbox cannot make up names of spans."""
_SEVERITIES: Final = (
    (logging.CRITICAL, SeverityNumber.SEVERITY_NUMBER_FATAL),
    (logging.ERROR, SeverityNumber.SEVERITY_NUMBER_ERROR),
    (logging.WARNING, SeverityNumber.SEVERITY_NUMBER_WARN),
    (logging.INFO, SeverityNumber.SEVERITY_NUMBER_INFO),
    (0, SeverityNumber.SEVERITY_NUMBER_DEBUG),
)

type Value = str | bool | int | float | Sequence[str]


class Encoder:
    """Writes requests and log records for one collector, as of one process."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        """`attributes` say where this process runs; they name no request."""
        self._resource = Resource(attributes=_attributes(attributes.items()))
        self._scope = InstrumentationScope(name="coatcheck", version=__version__)

    def traces(self, spans: Iterable[Span]) -> bytes:
        scoped = ScopeSpans(scope=self._scope, spans=spans, schema_url=SCHEMA)
        whole = ResourceSpans(resource=self._resource, scope_spans=[scoped])
        return bytes(ExportTraceServiceRequest(resource_spans=[whole]).SerializeToString())

    def logs(self, records: Iterable[LogRecord]) -> bytes:
        scoped = ScopeLogs(scope=self._scope, log_records=records, schema_url=SCHEMA)
        whole = ResourceLogs(resource=self._resource, scope_logs=[scoped])
        return bytes(ExportLogsServiceRequest(resource_logs=[whole]).SerializeToString())


def rejected(signal: str, answer: bytes) -> int:
    """How many items a collector says that it did not keep; an answer that is none of OTLP's says 0."""
    try:
        if signal == "traces":
            return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)
        return int(ExportLogsServiceResponse.FromString(answer).partial_success.rejected_log_records)
    except Exception:  # noqa: BLE001 - protobuf's DecodeError has no stable home, and these are foreign bytes
        return 0


def trace_id(request_id: str) -> bytes:
    """Of the trace that a request is: a function of its id, so that a refusal or an audit record leads to it.

    Never of the sandbox's `traceparent`: who chooses trace ids can write into other people's traces, and
    hide its own by saying that nobody samples them.
    """
    return hashlib.blake2b(request_id.encode(errors="replace"), digest_size=16).digest()


def span(request: Request) -> Span:
    """One request, from its head to its last byte, as a client span."""
    decision, completion = request.decision, request.completion
    refusal = request.refused or (decision if decision.outcome is Outcome.DENY else None)
    target, last = urlsplit(decision.destination), refusal or decision
    method = decision.method if decision.method in _METHODS else "_OTHER"
    identity = trace_id(decision.request_id)
    path = mask(decision.path[:TEXT])
    found: list[tuple[str, Value]] = [
        ("http.request.method", method),
        ("server.address", target.hostname or ""),
        ("server.port", target.port or (80 if target.scheme == "http" else 443)),
        ("url.scheme", target.scheme),
        ("url.path", path),
        ("url.full", decision.destination + path),
        ("coatcheck.verdict", last.outcome.value),
        ("coatcheck.request_id", decision.request_id),
        ("coatcheck.session", decision.session),
        ("coatcheck.tenant", decision.tenant),
        ("coatcheck.subject", decision.subject),
        ("coatcheck.origin", decision.origin),
        ("coatcheck.policy", decision.policy),
        ("coatcheck.policy.hash", decision.policy_hash),
        ("coatcheck.rule", last.rule),
        ("coatcheck.credentials", decision.credentials),
        ("coatcheck.approved_by", decision.approved_by),
        ("coatcheck.handle_of", decision.handle_of),
        ("coatcheck.added_seconds", decision.added_seconds),
    ]
    if method == "_OTHER":
        found.append(("http.request.method_original", mask(decision.method[:64])))
    error = ""
    if refusal is not None:
        error = refusal.reason.value if refusal.reason is not None else "refused"
        found += [
            ("coatcheck.reason", error),
            ("coatcheck.detail", mask(refusal.detail[:TEXT])),
            ("coatcheck.alarm", refusal.alarm),
        ]
    elif completion is None:
        found.append(("coatcheck.unfinished", True))
    if completion is not None:
        found += [
            ("http.request.body.size", completion.bytes_up),
            ("http.response.body.size", completion.bytes_down),
            ("coatcheck.scrubbed", completion.scrubbed),
        ]
        if completion.status:
            found.append(("http.response.status_code", completion.status))
            error = str(completion.status) if completion.status >= 400 else ""
        if completion.aborted is not None:
            error = completion.aborted.value
            found.append(("coatcheck.reason", error))
    if error:
        found.append(("error.type", error))
    end = completion.at if completion is not None else last.at
    return Span(
        trace_id=identity,
        span_id=hashlib.blake2b(identity, digest_size=8).digest(),
        name=method if method != "_OTHER" else "HTTP",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=_nano(decision.at - decision.added_seconds),
        end_time_unix_nano=_nano(end),
        attributes=_attributes(found),
        events=[Span.Event(time_unix_nano=_nano(decision.at), name="coatcheck.verdict")],
        status=Status(code=Status.STATUS_CODE_ERROR, message=error) if error else None,
    )


def log_record(told: Event | LogLine) -> LogRecord:
    """An event that is no request, or a line of the daemon's own log."""
    if isinstance(told, LogLine):
        found: list[tuple[str, Value]] = [("logger.name", told.logger)]
        if told.exception:
            found.append(("exception.stacktrace", "\n".join(told.exception)))
        return _record(told.at, told.level, "", told.message, found)
    row, fields = TABLE[type(told)], dataclasses.fields(told)
    found = [
        (f"coatcheck.{each.name}", _plain(value))
        for each in fields
        if each.name not in ("at", "request_id") and (value := getattr(told, each.name)) is not None
    ]
    subject = getattr(told, row.subject) if row.subject else ""
    level = row.otlp_level(told) or logging.INFO
    record = _record(told.at, level, f"coatcheck.{row.kind}", f"{row.kind} {subject}".strip(), found)
    request_id = getattr(told, "request_id", "")
    if request_id:
        record.trace_id = trace_id(request_id)
    return record


def _record(at: float, level: int, name: str, body: str, found: Iterable[tuple[str, Value]]) -> LogRecord:
    number = next(number for least, number in _SEVERITIES if level >= least)
    return LogRecord(
        time_unix_nano=_nano(at),
        observed_time_unix_nano=_nano(at),
        severity_number=number,
        severity_text=logging.getLevelName(level),
        event_name=name,
        body=AnyValue(string_value=_text(body)),
        attributes=_attributes(found),
    )


def _plain(value: Any) -> Value:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, bool | int | float):
        return value
    return mask(value[:TEXT]) if isinstance(value, str) else tuple(map(str, value))


def _attributes(found: Iterable[tuple[str, Value]]) -> list[KeyValue]:
    """Without those that say nothing."""
    return [
        _recurring(name, value) if name in _RECURRING else KeyValue(key=name, value=_value(value))
        for name, value in found
        if value not in ("", ())
    ]


_RECURRING: Final = frozenset(
    {
        "http.request.method", "server.address", "server.port", "url.scheme", "http.response.status_code",
        "coatcheck.verdict", "coatcheck.session", "coatcheck.tenant", "coatcheck.subject", "coatcheck.origin",
        "coatcheck.policy", "coatcheck.policy.hash", "coatcheck.rule", "coatcheck.credentials",
    }
)  # fmt: skip
"""Attributes whose values come back in many requests: made once, which is more than half of a span's cost."""


@lru_cache(maxsize=2048)
def _recurring(name: str, value: Value) -> KeyValue:
    return KeyValue(key=name, value=_value(value))


def _value(value: Value) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=_text(value))
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value[:ITEMS]]))


def _text(value: str) -> str:
    """Bounded, without handles, and UTF-8: a lone surrogate, which a sandbox can send, is none."""
    if len(value) > TEXT:
        value = f"{value[:TEXT]} [cut, {len(value)} characters]"
    if "cch_" in value:
        value = mask_handles(value)
    return value if value.isascii() else value.encode(errors="backslashreplace").decode()


def _nano(at: float) -> int:
    return max(0, int(at * 1_000_000)) * 1000
