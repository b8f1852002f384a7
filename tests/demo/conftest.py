"""The origin as its own clients reach it, without a proxy."""

import ssl
from collections.abc import Callable

import pytest

from demo.upstreams.server import TlsServer
from tests.upstreams import UpstreamTls


@pytest.fixture
def trust(upstream_tls: UpstreamTls) -> ssl.SSLContext:
    return upstream_tls.trust()


@pytest.fixture
def url(origin_server: TlsServer) -> Callable[[str], str]:
    return lambda path: f"https://localhost:{origin_server.port}{path}"
