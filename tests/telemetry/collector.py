"""A real OTLP/HTTP collector on loopback, which answers as a test says and decodes what it got."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.trace import ReadableSpan


@dataclass
class Collector:
    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    """Of the next requests; then 200 and an empty message."""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """Path, headers, body."""

    def bodies(self, path: str) -> list[bytes]:
        return [body for at, _, body in self.got if at == path]

    def spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies("/v1/traces")]
        return [
            span
            for r in requests
            for whole in r.resource_spans
            for s in whole.scope_spans
            for span in s.spans
        ]

    def records(self) -> list[LogRecord]:
        requests = [ExportLogsServiceRequest.FromString(body) for body in self.bodies("/v1/logs")]
        scopes = [scope for r in requests for whole in r.resource_logs for scope in whole.scope_logs]
        return [record for scope in scopes for record in scope.log_records]

    def resource(self) -> dict[str, Any]:
        """Of the first span that came."""
        first = ExportTraceServiceRequest.FromString(self.bodies("/v1/traces")[0]).resource_spans[0]
        return plain(first.resource.attributes)


def span_sent(made: ReadableSpan) -> Span:
    """As the exporter encodes it."""
    sent: Span = encode_spans([made]).resource_spans[0].scope_spans[0].spans[0]
    return sent


def record_sent(made: ReadableLogRecord) -> LogRecord:
    """As the exporter encodes it."""
    sent: LogRecord = encode_logs([made]).resource_logs[0].scope_logs[0].log_records[0]
    return sent


def plain(attributes: Any) -> dict[str, Any]:
    """An OTLP attribute list as a dict. No key stands twice."""
    found = {each.key: _value(each.value) for each in attributes}
    assert len(found) == len(attributes)
    return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    held = getattr(value, kind)
    return [_value(each) for each in held.values] if kind == "array_value" else held


@contextmanager
def collecting(tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """The collector, until the block ends."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, answer = collector.answers.pop(0) if collector.answers else (200, {}, b"")
            collector.got.append((self.path, dict(self.headers), body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    collector.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
