"""What passes through a request and its answer: streams, switches, endings."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
import wsproto
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Request, TextMessage

from demo.upstreams.server import TlsServer
from tests.daemon import Sandbox, TestDaemon
from tests.planes.wire import Wire, http_client, tunnel, wire


def bearer(sandbox: Sandbox) -> dict[str, str]:
    return {"Authorization": f"Bearer {sandbox.handles['openai']}"}


async def test_the_first_event_arrives_before_the_last_is_sent(daemon: TestDaemon, sandbox: Sandbox) -> None:
    """SSE is not buffered: with 300 ms between events, the first is here before the third was sent."""
    started = time.monotonic()
    async with (
        http_client(daemon, sandbox) as http,
        http.stream("GET", "https://api.openai.com/sse?n=4&gap_ms=300", headers=bearer(sandbox)) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        first = time.monotonic() - started
        async for _ in lines:
            pass
    assert time.monotonic() - started >= 0.9
    assert first < 0.6


@pytest.mark.parametrize(
    "encoding", ["plain", "base64", "percent", "json", "split", "gzip", "br", "zstd", "deflate"]
)
async def test_an_echo_of_the_secret_is_masked_in_every_encoding(
    daemon: TestDaemon, sandbox: Sandbox, real_keys: dict[str, str], encoding: str
) -> None:
    """An origin that sends back what it got gives nothing away, in body or headers."""
    import base64
    from urllib.parse import unquote

    async with http_client(daemon, sandbox) as http:
        answer = await http.get(f"https://api.openai.com/echo?encoding={encoding}", headers=bearer(sandbox))
    assert answer.status_code == 200
    seen = answer.text + str(answer.headers.raw)
    readings = [seen, unquote(seen)]
    if encoding == "base64":
        readings.append(base64.b64decode(answer.text.replace("*", "A"), validate=False).decode("latin-1"))
    assert "*" * 20 in answer.text or encoding == "base64"
    assert not any(real_keys["openai"] in reading for reading in readings)
    assert daemon.records()[-1]["scrubbed"] >= 1


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_000])
async def test_uploads_arrive_whole(daemon: TestDaemon, sandbox: Sandbox, size: int) -> None:
    """With a length and in chunks, what the origin counts is what was sent."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, size, 50_000):
            yield b"x" * min(50_000, size - start)

    async with http_client(daemon, sandbox) as http:
        for content in (b"x" * size, chunks()):
            answer = await http.post("https://api.openai.com/sink", headers=bearer(sandbox), content=content)
            assert answer.json()["bytes"] == size


