"""Setting `refuse_inside_tls`: a host that no rule allows is refused where its client shows why."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from coatcheck.planes.mitm import deadlines
from demo.upstreams.server import TlsServer
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.planes.attack import nothing_is_left
from tests.planes.wire import http_client, wire
from tests.system.planes.conftest import POLICY
from tests.upstreams import UpstreamTls

CONNECT = b"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n"


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
        all_output / tmp_path.name, POLICY, secrets, upstream_ca=upstream_tls.ca, refuse_inside_tls=True,
        connect_to={"api.openai.com:443": origin_server.port},
    ) as running:  # fmt: skip
        yield running


async def test_a_client_reads_why_a_host_is_refused(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """A whole answer, over TLS for the name that it asked for, once; one record; nothing upstream."""
    async with http_client(daemon, sandbox) as http:
        answer = await http.get("https://other.example/some/path")
        assert answer.status_code == 403 and answer.json()["error"]["reason"] == "host_not_allowed"
        assert (answer.headers["cache-control"], answer.headers["connection"]) == ("no-store", "close")
        posted = await http.post("https://other.example/", content=b"x" * 100_000)
        assert posted.json()["error"]["reason"] == "host_not_allowed"
        allowed = {"Authorization": f"Bearer {sandbox.handles['openai']}"}
        assert (await http.get("https://api.openai.com/v1/models", headers=allowed)).status_code == 200
    assert [seen.path for seen in origin_server.seen] == ["/v1/models"]
    first = daemon.decisions()[0]
    assert (first["reason"], first["session"]) == ("host_not_allowed", sandbox.session.id)
    assert not [record for record in daemon.records() if record["type"] == "alarm"]
    await nothing_is_left(daemon)


async def test_a_handle_in_it_is_an_alarm(daemon: TestDaemon, sandbox: Sandbox) -> None:
    """As at a host that is allowed: somebody tries to take it there."""
    async with http_client(daemon, sandbox) as http:
        answer = await http.get(
            "https://other.example/", headers={"Authorization": f"Bearer {sandbox.handles['openai']}"}
        )
    assert answer.status_code == 403 and answer.json()["error"]["reason"] == "handle_wrong_host"
    assert daemon.decisions()[-1]["reason"] == "handle_wrong_host"
    assert [record["reason"] for record in daemon.records() if record["type"] == "alarm"] == [
        "handle_wrong_host"
    ]


async def test_what_is_no_tls_ends_soon(
    daemon: TestDaemon, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain HTTP gets its answer; silence gets two seconds, of which the test waits a fraction."""
    monkeypatch.setattr(deadlines, "HELLO_SECONDS", 0.1)
    async with wire(sandbox) as raw:
        await raw.send(CONNECT)
        assert (await raw.head()).startswith("HTTP/1.1 200")
        await raw.send(b"GET / HTTP/1.1\r\nHost: other.example:443\r\n\r\n")
        assert (await raw.head()).startswith("HTTP/1.1 403")
    async with wire(sandbox) as raw:
        await raw.send(CONNECT)
        assert (await raw.head()).startswith("HTTP/1.1 200")
        async with asyncio.timeout(5):
            assert await raw.rest() == b""
    await nothing_is_left(daemon)


async def test_a_name_with_two_readings_is_refused_before(daemon: TestDaemon, sandbox: Sandbox) -> None:
    """No certificate is made for what is no one name, nor for whoever is not known."""
    for target in ("other.example.:443", "127.1:443"):
        async with wire(sandbox) as raw:
            await raw.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            assert (await raw.head()).startswith("HTTP/1.1 403")


async def test_the_bare_refusal_is_the_default(tmp_path: Path, upstream_tls: UpstreamTls) -> None:
    """An operator says so first: clients that look at the CONNECT's status alone take 200 for a yes."""
    async with running_daemon(
        tmp_path / "other", POLICY, upstream_ca=upstream_tls.ca, connect_to={}
    ) as daemon:
        async with http_client(daemon, await daemon.sandbox()) as http:
            with pytest.raises(httpx.ProxyError, match="403"):
                await http.get("https://other.example/")
