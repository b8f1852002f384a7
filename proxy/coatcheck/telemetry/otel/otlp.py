"""Events as the SDK's spans and log records. Needs the extra `otel`.

They are made here, in the exporter's thread, and not by a tracer: a tracer would cost the plane's thread
time, read dozens of OTEL_… variables, and choose trace ids of its own.
"""

import dataclasses
import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.status import Status, StatusCode

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
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (0, SeverityNumber.DEBUG),
)

type Value = str | bool | int | float | Sequence[str]


_PROVIDERS: Final = (
    (re.compile(r"api\.openai\.com"), "openai"),
    (re.compile(r"api\.anthropic\.com"), "anthropic"),
    (re.compile(r".+\.openai\.azure\.com"), "azure.ai.openai"),
    (re.compile(r"bedrock-runtime\..+\.amazonaws\.com"), "aws.bedrock"),
    (re.compile(r"generativelanguage\.googleapis\.com"), "gcp.gemini"),
    (re.compile(r".*aiplatform\.googleapis\.com"), "gcp.vertex_ai"),
    (re.compile(r"api\.cohere\.(com|ai)"), "cohere"),
    (re.compile(r"api\.deepseek\.com"), "deepseek"),
    (re.compile(r"api\.groq\.com"), "groq"),
    (re.compile(r"api\.mistral\.ai"), "mistral_ai"),
    (re.compile(r"api\.perplexity\.ai"), "perplexity"),
    (re.compile(r"api\.x\.ai"), "x_ai"),
)
"""`gen_ai.provider.name`, as the GenAI conventions have them."""
_OPERATIONS: Final = (
    (re.compile(r"/(chat/completions|messages|responses|converse|converse-stream|chat)$"), "chat"),
    (re.compile(r"/(completions|invoke|invoke-with-response-stream)$"), "text_completion"),
    (re.compile(r"/(embeddings|embed)$|:(embedContent|batchEmbedContents)$"), "embeddings"),
    (re.compile(r":(generateContent|streamGenerateContent)$"), "generate_content"),
)
_MODEL: Final = re.compile(r"/models?/([A-Za-z0-9][\w.:%-]{0,127}?)(?:/|:[a-zA-Z]+$)")
"""Where the path names it; the body is not read."""


_NOWHERE: Final = set_span_in_context(INVALID_SPAN, Context())


class Maker:
    """Makes spans and log records, as of one process."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        """`attributes` say where this process runs; they name no request."""
        self._resource = Resource(dict(attributes))
        self._scope = InstrumentationScope("coatcheck", __version__, SCHEMA)

    def span(self, request: Request) -> ReadableSpan:
        """One request, from its head to its last byte, as a client span."""
        decision, completion = request.decision, request.completion
        refusal = request.refused or (decision if decision.outcome is Outcome.DENY else None)
        target, last = urlsplit(decision.destination), refusal or decision
        method = decision.method if decision.method in _METHODS else "_OTHER"
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
        if (genai := _model_call(target.hostname or "", method, decision.path)) is not None:
            found += genai
        return ReadableSpan(
            name=method if method != "_OTHER" else "HTTP",
            context=_context(decision.request_id),
            kind=SpanKind.CLIENT,
            resource=self._resource,
            instrumentation_scope=self._scope,
            start_time=_nano(decision.at - decision.added_seconds),
            end_time=_nano(completion.at if completion is not None else last.at),
            attributes=_attributes(found),
            events=[SpanEvent("coatcheck.verdict", timestamp=_nano(decision.at))],
            status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.UNSET),
        )

    def log_record(self, told: Event | LogLine) -> ReadableLogRecord:
        """An event that is no request, or a line of the daemon's own log."""
        if isinstance(told, LogLine):
            found: list[tuple[str, Value]] = [("logger.name", told.logger)]
            if told.exception:
                found.append(("exception.stacktrace", "\n".join(told.exception)))
            return self._record(told.at, told.level, "", told.message, found)
        row, fields = TABLE[type(told)], dataclasses.fields(told)
        found = [
            (f"coatcheck.{each.name}", _plain(value))
            for each in fields
            if each.name not in ("at", "request_id") and (value := getattr(told, each.name)) is not None
        ]
        subject = getattr(told, row.subject) if row.subject else ""
        level = row.otlp_level(told) or logging.INFO
        name, body = f"coatcheck.{row.kind}", f"{row.kind} {subject}".strip()
        return self._record(told.at, level, name, body, found, getattr(told, "request_id", ""))

    def _record(
        self,
        at: float,
        level: int,
        name: str,
        body: str,
        found: Iterable[tuple[str, Value]],
        request_id: str = "",
    ) -> ReadableLogRecord:
        record = LogRecord(
            timestamp=_nano(at),
            observed_timestamp=_nano(at),
            context=_within(request_id),
            severity_number=next(number for least, number in _SEVERITIES if level >= least),
            severity_text=logging.getLevelName(level),
            event_name=name,
            body=_text(body),
            attributes=_attributes(found),
        )
        return ReadableLogRecord(record, self._resource, self._scope)


def trace_id(request_id: str) -> int:
    """Of the trace that a request is: a function of its id, so that a refusal or an audit record leads to it.

    Never of the sandbox's `traceparent`: a client that chooses trace ids can write into other people's
    traces, and hide its own by saying that nobody samples them.
    """
    return int.from_bytes(_digest(request_id, 16)) or 1


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size).digest()


def _context(request_id: str) -> SpanContext:
    identity = trace_id(request_id)
    span_id = hashlib.blake2b(identity.to_bytes(16), digest_size=8).digest()
    return SpanContext(identity, int.from_bytes(span_id) or 1, is_remote=False, trace_flags=TraceFlags(0))


def _within(request_id: str) -> Context:
    """Of a record: the span that it belongs to, if it is about a request."""
    if not request_id:
        return _NOWHERE
    return set_span_in_context(NonRecordingSpan(_context(request_id)), Context())


def _model_call(host: str, method: str, path: str) -> list[tuple[str, Value]] | None:
    """What the GenAI conventions want to know of a call to a model, as far as host and path tell."""
    if method != "POST":
        return None
    provider = next((name for pattern, name in _PROVIDERS if pattern.fullmatch(host)), None)
    place = path.partition("?")[0]
    operation = next((name for pattern, name in _OPERATIONS if pattern.search(place)), None)
    if provider is None or operation is None:
        return None
    model = _MODEL.search(place)
    return [
        ("gen_ai.provider.name", provider),
        ("gen_ai.operation.name", operation),
        ("gen_ai.request.model", mask(model[1]) if model is not None else ""),
    ]


def _plain(value: Any) -> Value:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, bool | int | float):
        return value
    return mask(value[:TEXT]) if isinstance(value, str) else tuple(map(str, value))


def _attributes(found: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """Bounded, and without those that say nothing."""
    return {name: _bounded(value) for name, value in found if value not in ("", ())}


def _bounded(value: Value) -> Value:
    if isinstance(value, str):
        return _text(value)
    return value if isinstance(value, bool | int | float) else tuple(_text(item) for item in value[:ITEMS])


def _text(value: str) -> str:
    """Bounded, without handles, and UTF-8: a lone surrogate, which a sandbox can send, is none."""
    if len(value) > TEXT:
        value = f"{value[:TEXT]} [cut, {len(value)} characters]"
    if "cch_" in value:
        value = mask_handles(value)
    return value if value.isascii() else value.encode(errors="backslashreplace").decode()


def _nano(at: float) -> int:
    return max(0, int(at * 1_000_000)) * 1000
