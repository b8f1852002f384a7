"""What the page is told live: at once, to those who may see it, bounded, and never at the plane's cost."""

import asyncio
import re
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest

from coatcheck.control.page import watching
from tests.planes.wire import http_client
from tests.system.control.conftest import CALLERS, Control, grants_toml
from tests.system.control.page.conftest import Stream, headers, log_in
from tests.telemetry.test_recent import DENIED


async def refused_request(control: Control, tenant: str, host: str) -> None:
    """A sandbox of `tenant` asks for `host`, which no rule allows."""
    sandbox = await control.daemon.sandbox(tenant=tenant)
    async with http_client(control.daemon, sandbox) as http:
        with pytest.raises(httpx.ProxyError, match="403"):
            await http.get(f"https://{host}/path")


async def test_a_verdict_is_on_the_page_within_a_moment(control: Control) -> None:
    """First who one is, then what there is now, then what happens."""
    window = await log_in(control)
    async with window.watching() as stream:
        hello = await stream.line()
        assert hello is not None and (hello["kind"], hello["name"]) == ("hello", "operator")
        await stream.first("now")
        await refused_request(control, "acme", "evil.example")
        told = await stream.first("verdict", reason="host_not_allowed")
    assert (
        told["url"].startswith("https://evil.example")
        and told["words"] == "no rule of the policy allows this host"
    )
    assert stream.response.getheader("content-type") == "application/x-ndjson"
    assert stream.response.getheader("cache-control") == "no-store"


async def test_an_operator_of_one_tenant_sees_nothing_of_another(control: Control) -> None:
    """Neither its verdicts nor its sessions, counts, names or hosts: compared with a caller that sees all."""
    whole, own = await log_in(control, "operator"), await log_in(control, "acme-operator")
    async with whole.watching() as all_of_it, own.watching() as stream:
        for tenant in ("globex", "acme"):
            await refused_request(control, tenant, f"{tenant}.example")
        seen: list[dict[str, object]] = []
        while not any("acme.example" in str(line) for line in seen):
            line = await stream.line()
            assert line is not None
            seen.append(line)
        seen.append(await stream.first("now"))
        await all_of_it.first("verdict", tenant="globex")
    now = seen[-1]
    assert "globex" not in str(seen)
    assert now["sessions"]["live"] == 1 and now["shadow"] is None  # type: ignore[index]
    assert sum(map(sum, now["pace"])) == 1  # type: ignore[call-overload]
    everything = await whole.now()
    assert everything["sessions"]["live"] == 2 and "globex" in str(everything)


async def test_it_ends_when_the_login_does(control: Control) -> None:
    """Logged out elsewhere, or no longer in the grants: the stream says so and is over."""
    for end in ("logout", "grants"):
        window = await log_in(control)
        async with window.watching() as stream:
            await stream.first("now")
            if end == "logout":
                await window.ask("POST", "/page/logout", {})
            else:
                control.grants.write_text(grants_toml({"auditor": CALLERS["auditor"]}))
                await control.daemon.reload_all()
            await stream.first("over")
            assert await stream.line() is None


