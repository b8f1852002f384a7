"""A daemon that speaks HTTP/2 to both sides, an upstream and a client of it: fixtures to import."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.planes.h2_client import H2Client
from tests.planes.h2_origin import H2Origin, h2_origin
from tests.planes.wire import wire
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  github:
    secret: memory:secret/github#token
    hosts: [api.github.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: GITHUB_TOKEN
rules:
  - name: rpc
    hosts: [api.github.com]
    methods: [GET, HEAD, POST]
    http2: true
    credentials: [github]
"""


@pytest.fixture
async def origin(upstream_tls: UpstreamTls) -> AsyncIterator[H2Origin]:
    async with h2_origin(upstream_tls) as running:
        yield running


@pytest.fixture
async def daemon(
    tmp_path: Path, all_output: Path, origin: H2Origin, upstream_tls: UpstreamTls, git_token: str
) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        all_output / tmp_path.name,
        POLICY,
        {"memory:secret/github#token": git_token},
        upstream_ca=upstream_tls.ca,
        connect_to={"api.github.com:443": origin.port},
    ) as running:
        yield running


@pytest.fixture
async def sandbox(daemon: TestDaemon) -> Sandbox:
    return await daemon.sandbox()


@pytest.fixture
async def client(daemon: TestDaemon, sandbox: Sandbox) -> AsyncIterator[H2Client]:
    async with wire(sandbox) as raw:
        await raw.send(b"CONNECT api.github.com:443 HTTP/1.1\r\n\r\n")
        assert await raw.status() == 200
        await raw.start_tls(daemon.trust.ca, "api.github.com", ("h2",))
        made = H2Client(raw.reader, raw.writer, sandbox)
        made.h2.initiate_connection()
        await made.flush()
        task = asyncio.create_task(made.run())
        yield made
        task.cancel()


def bearer(sandbox: Sandbox) -> dict[str, str]:
    return {"Authorization": f"Bearer {sandbox.handles['github']}"}
