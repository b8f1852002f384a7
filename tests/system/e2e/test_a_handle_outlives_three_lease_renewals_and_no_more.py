"""A running process never learns a new handle; a copy of its handle is worth nothing anywhere else."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from coatcheck.state.errors import StateError
from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.planes.wire import http_client
from tests.system.e2e.inside import inside
from tests.system.e2e.story import MODELS, bearer, policy, reason
from tests.upstreams import UpstreamTls

LEASE = 2.0

# One SDK client, made once with the key that the environment held; it asks whenever it is told to.
AGENT = """
import openai, sys
client = openai.OpenAI(max_retries=0, timeout=5)
for _ in sys.stdin:
    try:
        client.models.list()
        print("answered", flush=True)
    except openai.APIError as error:
        print(getattr(error, "body", None) or type(error).__name__, flush=True)
"""


@pytest.fixture
async def daemon(
    place: Path, origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        place,
        policy(),
        {"memory:secret/openai#api_key": real_keys["openai"]},
        upstream_ca=upstream_tls.ca,
        connect_to={"api.openai.com:443": origin_server.port},
        session_lease=LEASE,
        proxy_port=0,
    ) as running:
        yield running


async def test_one_process_past_three_renewals(
    daemon: TestDaemon, origin_server: TlsServer, tmp_path: Path
) -> None:
    """Asked before and after each of three renewals it gets answers, with the string it started with.

    Copies of the string are refused at once elsewhere. When nobody renews any more, the process itself
    is refused, and no request of anybody reaches the origin later than one lease after the last renewal.
    """
    sandbox = await daemon.sandbox()
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT,
        env=dict(inside(sandbox, tmp_path / "home").environment),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert agent.stdin is not None and agent.stdout is not None
    stdin, stdout = agent.stdin, agent.stdout

    async def ask() -> str:
        stdin.write(b"ask\n")
        async with asyncio.timeout(20):
            return (await stdout.readline()).decode()

    async def keep_alive(until: asyncio.Event) -> None:
        """What a launcher does. It begins at once: importing the SDK takes longer than a lease."""
        while not until.is_set():
            daemon.state.renew(sandbox.session.id, "test")
            renewals.append(time.time())
            await asyncio.sleep(LEASE / 4)

    renewals: list[float] = []
    enough = asyncio.Event()
    renewing = asyncio.create_task(keep_alive(enough))
    try:
        assert await ask() == "answered\n"
        for _ in range(3):
            so_far = len(renewals)
            while len(renewals) == so_far:
                await asyncio.sleep(0.02)
            assert await ask() == "answered\n"
        while time.time() < sandbox.session.opened_at + 1.5 * LEASE:  # past the first lease's end
            await asyncio.sleep(0.05)
        assert await ask() == "answered\n"
        await copies_are_refused(daemon, bearer(sandbox), "handle_stolen")

        enough.set()
        await renewing
        while (said := await ask()) == "answered\n":
            assert time.time() < renewals[-1] + LEASE + 10, "it lives on without a lease"
            await asyncio.sleep(0.05)
        assert "lease_lapsed" in said or "APIConnectionError" in said, said
        assert origin_server.seen[-1].at < renewals[-1] + LEASE + 3  # its way to the origin included
        assert {seen.genuine for seen in origin_server.seen} == {"openai"}

        before = len(origin_server.seen)
        await copies_are_refused(daemon, bearer(sandbox), "handle_")
        assert len(origin_server.seen) == before
    finally:
        enough.set()
        await renewing
        agent.kill()
        await agent.wait()


async def copies_are_refused(daemon: TestDaemon, headers: dict[str, str], why: str) -> None:
    """From another session's socket, and from no session's at all (a shared listener)."""
    thief = await daemon.sandbox(subject="thief")
    async with http_client(daemon, thief) as http:
        stolen = await http.get(MODELS, headers=headers)
    assert stolen.status_code == 401 and reason(stolen).startswith(why)
    assert daemon.proxy_address is not None
    host, port = daemon.proxy_address
    async with httpx.AsyncClient(proxy=f"http://{host}:{port}") as http:
        with pytest.raises(httpx.ProxyError, match="407"):
            await http.get(MODELS, headers=headers)


async def test_the_lease_that_is_not_renewed_is_not_revived(
    daemon: TestDaemon, origin_server: TlsServer
) -> None:
    """Renewing too late is refused, and the session stays dead."""
    sandbox = await daemon.sandbox(lease_seconds=3.0)
    async with http_client(daemon, sandbox) as http:
        assert (await http.get(MODELS, headers=bearer(sandbox))).status_code == 200
        await asyncio.sleep(3.05)
        with pytest.raises(StateError):
            daemon.state.renew(sandbox.session.id, "test")
        try:
            late = await http.get(MODELS, headers=bearer(sandbox))
            assert (late.status_code, reason(late)) == (401, "lease_lapsed")
        except httpx.TransportError:
            pass  # its listener and tunnels are closed already
    assert len(origin_server.seen) == 1
