"""Attacks on the request path that no trap of mitmproxy's explains: found by reading as the attacker."""

import asyncio
from pathlib import Path

import pytest

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.state.sessions import NewSession
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.planes.attack import nothing_is_left, request
from tests.planes.raw_origin import OK, RawOrigin, Visit
from tests.planes.wire import Wire, tunnel, wire
from tests.system.planes.conftest import RAW_POLICY
from tests.system.planes.test_traps_answers import everything
from tests.upstreams import UpstreamTls


async def test_a_request_with_a_body_is_never_sent_again_without_it(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """A GET whose upstream closes: sent again as a head that promises five bytes, the next request's first
    five bytes would be its body, and what follows a request that no policy saw."""

    async def once(visit: Visit, head: bytes) -> None:
        if len(raw_origin.visits) == 1 and visit.received.count(b" HTTP/1.1") > 1:
            await visit.read()
            visit.writer.close()
            return
        await visit.send(OK)

    raw_origin.behave = once
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert (await everything(raw)).endswith(b"ok")
        await raw.send(request(raw_sandbox, body=b"12345"))
        assert (await everything(raw)).startswith(b"HTTP/1.1 502")
    assert len(raw_origin.visits) == 1


async def test_an_echo_in_the_reason_phrase_does_not_come_back(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, real_keys: dict[str, str]
) -> None:
    """A status line is the status's own words."""

    async def echo(visit: Visit, head: bytes) -> None:
        await visit.send(OK.replace(b"OK", real_keys["openai"].encode()))

    raw_origin.behave = echo
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert real_keys["openai"].encode() not in await everything(raw)


SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n"
)
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def frame(first: int, payload: bytes) -> bytes:
    """A frame as servers send it, unmasked; `first` is FIN and the opcode."""
    assert len(payload) < 126
    return bytes((first, len(payload))) + payload


@pytest.mark.parametrize(
    ("before", "first"),
    [(b"", 0x81), (b"", 0x89), (frame(0x01, b"begin "), 0x80)],
    ids=["a message", "a ping", "a message that had begun"],
)
async def test_a_websocket_that_was_open_before_a_secret_was_served_does_not_echo_it(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    real_keys: dict[str, str],
    before: bytes,
    first: int,
) -> None:
    """The session's first use of a credential, seen on a WebSocket that nothing was scrubbed on before."""
    secret = real_keys["openai"].encode()
    served = asyncio.Event()

    async def behave(visit: Visit, head: bytes) -> None:
        if b"GET /ws" not in head:
            served.set()
            await visit.send(OK)
            return
        await visit.send(SWITCH + before)
        await served.wait()
        await visit.send(frame(first, secret) + frame(0x8A, b"last"))
        await visit.until_closed()

    raw_origin.behave = behave
    async with (
        tunnel(raw_daemon, raw_sandbox, "upstream.example") as ws,
        tunnel(raw_daemon, raw_sandbox) as raw,
    ):
        await ws.send(request(raw_sandbox, path="/ws", host="upstream.example", extra=UPGRADE))
        assert await ws.status() == 101
        await raw.send(request(raw_sandbox))
        assert (await everything(raw)).endswith(b"ok")
        received = b""
        async with asyncio.timeout(5):
            while b"last" not in received:
                received += await ws.reader.read(65_536)
    assert secret not in received
    assert b"*" * len(secret) in received


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_reverse_request_without_a_host_gets_the_credentials_host(
    raw_sandbox: Sandbox, raw_origin: RawOrigin, version: str
) -> None:
    """Without a Host header a server with many names would choose for itself whom it gives the secret to."""
    handle = raw_sandbox.handles["openai"]
    async with wire(raw_sandbox) as raw:
        await raw.send(f"GET /openai/v1 HTTP/{version}\r\nAuthorization: Bearer {handle}\r\n\r\n".encode())
        assert await raw.status() == 200
    assert b"host: api.openai.com\r\n" in raw_origin.heads[0].lower()


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ("Host: 127.0.0.1\r\nOrigin: https://evil.example\r\n", "own_surface"),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n", "own_surface"),
        ("Host: evil.example\r\n", "authority_mismatch"),
        ("Host: localhost\r\n", ""),
        ("Host: host.docker.internal:3128\r\nSec-Fetch-Mode: cors\r\n", ""),
    ],
)
async def test_a_page_in_a_browser_cannot_ask_the_sessions_own_port(
    raw_sandbox: Sandbox, raw_origin: RawOrigin, headers: str, reason: str
) -> None:
    """Origin and Sec-Fetch-Site betray pages, a Host that strangers can have betrays a rebound name."""
    handle = f"Authorization: Bearer {raw_sandbox.handles['openai']}\r\n"
    async with wire(raw_sandbox) as raw:
        await raw.send(f"GET /openai/v1 HTTP/1.1\r\n{headers}{handle}\r\n".encode())
        assert await raw.refused_because() == reason
    assert raw_origin.saw_nothing is bool(reason)


async def test_a_connection_does_not_pass_from_an_ended_session_to_the_next_of_its_address(
    tmp_path: Path, all_output: Path, plain_origin: RawOrigin, upstream_tls: UpstreamTls
) -> None:
    """Half a request of the old sandbox, finished once its address is another's: it would be the other's."""
    async with running_daemon(
        all_output / tmp_path.name,
        RAW_POLICY,
        upstream_ca=upstream_tls.ca,
        connect_to={"other.example:80": plain_origin.port},
        proxy_port=0,
        proxy_trust_addresses=True,
    ) as daemon:
        origin = Origin(OriginClass.ADDRESS, "proxy|127.0.0.1")
        wanted = NewSession("acme", "agent", "default", origin)
        old, _ = daemon.state.open_session(wanted, "test")
        assert daemon.proxy_address is not None
        reader, writer = await asyncio.open_connection(*daemon.proxy_address)
        raw = Wire(reader, writer)
        await raw.send(b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n")
        assert await raw.soon() == b""
        daemon.state.revoke(old.id, "test")
        daemon.state.open_session(wanted, "test")
        await asyncio.sleep(0)
        writer.write(b"\r\n")
        assert await raw.status() == 0
        writer.transport.abort()
    assert plain_origin.saw_nothing


async def test_a_tunnel_that_a_limit_refuses_leaves_no_call_behind(
    tmp_path: Path, all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """Each would count as running for ever: after `max_calls` of them everybody was refused."""
    policy = """
version: 1
owner: tests
rules:
  - name: pinned
    hosts: [pinned.example]
    tunnel: true
    max_request: 10MiB
    max_response: 10MiB
    limits: {requests: 1/hour, burst: 1}
"""
    async with running_daemon(
        all_output / tmp_path.name, policy, upstream_ca=upstream_tls.ca, connect_to={}
    ) as daemon:
        sandbox = await daemon.sandbox()
        answers = []
        for _ in range(4):
            async with wire(sandbox) as raw:
                await raw.send(b"CONNECT pinned.example:443 HTTP/1.1\r\nHost: pinned.example:443\r\n\r\n")
                answers.append(await raw.status())
        assert answers == [200, 429, 429, 429]
        await nothing_is_left(daemon)
