"""A TLS server with one of our leaves, and a CONNECT proxy that sends every name to it, on loopback.

The proxy is how clients find a host that no resolver knows, with nothing but their environment.
"""

import http.server
import select
import socket
import socketserver
import ssl
import threading
from pathlib import Path
from typing import Self

from coatcheck.certificates.leaf import Leaf, LeafIssuer

IDLE_SECONDS = 20.0
"""A client that says nothing for so long is stuck: its connection is given up, so that no test hangs."""


class _Answer(http.server.BaseHTTPRequestHandler):
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        body = b"hello\n" if self.path == "/" else b"not here\n"
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


class _TlsServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that refuses our certificate is what half of the tests want


class _Connect(socketserver.BaseRequestHandler):
    server: "_ConnectServer"

    def handle(self) -> None:
        self.request.settimeout(IDLE_SECONDS)
        head = b""
        while b"\r\n\r\n" not in head:
            if not (received := self.request.recv(4096)):
                return
            head += received
        self.server.targets.append(head.split(b" ", 2)[1].decode())
        with socket.create_connection(self.server.upstream) as upstream:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            sides = {self.request: upstream, upstream: self.request}
            while readable := select.select([*sides], [], [], IDLE_SECONDS)[0]:
                for side in readable:
                    if not (chunk := side.recv(65536)):
                        return
                    sides[side].sendall(chunk)


class _ConnectServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    upstream: tuple[str, int]
    targets: list[str]

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class Endpoint:
    """Both servers, up inside `with`."""

    def __init__(self, issuer: LeafIssuer, leaf: Leaf, directory: Path) -> None:
        chain, key = directory / "leaf.pem", directory / "leaf-key.pem"
        chain.write_bytes(leaf.pem)
        key.write_bytes(issuer.key_pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        self._tls = _TlsServer(("127.0.0.1", 0), _Answer)
        # The handshake belongs into the connection's thread: a stalled client must not stop the others.
        self._tls.socket = context.wrap_socket(
            self._tls.socket, server_side=True, do_handshake_on_connect=False
        )
        self._proxy = _ConnectServer(("127.0.0.1", 0), _Connect)
        self._proxy.upstream = ("127.0.0.1", self.port)
        self._proxy.targets = []

    @property
    def port(self) -> int:
        return int(self._tls.server_address[1])

    @property
    def proxy_url(self) -> str:
        return f"http://127.0.0.1:{self._proxy.server_address[1]}"

    @property
    def targets(self) -> list[str]:
        """What clients asked the proxy for, `host:port`, in order."""
        return self._proxy.targets

    def __enter__(self) -> Self:
        for server in (self._tls, self._proxy):
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._proxy, self._tls):
            server.shutdown()
            server.server_close()
