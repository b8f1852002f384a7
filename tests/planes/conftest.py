"""A daemon in front of the demo's origin, and a sandbox to attack it from."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coatcheck.demo.server import TlsServer
from tests.daemon import Sandbox, TestDaemon, running_daemon
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
