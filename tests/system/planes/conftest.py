"""A daemon in front of the demo's origin, and a sandbox to attack it from."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demo.upstreams.server import TlsServer
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.planes.raw_origin import RawOrigin, running_origin
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: memory:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
    shape: {prefix: sk-}
  anthropic:
    secret: memory:secret/anthropic#api_key
    hosts: [api.anthropic.com]
    inject: {header: X-Api-Key}
    env: ANTHROPIC_API_KEY
rules:
  - name: openai
    hosts: [api.openai.com]
    methods: [GET, POST, PUT, HEAD]
    credentials: [openai]
    websocket: true
  - name: anthropic
    hosts: [api.anthropic.com]
    methods: [GET, POST]
    credentials: [anthropic]
  - name: free
    hosts: [upstream.example]
    methods: [GET, HEAD, POST, PUT]
    websocket: true
"""

RAW_POLICY = (
    POLICY
    + """
  - name: plain
    hosts: [other.example]
    methods: [GET, HEAD, POST]
    plain_http: true
    ports: [80, 443]
  - name: rpc
    hosts: [api.github.com]
    methods: [GET, HEAD, POST, PUT]
    http2: true
"""
)

ORIGIN = ("api.openai.com", "api.anthropic.com", "upstream.example", "other.example")


@pytest.fixture
async def daemon(
    tmp_path: Path,
    all_output: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> AsyncIterator[TestDaemon]:
    secrets = {f"memory:secret/{name}#api_key": key for name, key in real_keys.items()}
    async with running_daemon(
        all_output / tmp_path.name,
        POLICY,
        secrets,
        upstream_ca=upstream_tls.ca,
        connect_to={f"{host}:443": origin_server.port for host in ORIGIN},
    ) as running:
        yield running


@pytest.fixture
async def sandbox(daemon: TestDaemon) -> Sandbox:
    return await daemon.sandbox()


@pytest.fixture
async def raw_origin(upstream_tls: UpstreamTls) -> AsyncIterator[RawOrigin]:
    """An upstream that sends the bytes a test wants, as every host of RAW_POLICY."""
    async with running_origin(upstream_tls) as running:
        yield running


@pytest.fixture
async def plain_origin() -> AsyncIterator[RawOrigin]:
    """The same without TLS, as port 80 of other.example."""
    async with running_origin(None) as running:
        yield running


@pytest.fixture
async def raw_daemon(
    tmp_path: Path,
    all_output: Path,
    raw_origin: RawOrigin,
    plain_origin: RawOrigin,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> AsyncIterator[TestDaemon]:
    secrets = {f"memory:secret/{name}#api_key": key for name, key in real_keys.items()}
    hosts = (*ORIGIN, "api.github.com")
    async with running_daemon(
        all_output / tmp_path.name,
        RAW_POLICY,
        secrets,
        upstream_ca=upstream_tls.ca,
        connect_to={f"{host}:443": raw_origin.port for host in hosts}
        | {"other.example:80": plain_origin.port},
    ) as running:
        yield running


@pytest.fixture
async def raw_sandbox(raw_daemon: TestDaemon) -> Sandbox:
    return await raw_daemon.sandbox()
