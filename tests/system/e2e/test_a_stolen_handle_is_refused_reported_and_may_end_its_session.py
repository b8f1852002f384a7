"""A handle that turns up in another sandbox is refused and reported; policy may end the victim's session."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest

from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.planes.wire import http_client
from tests.system.e2e.inside import inside
from tests.system.e2e.story import MODELS, bearer, policy, reason, until
from tests.upstreams import UpstreamTls

type RunDaemon = Callable[[str], AbstractAsyncContextManager[TestDaemon]]


@pytest.fixture
def daemon_with(
    place: Path, origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> RunDaemon:
    """`daemon_with("revoke_on_theft: true")`: a daemon whose credential says so."""

    def run(credential: str) -> AbstractAsyncContextManager[TestDaemon]:
        return running_daemon(
            place,
            policy(credential=credential),
            {"memory:secret/openai#api_key": real_keys["openai"]},
            upstream_ca=upstream_tls.ca,
            connect_to={"api.openai.com:443": origin_server.port},
        )

    return run


@pytest.mark.needs_debian("curl")
async def test_the_thief_gets_nothing_and_the_victim_goes_on(
    daemon_with: RunDaemon, origin_server: TlsServer, tmp_path: Path
) -> None:
    """By default a theft is an alarm; the victim, who may not even know, is not punished for it."""
    async with daemon_with("") as daemon:
        victim, thief = await daemon.sandbox(tenant="acme"), await daemon.sandbox(tenant="globex")
        there = inside(thief, tmp_path / "thief")
        ran = await there.run(
            "sh", "-c", f'curl -sSi {MODELS} -H "Authorization: Bearer $STOLEN"',
            STOLEN=victim.handles["openai"],
        )  # fmt: skip
        assert "HTTP/1.1 401" in ran.output and "handle_stolen" in ran.output
        assert victim.session.id not in ran.output and "acme" not in ran.output
        async with http_client(daemon, victim) as http:
            assert (await http.get(MODELS, headers=bearer(victim))).status_code == 200
        (alarm,) = [record for record in daemon.records() if record["type"] == "alarm"]
        assert alarm["reason"] == "handle_stolen" and alarm["session"] == thief.session.id
        assert victim.session.id in alarm["detail"]
    assert len(origin_server.seen) == 1


async def test_policy_may_end_the_session_whose_handle_was_stolen(
    daemon_with: RunDaemon, origin_server: TlsServer
) -> None:
    """`revoke_on_theft`: the victim's open stream breaks off, and its handle is dead for the victim, too."""
    async with daemon_with("revoke_on_theft: true") as daemon:
        victim, thief = await daemon.sandbox(), await daemon.sandbox()
        reading = asyncio.Event()
        async with http_client(daemon, victim) as mine, http_client(daemon, thief) as theirs:

            async def read() -> None:
                url = "https://api.openai.com/sse?n=10000&gap_ms=20"
                async with mine.stream("GET", url, headers=bearer(victim)) as answer:
                    async for _ in answer.aiter_lines():
                        reading.set()

            stream = asyncio.create_task(read())
            async with asyncio.timeout(20):
                await reading.wait()
            stolen = await theirs.get(MODELS, headers=bearer(victim))
            assert (stolen.status_code, reason(stolen)) == (401, "handle_stolen")
            async with asyncio.timeout(20):
                with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                    await stream

            async def status() -> str:
                return str(daemon.state.status(victim.session.id))

            await until(status, lambda now: now == "revoked")
            assert (await theirs.get(MODELS, headers=bearer(thief))).status_code == 200
            with pytest.raises(httpx.TransportError):
                await mine.get(MODELS, headers=bearer(victim))
        (change,) = [r for r in daemon.records() if r["type"] == "session" and r["change"] == "revoked"]
        assert change["session"] == victim.session.id and change["caller"] == "policy:revoke_on_theft"
