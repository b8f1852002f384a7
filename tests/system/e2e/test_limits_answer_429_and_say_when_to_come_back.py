"""A policy's limits hold per session or tenant, on requests, on what runs at once, and on bytes."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest

from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.planes.wire import http_client
from tests.system.e2e.story import MODELS, bearer, policy, reason, until
from tests.upstreams import UpstreamTls

type RunDaemon = Callable[[str], AbstractAsyncContextManager[TestDaemon]]


@pytest.fixture
def daemon_with(
    place: Path, origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> RunDaemon:
    """`daemon_with("{requests: 3/minute}")`: a daemon whose one rule has these limits."""

    def run(limits: str) -> AbstractAsyncContextManager[TestDaemon]:
        return running_daemon(
            place,
            policy(rule=f"limits: {limits}"),
            {"memory:secret/openai#api_key": real_keys["openai"]},
            upstream_ca=upstream_tls.ca,
            connect_to={"api.openai.com:443": origin_server.port},
        )

    return run


async def statuses(daemon: TestDaemon, tenant: str, subject: str, count: int) -> list[int]:
    """What a new session gets for `count` requests, one after the other."""
    sandbox = await daemon.sandbox(tenant=tenant, subject=subject)
    async with http_client(daemon, sandbox) as http:
        return [(await http.get(MODELS, headers=bearer(sandbox))).status_code for _ in range(count)]


async def test_requests_per_session(daemon_with: RunDaemon, origin_server: TlsServer) -> None:
    """Three pass, the fourth is told when the next will; another session has its own three."""
    async with daemon_with("{requests: 3/hour, per: session}") as daemon:
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:
            answers = [await http.get(MODELS, headers=bearer(sandbox)) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert reason(answers[-1]) == "rate_limited"
        assert 1100 <= int(answers[-1].headers["retry-after"]) <= 1200  # a third of an hour
        assert await statuses(daemon, "acme", "another", 4) == [200, 200, 200, 429]
    assert len(origin_server.seen) == 6


async def test_waiting_as_long_as_told_is_enough(daemon_with: RunDaemon) -> None:
    """A client that does what Retry-After says is served."""
    async with daemon_with("{requests: 1/second, per: session}") as daemon:
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:
            assert (await http.get(MODELS, headers=bearer(sandbox))).status_code == 200
            refused = await http.get(MODELS, headers=bearer(sandbox))
            if refused.status_code == 429:  # else the machine slept for a second in between
                await asyncio.sleep(int(refused.headers["retry-after"]))
                assert (await http.get(MODELS, headers=bearer(sandbox))).status_code == 200


async def test_requests_per_tenant(daemon_with: RunDaemon) -> None:
    """Sessions of one tenant share; another tenant does not notice."""
    async with daemon_with("{requests: 3/hour, per: tenant}") as daemon:
        assert await statuses(daemon, "acme", "one", 2) == [200, 200]
        assert await statuses(daemon, "acme", "two", 2) == [200, 429]
        assert await statuses(daemon, "globex", "three", 3) == [200, 200, 200]


async def test_what_runs_at_once(daemon_with: RunDaemon, origin_server: TlsServer) -> None:
    """A third request beside two running ones is refused; when one has ended there is room again."""
    async with daemon_with("{concurrent: 2, per: session}") as daemon:
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:
            slow = "https://api.openai.com/slow?seconds=1"
            running = [asyncio.ensure_future(http.get(slow, headers=bearer(sandbox))) for _ in range(2)]

            async def arrived() -> int:
                return len(origin_server.seen)

            await until(arrived, lambda count: count == 2)
            third = await http.get(MODELS, headers=bearer(sandbox))
            assert (third.status_code, reason(third)) == (429, "concurrency_limited")
            assert int(third.headers["retry-after"]) >= 1
            assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
            assert (await http.get(MODELS, headers=bearer(sandbox))).status_code == 200


async def test_bytes_down(daemon_with: RunDaemon) -> None:
    """An answer that is too much breaks off without a clean end, and the next request is refused."""
    async with daemon_with("{bytes_down: 1MiB/hour, per: session}") as daemon:
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:
            big = "https://api.openai.com/big?chunked=1&bytes="
            assert len((await http.get(f"{big}500000", headers=bearer(sandbox))).content) == 500_000
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                await http.get(f"{big}3000000", headers=bearer(sandbox))
            refused = await http.get(MODELS, headers=bearer(sandbox))
        assert (refused.status_code, reason(refused)) == (429, "bytes_limited")
        assert int(refused.headers["retry-after"]) >= 1
        ends = [record for record in daemon.records() if record["type"] == "completion"]
        assert [end["aborted"] for end in ends] == [None, "bytes_limited"]
        assert ends[1]["bytes_down"] < 700_000


async def test_bytes_up(daemon_with: RunDaemon) -> None:
    """The same for what is sent."""
    async with daemon_with("{bytes_up: 1MiB/hour, per: session}") as daemon:
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:
            sink = "https://api.openai.com/sink"
            sent = await http.post(sink, headers=bearer(sandbox), content=b"x" * 500_000)
            assert sent.json()["bytes"] == 500_000
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)):
                await http.post(sink, headers=bearer(sandbox), content=b"x" * 3_000_000)
            refused = await http.post(sink, headers=bearer(sandbox), content=b"x")
        assert (refused.status_code, reason(refused)) == (429, "bytes_limited")