async def test_a_daemon_that_stops_ends_what_is_watched(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    """Soon, and without an error in its log: somebody always has the page open."""
    window = await log_in(control)
    async with window.watching() as stream:
        await stream.first("now")
        assert control.daemon.control is not None
        async with asyncio.timeout(60):
            await asyncio.to_thread(control.daemon.control.stop)
    assert not [each for each in caplog.records if each.levelname in ("ERROR", "CRITICAL")]


async def test_watchers_are_bounded(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one login and of all; a place is free again when somebody leaves."""
    monkeypatch.setattr(watching, "MAX_WATCHERS", 5)
    window, other = await log_in(control), await log_in(control, "auditor")
    streams = []
    try:
        for _ in range(watching.MAX_OF_LOGIN):
            entered = window.watching()
            streams.append(entered)
            assert (await entered.__aenter__()).status == 200
        assert (await window.ask("GET", "/page/live")).reason == "busy"
        async with other.watching() as fifth:
            assert fifth.status == 200
            third = await log_in(control, "acme-operator")
            assert (await third.ask("GET", "/page/live")).reason == "busy"
        # Somebody who left is noticed at the next sign of life.
        until = time.monotonic() + 30
        while True:
            async with third.watching() as again:
                if again.status == 200:
                    break
            assert time.monotonic() < until
    finally:
        for entered in streams:
            await entered.__aexit__(None, None, None)


async def test_one_caller_cannot_take_all_places(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """With browser after browser: in an incident somebody else must see what happens."""
    monkeypatch.setattr(watching, "MAX_WATCHERS", 4)
    monkeypatch.setattr(watching, "MAX_OF_CALLER", 3, raising=False)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            stream = (await log_in(control, "auditor")).watching()
            assert (await stack.enter_async_context(stream)).status == 200
        one_more = await log_in(control, "auditor")
        assert (await one_more.ask("GET", "/page/live")).reason == "busy"
        last = await stack.enter_async_context((await log_in(control)).watching())
        assert last.status == 200


async def test_a_watcher_that_reads_nothing_slows_nobody_and_is_let_go(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events go on being emitted at the same pace, and another watcher sees them."""
    monkeypatch.setattr(watching, "SLOW_SECONDS", 4.0)
    window = await log_in(control)
    silent = socket.socket()
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    silent.connect(control.address)
    said = {**headers(control), **window.proof, "Host": f"127.0.0.1:{control.address[1]}", "Origin": None}
    head = "".join(f"{name}: {value}\r\n" for name, value in said.items() if value is not None)
    silent.sendall(f"GET /page/live HTTP/1.1\r\n{head}\r\n".encode())
    recent, event = control.daemon.telemetry.recent, replace(DENIED, path="/" + "x" * 400)
    async with window.watching() as stream:
        await stream.first("now")
        reading = asyncio.ensure_future(until_the_last(stream))
        until = time.monotonic() + 60
        alive = True
        while alive and time.monotonic() < until:
            for _ in range(watching.MOST):
                recent.put(event)
            await asyncio.sleep(0.05)
            try:  # is it still there? what it was sent stays unread, but for a peek at the end
                silent.send(b"", socket.MSG_DONTWAIT)
                alive = silent.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and _open(silent)
            except OSError:
                alive = False
        assert not alive
        recent.put(replace(event, path="/the-last-one"))
        await asyncio.wait_for(reading, 60)
    silent.close()


async def until_the_last(stream: Stream) -> None:
    while "/the-last-one" not in str(await stream.first("verdict")):
        pass


def _open(connection: socket.socket) -> bool:
    """Whether the kernel still holds the connection (TCP_INFO's first byte: 1 is established)."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1


async def test_no_handle_and_no_secret_is_ever_served(control: Control, real_keys: dict[str, str]) -> None:
    """After sessions were opened, used, and used wrongly: everything that the page was given is searched."""
    window = await log_in(control)
    opened = (await control.open(listen="none")).json
    sandbox = await control.daemon.sandbox()
    handles = [*sandbox.handles.values(), *(each["value"] for each in opened["handles"].values())]
    served: list[str] = []
    async with window.watching() as stream, http_client(control.daemon, sandbox) as http:
        handle = sandbox.handles["openai"]
        bearer = {"Authorization": f"Bearer {handle}"}
        await http.get("https://api.openai.com/v1/models", headers=bearer)
        await http.get(f"https://api.openai.com/v1/{handle}?q={handle}", headers=bearer)
        await http.get(f"https://upstream.example/{handle}", headers=bearer)
        await http.post("https://upstream.example/echo", content=f"my key is {handle}")
        line: dict[str, Any] = {}
        while not (line.get("kind") == "now" and line["alarms"]["listed"] and line["secrets"]["ages"]):
            line = await stream.line() or {}
            served.append(str(line))
        served.append(str(await stream.first("now")))
    for session in (sandbox.session.id, opened["session"]["id"]):
        served += [(await window.ask("GET", f"/page/v1/sessions/{session}")).body.decode()]
    whole = "\n".join(served)
    assert "handle_misplaced" in whole or "handle_wrong_host" in whole
    assert sandbox.session.id in whole and '"openai"' in whole.replace("'", '"')
    assert not re.search(r"cch_(?!\*\*\*)", whole)  # masked, as in the audit log
    assert not any(secret in whole for secret in (*handles, *real_keys.values()))
    assert not any(handle.rpartition(".")[2] in whole for handle in handles)
