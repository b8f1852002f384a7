"""The upstream of the benchmark: nginx, TLS 1.3, an EC P-256 certificate, one worker, 1 KiB answers.

It answers 401 to whatever is not a real key, so that a proxy which forgot to swap cannot win.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.bench import world
from tests.bench.proxies import BenchError, running, wait_for_port
from tests.debian import find
from tests.ports import free_port

LARGE = 16 * 1024 * 1024
"""Bytes that /large answers with."""
BODY = ("a page of words " * 64)[:1023] + "."

CONFIG = """
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 300s;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  map $http_authorization $known {{ default 0; "~^Bearer real-key-" 1; }}
  server {{
    listen 127.0.0.1:{port} ssl backlog=1024;
    ssl_certificate {directory}/cert.pem;
    ssl_certificate_key {directory}/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    default_type text/plain;
    if ($known = 0) {{ return 401 "not a real key"; }}
    location /large {{ root {directory}; }}
    location / {{ return 200 "{body}"; }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Origin:
    address: tuple[str, int]
    ca: Path
    """PEM of the CA that signed its certificate."""


@contextmanager
def running_origin(directory: Path) -> Iterator[Origin]:
    """nginx, until the end of the block."""
    nginx = find("nginx")
    if nginx is None:
        raise BenchError("the benchmark needs nginx: apt-get install nginx-light")
    directory.mkdir()
    directory.chmod(0o755)  # its worker is another user
    authority = trustme.CA()
    issued = authority.issue_cert(*world.HOSTS, "127.0.0.1")
    (directory / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (directory / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (directory / "ca.pem").write_bytes(authority.cert_pem.bytes())
    port = free_port()
    (directory / "nginx.conf").write_text(CONFIG.format(directory=directory, port=port, body=BODY))
    log = directory / "stderr.log"
    with running([nginx, "-c", str(directory / "nginx.conf")], log, None, {}) as process:
        wait_for_port(("127.0.0.1", port), process, log)
        yield Origin(("127.0.0.1", port), directory / "ca.pem")
