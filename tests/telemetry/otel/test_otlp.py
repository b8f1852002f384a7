"""What stands in spans and log records: everything that was decided, and nothing that nobody may know."""

import logging
from dataclasses import replace

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from coatcheck.decision.denial import Reason
from coatcheck.telemetry.events import Event, Outcome, PolicyEvent
from coatcheck.telemetry.log import LogLine
from coatcheck.telemetry.otel.otlp import TEXT, Maker, trace_id
from coatcheck.telemetry.otel.requests import Request
from tests.telemetry.collector import plain, record_sent, span_sent
from tests.telemetry.samples import ALARM, ALL_EVENTS, APPROVAL, COMPLETION, DECISION, DENIED

MAKER = Maker({"service.name": "coatcheck"})


def span(request: Request) -> Span:
    return span_sent(MAKER.span(request))


def log_record(told: Event | LogLine) -> LogRecord:
    return record_sent(MAKER.log_record(told))


def test_a_request_is_a_client_span_from_its_head_to_its_last_byte() -> None:
    """With the conventions' names where they fit, and ours for what they have no word for."""
    made = span(Request(DECISION, COMPLETION))
    assert (made.name, made.kind) == ("POST", Span.SPAN_KIND_CLIENT)
    assert made.start_time_unix_nano == 1_760_000_000_249_600_000
    assert made.end_time_unix_nano == 1_760_000_001_250_000_000
    assert [(each.name, each.time_unix_nano) for each in made.events] == [
        ("coatcheck.verdict", 1_760_000_000_250_000_000)
    ]
    assert made.status.code == Status.STATUS_CODE_UNSET
    assert plain(made.attributes) == {
        "http.request.method": "POST",
        "server.address": "api.example.com",
        "server.port": 443,
        "url.scheme": "https",
        "url.path": "/v1/chat/completions",
        "url.full": "https://api.example.com/v1/chat/completions",
        "http.response.status_code": 200,
        "http.request.body.size": 10,
        "http.response.body.size": 2000,
        "coatcheck.verdict": "inject",
        "coatcheck.request_id": "01JB2W4Q9D",
        "coatcheck.session": "s-1",
        "coatcheck.tenant": "acme",
        "coatcheck.subject": "agent-7",
        "coatcheck.origin": "socket",
        "coatcheck.policy": "platform",
        "coatcheck.policy.hash": "ab" * 32,
        "coatcheck.rule": "model calls",
        "coatcheck.credentials": ["openai"],
        "coatcheck.added_seconds": 0.0004,
        "coatcheck.scrubbed": 1,
    }


def test_a_refusal_is_an_error_that_says_why() -> None:
    """Also one that came after the verdict."""
    found = plain(span(Request(DENIED)).attributes)
    assert (found["coatcheck.verdict"], found["error.type"]) == ("deny", "host_not_allowed")
    late = span(Request(DECISION, refused=replace(DENIED, reason=Reason.UPSTREAM_TLS, detail="expired")))
    found = plain(late.attributes)
    assert (found["coatcheck.reason"], found["coatcheck.detail"]) == ("upstream_tls", "expired")
    assert (late.status.code, late.status.message) == (Status.STATUS_CODE_ERROR, "upstream_tls")
    assert found["coatcheck.verdict"] == "deny" and found["coatcheck.credentials"] == ["openai"]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (replace(COMPLETION, status=404), "404"),
        (replace(COMPLETION, status=0, aborted=Reason.SESSION_REVOKED), "session_revoked"),
        (replace(COMPLETION, aborted=Reason.HANDLE_REVOKED), "handle_revoked"),
    ],
)
def test_an_answer_that_failed_or_was_cut_off_is_an_error(end: object, error: str) -> None:
    """As the conventions have it for clients."""
    assert isinstance(end, type(COMPLETION))
    made = span(Request(DECISION, end))
    assert made.status.code == Status.STATUS_CODE_ERROR
    found = plain(made.attributes)
    assert found["error.type"] == error
    assert ("http.response.status_code" in found) == bool(end.status)


def test_a_request_whose_end_is_unknown_says_so() -> None:
    """It is not shown as one that went well."""
    assert plain(span(Request(DECISION)).attributes)["coatcheck.unfinished"] is True


def test_a_trace_is_found_by_the_request_id_alone() -> None:
    """Which refusals and the audit log show. Another request has another trace."""
    made, other = span(Request(DECISION)), span(Request(replace(DECISION, request_id="x")))
    assert int.from_bytes(made.trace_id) == trace_id(DECISION.request_id) and len(made.trace_id) == 16
    assert len(made.span_id) == 8 and made.parent_span_id == b""
    assert other.trace_id != made.trace_id and other.span_id != made.span_id


def test_nothing_that_looks_like_a_credential_gets_through_the_texts() -> None:
    """Even where somebody put it into a path, a method or a detail."""
    key, handle = "sk-" + "a" * 40, "cch_" + "b" * 40
    hostile = replace(
        DENIED, path=f"/x/{key}/{handle}", detail=f"Authorization: Bearer {key}", method=handle, rule=handle
    )
    for made in (span(Request(hostile)), log_record(replace(ALARM, detail=f"{key} {handle}"))):
        raw = made.SerializeToString()
        assert key.encode() not in raw and handle.encode() not in raw


