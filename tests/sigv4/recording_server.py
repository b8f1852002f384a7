"""A TLS server that remembers requests as they came and refuses each, so that every SDK understands."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import trustme

from coatcheck.decision.message import Destination, RequestHead

REFUSAL = b"<ErrorResponse><Error><Code>Recorded</Code></Error></ErrorResponse>"


@dataclass
class Recording:
    """Where the server is, whom to trust, and what came."""

    destination: Destination
    ca_file: str
    requests: list[tuple[RequestHead, bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.destination.url

    def only(self) -> tuple[RequestHead, bytes]:
        """The one request since the last call."""
        (request,) = self.requests
        self.requests.clear()
        return request


@contextmanager
def recording_server(directory: Path) -> Iterator[Recording]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    ca_file = directory / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        raw_requestline: bytes

        def parse_request(self) -> bool:
            # http.server joins leading slashes of the path; the raw line is what was signed.
            self.raw_target = self.raw_requestline.decode("latin-1").split(" ")[1]
            return super().parse_request()

        def record(self) -> None:
            chunked = self.headers.get("transfer-encoding") == "chunked"
            body = self.chunks() if chunked else self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = tuple((name.lower(), value) for name, value in self.headers.items())
            head = RequestHead(self.command, self.raw_target, headers, end_stream=not body)
            recording.requests.append((head, body))
            self.send_response(400)
            self.send_header("content-length", str(len(REFUSAL)))
            self.end_headers()
            self.wfile.write(REFUSAL)

        def chunks(self) -> bytes:
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_PUT = do_POST = record  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Nothing: requests hold handles."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    recording = Recording(Destination("https", "localhost", server.server_address[1]), str(ca_file))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield recording
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