async def test_a_refused_upload_is_answered_not_reset(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """A client that sends 8 MB without a handle reads why it was refused; the origin saw nothing."""
    async with http_client(daemon, sandbox) as http:
        answer = await http.post("https://api.openai.com/sink", content=b"x" * 8_000_000)
    assert answer.status_code == 401
    assert answer.json()["error"]["reason"] == "handle_missing"
    assert answer.headers["coatcheck-reason"] == "handle_missing"
    assert not origin_server.seen


async def test_http2_where_policy_does_not_ask_for_it_is_not_offered(
    daemon: TestDaemon, sandbox: Sandbox
) -> None:
    """A client that offers h2 gets HTTP/1.1."""
    async with http_client(daemon, sandbox, http2=True) as http:
        answer = await http.get("https://upstream.example/big?bytes=10")
    assert answer.http_version == "HTTP/1.1"


async def websocket_talk(raw: Wire, handle: str, messages: list[str | bytes], reason: str) -> list[bytes]:
    """Send messages after the switch, then close with `reason`; what came back, the close reason last."""
    ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    extra = [(b"authorization", f"Bearer {handle}".encode())]
    await raw.send(ws.send(Request(host="api.openai.com", target="/ws", extra_headers=extra)))
    received: list[bytes] = []
    parts = b""
    async with asyncio.timeout(5):
        while True:
            ws.receive_data(await raw.reader.read(65536) or None)
            for event in ws.events():
                if isinstance(event, AcceptConnection):
                    for message in messages:
                        text = isinstance(message, str)
                        await raw.send(ws.send(TextMessage(message) if text else BytesMessage(message)))  # type: ignore[arg-type]
                elif isinstance(event, (TextMessage, BytesMessage)):
                    parts += event.data.encode() if isinstance(event.data, str) else bytes(event.data)
                    if event.message_finished:
                        received.append(parts)
                        parts = b""
                    if len(received) == len(messages):
                        await raw.send(ws.send(CloseConnection(code=1000, reason=reason)))
                elif isinstance(event, CloseConnection):
                    return [*received, (event.reason or "").encode()]


async def test_websocket_messages_pass_and_lose_the_secret(
    daemon: TestDaemon, sandbox: Sandbox, real_keys: dict[str, str]
) -> None:
    """On an allowed route messages go both ways; an echo of the secret comes back masked."""
    secret = real_keys["openai"]
    sent: list[str | bytes] = ["hello ", f"x{secret}x", b"\x00" + secret.encode()]
    async with tunnel(daemon, sandbox) as raw:
        received = await websocket_talk(raw, sandbox.handles["openai"], sent, secret)
    mask = b"*" * len(secret)
    assert received[:3] == [b"hello ", b"x" + mask + b"x", b"\x00" + mask]
    assert received[3] == b""


async def test_reverse_mode_serves_clients_that_take_a_base_url(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """`http://proxy/openai/…` goes to the credential's host over verified TLS."""
    import httpx

    async with httpx.AsyncClient(base_url=f"{sandbox.proxy}/openai") as http:
        answer = await http.get("/v1/models", headers=bearer(sandbox))
    assert answer.status_code == 200
    assert origin_server.seen[-1].genuine == "openai"
    assert origin_server.seen[-1].host == "api.openai.com"


async def test_a_kept_connection_is_kept_on_both_sides(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """Ten requests over one client connection use one upstream connection."""
    opened: list[str] = []
    assert daemon.plane is not None
    connect = daemon.plane.upstream.connect

    async def counted(host: str, port: int):  # type: ignore[no-untyped-def]
        opened.append(host)
        return await connect(host, port)

    daemon.plane.upstream.connect = counted  # type: ignore[method-assign]
    async with http_client(daemon, sandbox) as http:
        for _ in range(10):
            assert (await http.get("https://upstream.example/big?bytes=10")).status_code == 200
    assert opened == ["upstream.example"]


async def test_revoking_a_session_ends_its_streams_without_a_clean_end(
    daemon: TestDaemon, sandbox: Sandbox
) -> None:
    """A running SSE stream dies with the session, and no client can take that for its end."""
    async with tunnel(daemon, sandbox) as raw:
        handle = sandbox.handles["openai"]
        await raw.send(
            f"GET /sse?n=2000&gap_ms=50 HTTP/1.1\r\nHost: api.openai.com\r\n"
            f"Authorization: Bearer {handle}\r\n\r\n".encode()
        )
        assert await raw.status() == 200
        await raw.reader.read(100)
        await asyncio.to_thread(daemon.state.revoke, sandbox.session.id, "test")
        rest = await raw.rest()
    assert not rest.endswith(b"0\r\n\r\n")
    completion = [record for record in daemon.records() if record["type"] == "completion"][-1]
    assert completion["aborted"] == "session_revoked"


async def test_a_stolen_handle_is_refused_and_reported(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """Another sandbox that shows the handle gets nothing; both sessions are recorded."""
    thief = await daemon.sandbox(subject="thief")
    async with http_client(daemon, thief) as http:
        answer = await http.get("https://api.openai.com/v1/models", headers=bearer(sandbox))
    assert answer.status_code == 401
    assert answer.json()["error"]["reason"] == "handle_stolen"
    assert not origin_server.seen
    alarm = [record for record in daemon.records() if record["type"] == "alarm"][-1]
    assert sandbox.session.id in alarm["detail"] and thief.session.id in alarm["detail"]


async def test_server_name_and_connect_target_must_agree(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """Domain fronting by SNI ends before a handshake; by Host, with 421."""
    async with wire(sandbox) as raw:
        await raw.send(b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n")
        assert await raw.status() == 200
        with pytest.raises((ConnectionError, OSError)):
            await raw.start_tls(daemon.trust.ca, "upstream.example")
    assert daemon.decisions()[-1]["reason"] == "authority_mismatch"
    async with tunnel(daemon, sandbox) as raw:
        await raw.send(b"GET / HTTP/1.1\r\nHost: upstream.example\r\n\r\n")
        assert await raw.refused_because() == "authority_mismatch"
    assert not origin_server.seen


async def test_plain_http_needs_the_policys_word(daemon: TestDaemon, sandbox: Sandbox) -> None:
    """Absolute-form http:// and HTTP inside a tunnel are refused where no rule says plain_http."""
    async with wire(sandbox) as raw:
        await raw.send(b"GET http://upstream.example/ HTTP/1.1\r\nHost: upstream.example\r\n\r\n")
        assert await raw.refused_because() == "plain_http_refused"
    async with wire(sandbox) as raw:
        await raw.send(b"CONNECT upstream.example:443 HTTP/1.1\r\nHost: upstream.example:443\r\n\r\n")
        assert await raw.status() == 200
        await raw.send(b"GET / HTTP/1.1\r\nHost: upstream.example:443\r\n\r\n")
        assert await raw.refused_because() == "plain_http_refused"


async def test_a_failing_decision_refuses_and_nothing_leaves(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mitmproxy forwards when an addon raises; ours answers 503 and the origin sees nothing (I3)."""

    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("boom")

    monkeypatch.setattr("coatcheck.request.exchange.decide", broken)
    async with http_client(daemon, sandbox) as http:
        answer = await http.get("https://api.openai.com/v1/models", headers=bearer(sandbox))
    assert answer.status_code == 503
    assert json.loads(answer.text)["error"]["reason"] == "internal_error"
    assert not origin_server.seen