def test_methods_that_a_sandbox_made_up_make_up_no_names() -> None:
    """Names of spans and of methods come from a closed set; the original is one attribute, cut."""
    made = span(Request(replace(DENIED, method="X" * 5000)))
    found = plain(made.attributes)
    assert (made.name, found["http.request.method"]) == ("HTTP", "_OTHER")
    assert found["http.request.method_original"] == "X" * 64


def test_every_text_is_bounded_and_utf_8() -> None:
    """Lone surrogates are no protobuf text; a list ends, too."""
    odd = replace(
        DECISION,
        path="/\udce4" + "p" * 100_000,
        subject="s" * 100_000,
        credentials=tuple(map(str, range(99))),
    )
    made = span(Request(odd, COMPLETION))
    found = plain(made.attributes)
    assert found["url.path"].startswith("/\\udce4p") and len(found["coatcheck.credentials"]) == 16
    assert all(len(each) < TEXT + 100 for each in found.values() if isinstance(each, str))
    assert made.ByteSize() < 8 * TEXT


@pytest.mark.parametrize("event", ALL_EVENTS[3:], ids=lambda event: type(event).__name__)
def test_every_other_event_is_a_log_record_with_its_fields(event: Event) -> None:
    """Under our own names; those that are empty are left out."""
    made = log_record(event)
    found = plain(made.attributes)
    assert made.event_name.startswith("coatcheck.") and made.body.string_value
    for name in ("session", "tenant", "subject", "policy"):
        if getattr(event, name, ""):
            assert found[f"coatcheck.{name}"] == getattr(event, name)


def test_what_somebody_is_woken_for_stands_out() -> None:
    """By severity: alarms, and policies that were refused."""
    alarm = log_record(ALARM)
    assert alarm.severity_number == SeverityNumber.SEVERITY_NUMBER_WARN
    assert plain(alarm.attributes)["coatcheck.reason"] == "handle_stolen"
    bad = log_record(PolicyEvent(1.0, "p", "", loaded=False, detail="line 3"))
    assert (bad.severity_number, bad.severity_text) == (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR")
    assert int.from_bytes(log_record(APPROVAL).trace_id) == trace_id(APPROVAL.request_id)


def test_a_line_of_the_log_keeps_its_level_and_its_exception() -> None:
    """And the logger's name."""
    made = log_record(LogLine(5.5, logging.ERROR, "coatcheck.x", "it broke", ("x.py:1 in f", "OSError: no")))
    assert made.time_unix_nano == 5_500_000_000
    assert made.body.string_value == "it broke" and made.severity_text == "ERROR"
    assert plain(made.attributes) == {
        "logger.name": "coatcheck.x",
        "exception.stacktrace": "x.py:1 in f\nOSError: no",
    }


def test_a_batch_says_once_where_it_comes_from() -> None:
    """The resource, the scope and the schema of the attributes."""
    (whole,) = encode_spans([MAKER.span(Request(each)) for each in (DENIED, DECISION)]).resource_spans
    assert plain(whole.resource.attributes) == {"service.name": "coatcheck"}
    (scope,) = whole.scope_spans
    assert scope.scope.name == "coatcheck" and len(scope.spans) == 2


@pytest.mark.parametrize(
    ("host", "path", "told"),
    [
        ("api.openai.com", "/v1/chat/completions", ("openai", "chat", None)),
        ("api.openai.com", "/v1/embeddings", ("openai", "embeddings", None)),
        ("api.anthropic.com", "/v1/messages?beta=true", ("anthropic", "chat", None)),
        (
            "generativelanguage.googleapis.com",
            "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
            ("gcp.gemini", "generate_content", "gemini-2.5-pro"),
        ),
        (
            "bedrock-runtime.eu-west-1.amazonaws.com",
            "/model/anthropic.claude-v2%3A1/converse",
            ("aws.bedrock", "chat", "anthropic.claude-v2%3A1"),
        ),
        ("api.openai.com", "/v1/models", None),
        ("api.example.com", "/v1/chat/completions", None),
        ("api.openai.com.example.com", "/v1/chat/completions", None),
    ],
)
def test_a_call_to_a_model_has_the_genai_conventions_names(
    host: str, path: str, told: tuple[str, str, str | None] | None
) -> None:
    """As far as host and path tell: no body is read for it."""
    found = plain(span(Request(replace(DECISION, destination=f"https://{host}", path=path))).attributes)
    names = ("gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.request.model")
    assert tuple(map(found.get, names)) == (told or (None, None, None))


def test_no_outcome_is_forgotten() -> None:
    """Each is a verdict of its own."""
    said = {
        plain(span(Request(replace(DECISION, outcome=o))).attributes)["coatcheck.verdict"] for o in Outcome
    }
    assert said == {"deny", "pass", "inject"}
