"""A batch goes where the operator wrote, and a collector can do nothing worse than not take it."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from coatcheck.telemetry.otel import http as module
from coatcheck.telemetry.otel.http import Collector, Sent, headers
from coatcheck.telemetry.otel.otlp import Maker
from coatcheck.telemetry.otel.requests import Request
from tests.known_secrets import known_secret
from tests.telemetry.collector import collecting
from tests.telemetry.samples import ALARM, DENIED
from tests.upstreams import UpstreamTls

MAKER = Maker({})
SPANS = [MAKER.span(Request(DENIED))]
RECORDS = [MAKER.log_record(ALARM)]
TOKEN = known_secret("the collector's token", prefix="Bearer ")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "headers"
    path.write_text(f"# for the collector\nAuthorization: {TOKEN}\nX-Scope: team-a\n")
    path.chmod(0o600)
    return path


def test_it_is_posted_below_the_endpoint_with_the_headers_of_the_file(token_file: Path) -> None:
    """OTLP's own headers, and those of the operator."""
    with collecting() as collector:
        sender = Collector(collector.url + "/otlp/", token_file, None)
        assert sender.traces(SPANS) == Sent()
        assert sender.logs(RECORDS) == Sent()
    assert [path for path, _, _ in collector.got] == ["/otlp/v1/traces", "/otlp/v1/logs"]
    _, sent, body = collector.got[0]
    assert len(body) > 100 and sent["Content-Type"] == "application/x-protobuf"
    assert (sent["Authorization"], sent["X-Scope"]) == (TOKEN, "team-a")


def test_over_tls_the_collector_must_prove_its_name(upstream_tls: UpstreamTls) -> None:
    """By the roots of the setting; any other certificate gets nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(upstream_tls.certificate, upstream_tls.key)
    with collecting(context) as collector:
        assert Collector(collector.url, None, upstream_tls.ca).traces(SPANS) == Sent()
        stranger = Collector(collector.url, None, None)
        stranger.hurry()
        refused = stranger.traces(SPANS)
    assert "certificate is not trusted" in refused.why and len(collector.got) == 1


def test_neither_otel_variables_nor_proxies_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only our own settings say where telemetry goes, and with what."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-stolen=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "x-stolen=1")
    with collecting() as collector:
        assert Collector(collector.url, None, None).traces(SPANS) == Sent()
    assert "X-Stolen" not in collector.got[0][1] and "x-stolen" not in collector.got[0][1]


@pytest.mark.parametrize("status", [400, 413, 404, 302, 307])
def test_what_otlp_does_not_let_us_repeat_is_not_repeated(status: int) -> None:
    """A redirect is no answer, and not followed: the exporter alone would take it for success."""
    with collecting() as collector:
        collector.answers = [(status, {"Location": "/elsewhere"}, b"nonsense")]
        sent = Collector(collector.url, None, None).traces(SPANS)
    assert sent == Sent(f"status {status}") and len(collector.got) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_what_may_be_repeated_is(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the collector says so, within TRY_SECONDS; each try reads the headers anew."""
    monkeypatch.setattr(module, "TRY_SECONDS", 3.0)
    with collecting() as collector:
        collector.answers = [(status, {"Retry-After": "0"}, b"")]
        assert Collector(collector.url, None, None).traces(SPANS) == Sent()
        assert len(collector.got) == 2
        collector.answers = [(status, {"Retry-After": "999999"}, b"")]
        assert Collector(collector.url, None, None).traces(SPANS) == Sent(f"status {status}")
        assert len(collector.got) == 3


def test_nobody_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some tries: it may come back."""
    monkeypatch.setattr(module, "TRY_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert "refused" in Collector(url, None, None).traces(SPANS).why


def test_who_is_in_a_hurry_repeats_nothing_and_waits_for_nothing() -> None:
    """A daemon that stops: a try that waits is given up, and a batch has one."""
    with collecting() as collector:
        sender = Collector(collector.url, None, None)
        collector.answers = [(503, {"Retry-After": "10"}, b"")] * 2
        threading.Timer(0.5, sender.hurry).start()
        began = time.monotonic()
        assert sender.traces(SPANS) == Sent("status 503")
        assert sender.traces(SPANS) == Sent("status 503")
        assert sender.traces(SPANS) == Sent()
        assert time.monotonic() - began < 5 and len(collector.got) == 3


def test_what_a_collector_rejects_is_counted_and_nonsense_is_nothing() -> None:
    """The answer is foreign bytes."""
    traces = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=3))
    logs = ExportLogsServiceResponse(partial_success=ExportLogsPartialSuccess(rejected_log_records=4))
    with collecting() as collector:
        sender = Collector(collector.url, None, None)
        for nonsense in (b"", b"<html>", b"\xff" * 1000, b"\x0a\xff\xff\xff\xff\x0f", b"z" * 100_000):
            collector.answers = [(200, {}, nonsense)]
            assert sender.traces(SPANS) == Sent()
        collector.answers = [(200, {}, traces.SerializeToString()), (200, {}, logs.SerializeToString())]
        assert sender.traces(SPANS) == Sent(rejected=3)
        assert sender.logs(RECORDS) == Sent(rejected=4)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o644),
        lambda path: path.unlink(),
        lambda path: path.write_text(f"Authorization {TOKEN}"),
        lambda path: path.write_bytes(b"X: \xff"),
    ],
    ids=["readable by others", "missing", "no header", "no text"],
)
def test_a_bad_headers_file_sends_nothing_and_repeats_nothing(
    token_file: Path, spoil: Callable[[Path], None]
) -> None:
    """It is read for each batch: once it is mended, the next one goes."""
    spoil(token_file)
    with collecting() as collector:
        sender = Collector(collector.url, token_file, None)
        sender.hurry()  # one try is enough here
        sent = sender.traces(SPANS)
        assert "otel_headers_file" in sent.why and TOKEN not in sent.why
        assert collector.got == []
        token_file.write_text("X-Scope: b")
        token_file.chmod(0o600)
        assert sender.traces(SPANS) == Sent()


@pytest.mark.parametrize(
    "text",
    ["no header", "X: a\x00b", "X: a\x7fb", "Y : z", "Content-Length: 5", "host: evil", "X: ä",
     "\n".join(f"X{n}: y" for n in range(99))],
)  # fmt: skip
def test_what_could_break_the_request_is_no_header(text: str) -> None:
    """Nor what is ours to set."""
    with pytest.raises(ValueError, match=r"line|headers"):
        headers(text)
