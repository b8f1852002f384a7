"""A rule with `ask` holds real requests in front of a real API until somebody said yes by the control API."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coatcheck.client.control import ControlClient
from demo.upstreams.server import TlsServer
from tests.cli.transcript import coatcheck
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.planes.wire import Wire, http_client
from tests.system.e2e.story import MODELS, bearer, policy, reason, until
from tests.upstreams import UpstreamTls


@pytest.fixture
async def daemon(
    place: Path, origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        place,
        policy(rule="ask: {wait: 10m, remember: 15m}"),
        {"memory:secret/openai#api_key": real_keys["openai"]},
        upstream_ca=upstream_tls.ca,
        connect_to={"api.openai.com:443": origin_server.port},
    ) as running:
        yield running


async def waiting(daemon: TestDaemon, count: int = 1) -> list[dict[str, Any]]:
    client = ControlClient(daemon.settings.control)
    return await until(lambda: asyncio.to_thread(client.approvals), lambda found: len(found) == count)


async def answer(daemon: TestDaemon, approval: str, word: str, **more: Any) -> None:
    client = ControlClient(daemon.settings.control)
    await asyncio.to_thread(lambda: client.answer_approval(approval, word, **more))


def get(http: httpx.AsyncClient, sandbox: Sandbox, url: str = MODELS) -> "asyncio.Task[httpx.Response]":
    return asyncio.ensure_future(http.get(url, headers=bearer(sandbox), timeout=60))


async def test_a_yes_lets_it_go_and_a_no_does_not(daemon: TestDaemon, origin_server: TlsServer) -> None:
    """Before the answer the API has seen nothing; who said what is in the log before that."""
    sandbox = await daemon.sandbox()
    async with http_client(daemon, sandbox) as http:
        asking = get(http, sandbox)
        (asked,) = await waiting(daemon)
        assert not origin_server.seen
        assert (asked["method"], asked["destination"], asked["path"]) == (
            "GET",
            "https://api.openai.com",
            "/v1/models",
        )
        assert (asked["credentials"], asked["rule"], asked["tenant"]) == (["openai"], "models", "acme")
        await answer(daemon, asked["id"], "yes", person="alice")
        assert (await asking).status_code == 200 and len(origin_server.seen) == 1
        refused = get(http, sandbox)
        await answer(daemon, (await waiting(daemon))[0]["id"], "no")
        said = await refused
    assert (said.status_code, reason(said)) == (403, "approval_refused")
    assert "alice" not in said.text and "uid" not in said.text
    assert len(origin_server.seen) == 1
    told = [
        (record["change"], record["approver"]) for record in daemon.records() if record["type"] == "approval"
    ]
    me = next(record["approved_by"] for record in daemon.decisions())
    assert told[:2] == [("asked", ""), ("approved", me)] and me.endswith(" for alice")
    assert [change for change, _ in told[2:]] == ["asked", "refused"]
    assert [record["outcome"] for record in daemon.decisions()] == ["inject", "deny"]


async def test_the_command_answers_and_remembers(daemon: TestDaemon, tmp_path: Path) -> None:
    """`approval yes --remember`: the same request is not asked about again, another one is."""
    sandbox = await daemon.sandbox()
    socket = ("--socket", str(daemon.settings.control))
    async with http_client(daemon, sandbox) as http:
        asking = get(http, sandbox)
        (asked,) = await waiting(daemon)
        listed = await asyncio.to_thread(coatcheck, "approval", "list", *socket, cwd=tmp_path)
        assert asked["id"] in listed.out and "GET https://api.openai.com/v1/models" in listed.out
        words = ("approval", "yes", asked["id"], "--remember", *socket)
        said = await asyncio.to_thread(coatcheck, *words, cwd=tmp_path)
        assert said.code == 0 and said.out.startswith("yes: acme/agent GET https://api.openai.com/v1/models")
        assert (await asking).status_code == 200
        assert (await get(http, sandbox)).status_code == 200
        other = get(http, sandbox, f"{MODELS}/other?token=hunter2")
        (asked,) = await waiting(daemon)
        assert asked["path"] == "/v1/models/other?token=…"
        said = await asyncio.to_thread(coatcheck, "approval", "no", asked["id"], *socket, cwd=tmp_path)
        assert said.code == 0 and (await other).status_code == 403
        again = await asyncio.to_thread(coatcheck, "approval", "no", asked["id"], *socket, cwd=tmp_path)
        assert again.code == 3 and "said no" in again.err and "approval list" in again.err


async def test_a_revoked_session_is_not_asked_for_any_more(
    daemon: TestDaemon, origin_server: TlsServer
) -> None:
    """A yes that comes then is late; nothing has left."""
    sandbox = await daemon.sandbox()
    async with http_client(daemon, sandbox) as http:
        asking = get(http, sandbox)
        (asked,) = await waiting(daemon)
        await asyncio.to_thread(ControlClient(daemon.settings.control).revoke, sandbox.session.id)
        await waiting(daemon, 0)
        with pytest.raises(Exception, match="does not wait"):
            await answer(daemon, asked["id"], "yes")
        done = (await asyncio.gather(asking, return_exceptions=True))[0]
    assert isinstance(done, httpx.TransportError) or (
        isinstance(done, httpx.Response) and done.status_code == 401
    )
    assert not origin_server.seen


async def test_a_client_that_went_away_is_not_asked_for(daemon: TestDaemon, origin_server: TlsServer) -> None:
    """Nobody is to decide on what nobody waits for."""
    sandbox = await daemon.sandbox()
    wire = Wire(*await asyncio.open_connection(*sandbox.address))
    await wire.send(b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n")
    assert await wire.status() == 200
    await wire.start_tls(daemon.trust.ca, "api.openai.com")
    header = f"Authorization: {bearer(sandbox)['Authorization']}"
    await wire.send(f"GET /v1/models HTTP/1.1\r\nHost: api.openai.com\r\n{header}\r\n\r\n".encode())
    await waiting(daemon)
    wire.writer.transport.abort()
    await waiting(daemon, 0)
    assert not origin_server.seen
    assert (
        json.dumps([r["change"] for r in daemon.records() if r["type"] == "approval"])
        == '["asked", "withdrawn"]'
    )


async def test_an_upload_waits_in_the_kernel_while_somebody_is_asked(
    daemon: TestDaemon, origin_server: TlsServer
) -> None:
    """A body of 16 MiB is not kept in our memory, and is whole at the API after the yes."""
    sandbox = await daemon.sandbox()
    size, sent = 16 * 1024 * 1024, 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < size:
            sent += 65_536
            yield bytes(65_536)

    async with http_client(daemon, sandbox) as http:
        sink = "https://api.openai.com/sink"
        upload = asyncio.ensure_future(http.post(sink, headers=bearer(sandbox), content=body(), timeout=60))
        (asked,) = await waiting(daemon)
        before = -1
        while before != sent:  # until it stands still
            before = sent
            await asyncio.sleep(0.5)
        assert sent < size
        await answer(daemon, asked["id"], "yes")
        assert (await upload).json()["bytes"] == size


async def test_a_policy_that_now_asks_stops_what_runs_unasked(daemon: TestDaemon, place: Path) -> None:
    """A stream that was let through by a rule without `ask` is cut when the rule gets one."""
    daemon.state.swap_policies(_loaded(policy()))
    sandbox = await daemon.sandbox()
    async with http_client(daemon, sandbox) as http:
        slow = "https://api.openai.com/sse?n=400&gap_ms=50"
        async with http.stream("GET", slow, headers=bearer(sandbox), timeout=60) as stream:
            parts = stream.aiter_raw()
            await anext(parts)
            daemon.state.swap_policies(_loaded(policy(rule="ask: {wait: 1m}")))
            with pytest.raises(httpx.TransportError):
                await asyncio.wait_for(_drain(parts), 20)


async def _drain(parts: AsyncIterator[bytes]) -> None:
    async for _ in parts:
        pass


def _loaded(text: str) -> dict[str, Any]:
    from coatcheck.policy import load_policy

    return {"default": load_policy("default", text.encode())}
