"""TLS that is let through unopened: only to its own name, counted, and ended with the session."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demo.upstreams.server import TlsServer
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.planes.wire import Wire, wire
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
rules:
  - name: pinned
    hosts: [upstream.example]
    ports: [443]
    tunnel: true
    max_request: 20KiB
"""


@pytest.fixture
async def pinned(
    tmp_path: Path, all_output: Path, origin_server: TlsServer, upstream_tls: UpstreamTls
) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        all_output / tmp_path.name,
        POLICY,
        upstream_ca=upstream_tls.ca,
        connect_to={"upstream.example:443": origin_server.port},
    ) as running:
        yield running


async def connect(raw: Wire) -> None:
    await raw.send(b"CONNECT upstream.example:443 HTTP/1.1\r\nHost: upstream.example:443\r\n\r\n")
    assert await raw.status() == 200


@pytest.fixture
async def sandbox(pinned: TestDaemon) -> Sandbox:
    return await pinned.sandbox()


async def test_a_client_that_pins_sees_the_upstreams_own_certificate(
    pinned: TestDaemon, sandbox: Sandbox, upstream_tls: UpstreamTls, origin_server: TlsServer
) -> None:
    """The TLS is end to end; what passed is counted and recorded with the rule."""
    async with wire(sandbox) as raw:
        await connect(raw)
        await raw.start_tls(upstream_tls.ca, "upstream.example")
        await raw.send(b"GET /big?bytes=5000 HTTP/1.1\r\nHost: upstream.example\r\nConnection: close\r\n\r\n")
        assert await raw.status() == 200
        assert len(await raw.rest()) == 5000
    decision = pinned.decisions()[-1]
    assert (decision["outcome"], decision["rule"], decision["method"]) == ("pass", "pinned", "CONNECT")
    async with asyncio.timeout(5):
        while not (ended := [r for r in pinned.records() if r["type"] == "completion"]):
            await asyncio.sleep(0.01)
    assert ended[-1]["bytes_down"] > 5000


@pytest.mark.parametrize("name", ["other.example", None])
async def test_another_name_in_the_hello_is_refused(
    pinned: TestDaemon,
    sandbox: Sandbox,
    upstream_tls: UpstreamTls,
    origin_server: TlsServer,
    name: str | None,
) -> None:
    """Fronting through a tunnel that nobody opens would go unseen."""
    async with wire(sandbox) as raw:
        await connect(raw)
        with pytest.raises((OSError, ssl.SSLError)):
            await raw.start_tls(upstream_tls.ca, name)
    decision = pinned.decisions()[-1]
    assert (decision["outcome"], decision["reason"]) == ("deny", "authority_mismatch")
    assert not origin_server.seen


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\x16\x03\x01\x40\x01" + b"\x01" * 20_000]
)
async def test_only_tls_goes_into_it(
    pinned: TestDaemon, sandbox: Sandbox, origin_server: TlsServer, first: bytes
) -> None:
    """Plain HTTP, SSH, and a hello that never ends."""
    async with wire(sandbox) as raw:
        await connect(raw)
        await raw.send(first)
        assert await raw.rest() == b""
    assert pinned.decisions()[-1]["reason"] == "protocol_refused"
    assert not origin_server.seen


async def test_its_bytes_are_limited(pinned: TestDaemon, sandbox: Sandbox, upstream_tls: UpstreamTls) -> None:
    """A tunnel without a limit would be the way out for everything."""
    async with wire(sandbox) as raw:
        await connect(raw)
        await raw.start_tls(upstream_tls.ca, "upstream.example")
        head = b"POST /sink HTTP/1.1\r\nHost: upstream.example\r\nContent-Length: 100000\r\n\r\n"
        try:
            await raw.send(head + b"x" * 100_000)
            assert not (await raw.rest()).startswith(b"HTTP/1.1 200")
        except OSError:
            pass
    completion = [record for record in pinned.records() if record["type"] == "completion"][-1]
    assert completion["aborted"] == "body_too_large"


async def test_it_ends_with_its_session(
    pinned: TestDaemon, sandbox: Sandbox, upstream_tls: UpstreamTls
) -> None:
    """At once, not when it is idle (I5)."""
    async with wire(sandbox) as raw:
        await connect(raw)
        await raw.start_tls(upstream_tls.ca, "upstream.example")
        await raw.send(b"GET /sse?n=100&gap_ms=50 HTTP/1.1\r\nHost: upstream.example\r\n\r\n")
        assert await raw.status() == 200
        await asyncio.to_thread(pinned.state.revoke, sandbox.session.id, "test")
        async with asyncio.timeout(1):
            await raw.rest()
