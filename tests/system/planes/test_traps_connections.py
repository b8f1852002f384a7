"""Which side waits for which, how long, and what is left afterwards: mitmproxy bounds none of it."""

import asyncio

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.planes.listeners import listener
from coatcheck.planes.mitm import backpressure, deadlines
from coatcheck.secrets import Secret
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import eventually, nothing_is_left, request
from tests.planes.raw_origin import OK, RawOrigin, Visit
from tests.planes.wire import Wire, tunnel, wire

CONNECT = b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: upstream.example\r\n\r\n"


# --- 0: the order of things ---------------------------------------------------------------------------


async def test_the_decision_comes_before_a_streamed_body_leaves(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """mitmproxy's `request` hook fires once the upload has left; ours refuses while the body still comes."""
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(b"PUT /sink HTTP/1.1\r\nHost: api.openai.com\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            await raw.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert await raw.refused_because() == "handle_missing"
    assert raw_origin.saw_nothing
    await nothing_is_left(raw_daemon)


async def test_the_secret_is_in_the_head_before_the_body_ends(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, real_keys: dict[str, str]
) -> None:
    """Injection and streaming go together: the head leaves at once, with the secret (OpenSandbox #1465)."""
    raw_origin.behave = lambda visit, _: visit.until_closed()
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        head = request(raw_sandbox, "GET", extra="Content-Length: 100\r\n").replace(b"GET", b"PUT")
        await raw.send(head + b"x")
        await eventually(lambda: any(b"\r\n\r\nx" in seen for seen in raw_origin.heads))
        assert real_keys["openai"].encode() in raw_origin.heads[0]
        assert raw_sandbox.handles["openai"].encode() not in raw_origin.heads[0]
    await nothing_is_left(raw_daemon)


async def test_no_upstream_connection_before_the_decision(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """mitmproxy's default dials at CONNECT. Here a tunnel, its TLS and a refused request dial nothing."""
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(b"GET /v1/models HTTP/1.1\r\nHost: api.openai.com\r\n\r\n")
        assert await raw.refused_because() == "handle_missing"
        await raw.reader.readuntil(b"}\n")
        assert raw_origin.accepted == 0
        await raw.send(request(raw_sandbox))
        assert await raw.status() == 200
    await nothing_is_left(raw_daemon)


async def test_an_upstream_connection_belongs_to_one_client_connection(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """Two sandboxes share no connection on which one's answer could reach the other."""
    other = await raw_daemon.sandbox(subject="other")
    for sandbox in (raw_sandbox, other):
        async with tunnel(raw_daemon, sandbox) as raw:
            await raw.send(request(sandbox))
            assert await raw.status() == 200
    assert raw_origin.accepted == 2


async def test_the_leaf_key_is_not_the_authoritys(raw_daemon: TestDaemon) -> None:
    """mitmproxy signs leaves that carry the authority's own key."""
    from coatcheck.certificates.leaf import LeafIssuer

    issuer = LeafIssuer(raw_daemon.authority)
    leaf = issuer.issue("api.openai.com")
    assert leaf.certificate.public_key() == issuer.private_key.public_key()
    authority = raw_daemon.authority.certificate.public_key()
    assert leaf.certificate.public_key() != authority


async def test_a_body_that_waits_for_the_store_is_bounded(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a hook awaits, mitmproxy queues what comes without a bound; ours stops reading."""
    answered = asyncio.Event()

    real = raw_daemon.store.fetch

    async def slow(ref: SecretRef) -> Secret:
        await answered.wait()
        return await real(ref)

    monkeypatch.setattr(raw_daemon.store, "fetch", slow)
    body = 8_000_000
    head = request(raw_sandbox, "GET", extra=f"Content-Length: {body}\r\n").replace(b"GET", b"PUT")
    assert raw_daemon.plane is not None
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        raw.writer.write(head + b"x" * body)
        link = next(iter(raw_daemon.plane.connections)).link
        await eventually(lambda: link.backpressure.unsettled > backpressure.ROOM)
        await asyncio.sleep(0.2)
        assert link.backpressure.unsettled < backpressure.ROOM + 3 * 65_535
        raw_origin.behave = lambda visit, _: _count(visit, body)
        answered.set()
        assert await raw.status() == 200
    await nothing_is_left(raw_daemon)


async def _count(visit: Visit, body: int) -> None:
    start = visit.received.index(b"\r\n\r\n") + 4
    while len(visit.received) - start < body:
        if not await visit.read():
            return
    await visit.send(OK)


# --- 1.2: refusing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["Content-Length: 500000", "Transfer-Encoding: chunked"])
async def test_refusing_a_streamed_request_does_not_hang(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, framing: str
) -> None:
    """In mitmproxy `response` plus `stream` crashes the layer, and the client waits for ever."""
    body = b"x" * 500_000
    if "chunked" in framing:
        body = b"7A120\r\n" + body + b"\r\n0\r\n\r\n"
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(f"PUT /sink HTTP/1.1\r\nHost: api.openai.com\r\n{framing}\r\n\r\n".encode())
        assert await raw.refused_because() == "handle_missing"
        await raw.send(body)
        await raw.rest()
    assert raw_origin.saw_nothing
    await nothing_is_left(raw_daemon)


async def test_what_is_thrown_away_of_a_refused_upload_is_bounded(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endless upload after the refusal ends the connection."""
    monkeypatch.setattr("coatcheck.planes.mitm.stream.DISCARD_BYTES", 100_000)
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(b"PUT /sink HTTP/1.1\r\nHost: api.openai.com\r\nContent-Length: 90000000\r\n\r\n")
        assert await raw.refused_because() == "handle_missing"
        await raw.reader.readuntil(b"}\n")
        raw.writer.write(b"x" * 1_000_000)
        assert await raw.rest() == b""
    await nothing_is_left(raw_daemon)


async def test_a_refused_request_charges_and_counts_nothing_twice(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox
) -> None:
    """One refusal, one record: hooks that also fire for rejected requests must not tell twice."""
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(b"GET /v1/models HTTP/1.1\r\nHost: api.openai.com\r\n\r\n")
        assert await raw.refused_because() == "handle_missing"
    assert [record["reason"] for record in raw_daemon.decisions()] == ["handle_missing"]


async def test_proxy_headers_do_not_leave(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, plain_origin: RawOrigin
) -> None:
    """Only mitmproxy's ProxyAuth addon strips them: the sandbox's token would reach the upstream."""
    async with wire(raw_sandbox) as raw:
        await raw.send(
            b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\nProxy-Connection: keep-alive\r\n"
            b"Proxy-Authorization: Basic c2FuZGJveDp0b2tlbg==\r\nConnection: keep-alive\r\n\r\n"
        )
        assert await raw.status() == 200
    head = plain_origin.heads[0].lower()
    assert head.startswith(b"get / http/1.1\r\nhost: other.example\r\n")
    assert b"proxy-" not in head and b"c2fuzgjved" not in head


# --- 1.7: what mitmproxy leaves unlimited -------------------------------------------------------------


async def test_unsafe_options_are_off_and_no_stock_addon_is_loaded(raw_daemon: TestDaemon) -> None:
    """ssl_insecure, ignore_hosts and their kin would fail open; thirty addons would record and rewrite."""
    assert raw_daemon.plane is not None
    options = raw_daemon.plane.options
    assert not options.ssl_insecure and not options.rawtcp and not options.http3
    assert not options.upstream_cert and not options.server
    assert options.connection_strategy == "lazy"
    assert options.validate_inbound_headers and not options.store_streamed_bodies
    for name in ("ignore_hosts", "allow_hosts", "tcp_hosts", "udp_hosts", "stream_large_bodies", "mode"):
        assert not getattr(options, name) or getattr(options, name) == ["regular"]
    names = {type(addon).__name__ for addon in raw_daemon.plane.master.addons.chain}
    assert names == {"Proxyserver", "MitmPlane"}


@pytest.mark.parametrize(
    "start", [b"", b"GET / HT", GET[:-2], CONNECT, CONNECT + b"\x16\x03\x01\x02\x00\x01"]
)
async def test_a_head_or_a_hello_that_does_not_end_is_given_up(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    """Slow headers and half a ClientHello cost one connection for a bounded time."""
    monkeypatch.setattr(deadlines, "HEAD_SECONDS", 0.2)
    async with wire(raw_sandbox) as raw:
        if start:
            await raw.send(start)
        assert b"200 OK" not in await raw.rest()
    await nothing_is_left(raw_daemon)


async def test_an_idle_connection_is_not_kept_for_ever(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between requests, too."""
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(GET)
        assert await raw.status() == 200
        monkeypatch.setattr(deadlines, "IDLE_SECONDS", 0.2)
        assert await raw.rest() == b"ok"
    await nothing_is_left(raw_daemon)


async def test_an_answer_that_does_not_come_is_given_up(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upstream that is silent for ANSWER_SECONDS ends the request, uncleanly."""
    raw_origin.behave = lambda visit, _: visit.until_closed()
    monkeypatch.setattr(deadlines, "ANSWER_SECONDS", 0.2)
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert await raw.rest() == b""
    await nothing_is_left(raw_daemon)


@pytest.mark.parametrize("where", ["first", "inside"])
async def test_an_endless_head_is_refused(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, where: str
) -> None:
    """mitmproxy: "FIXME: protect against header size DoS"."""

    async def flood(raw: Wire) -> None:
        raw.writer.write(GET[:-2] + b"X-Note: " + b"a" * 300_000)
        assert await raw.status() == 403

    if where == "first":
        async with wire(raw_sandbox) as plain:
            await flood(plain)
    else:
        async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as inside:
            await flood(inside)
    assert raw_origin.saw_nothing
    await nothing_is_left(raw_daemon)


async def test_a_flood_of_fields_is_refused(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """Below the size limit, above the number that servers take."""
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(GET[:-2] + b"".join(b"X-%d: a\r\n" % n for n in range(1000)) + b"\r\n")
        assert await raw.refused_because() == "header_form_refused"
    assert raw_origin.saw_nothing


async def test_requests_sent_ahead_are_bounded(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """Pipelining during a long answer filled mitmproxy's buffer for as long as the answer lasted."""
    raw_origin.behave = lambda visit, _: visit.until_closed()
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(GET)
        await eventually(lambda: bool(raw_origin.visits))
        raw.writer.write(GET * 20_000)
        assert await raw.rest() == b""
    await nothing_is_left(raw_daemon)


async def test_a_few_requests_sent_ahead_are_answered_in_order(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """RFC 9112 9.3.2, each with a decision of its own."""
    paths = ["/1", "/2", "/3"]
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(b"".join(GET.replace(b" / ", f" {path} ".encode()) for path in paths))
        for _ in paths:
            assert await raw.status() == 200
            await raw.reader.readexactly(2)
    assert [record["path"] for record in raw_daemon.decisions()] == paths
    assert raw_origin.accepted == 1


async def test_connections_above_the_limit_are_answered_503(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sandbox cannot take all of them, and when it lets go the next one is served."""
    monkeypatch.setattr(listener, "MAX_PER_SESSION", 3)
    other = await raw_daemon.sandbox(subject="other")
    held = [await asyncio.open_connection(*raw_sandbox.address) for _ in range(3)]
    assert raw_daemon.plane is not None
    plane = raw_daemon.plane
    await eventually(lambda: len(plane.connections) == 3)
    async with wire(raw_sandbox) as raw:
        assert await raw.refused_because() == "capacity"
    async with tunnel(raw_daemon, other, "upstream.example") as raw:
        await raw.send(GET)
        assert await raw.status() == 200
    for _, writer in held:
        writer.transport.abort()
    await eventually(lambda: not plane.connections)
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(GET)
        assert await raw.status() == 200
    await nothing_is_left(raw_daemon)


# --- 4.5: a slow store --------------------------------------------------------------------------------


async def test_a_slow_store_does_not_stall_others(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While ten requests wait for one credential, fifty others pass on the same loop. Once its secrets were
    read, their tenant's responses can be searched."""
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert await raw.status() == 200
    monkeypatch.setattr(raw_daemon.store, "ttl", 0.0)
    real = raw_daemon.store.fetch
    answered = asyncio.Event()

    async def slow_for_anthropic(ref: SecretRef) -> Secret:
        if "anthropic" in str(ref):
            await answered.wait()
        return await real(ref)

    monkeypatch.setattr(raw_daemon.store, "fetch", slow_for_anthropic)
    waiting = (
        f"GET /v1/models HTTP/1.1\r\nHost: api.anthropic.com\r\n"
        f"X-Api-Key: {raw_sandbox.handles['anthropic']}\r\n\r\n"
    ).encode()

    async def waits() -> int:
        async with tunnel(raw_daemon, raw_sandbox, "api.anthropic.com") as raw:
            await raw.send(waiting)
            return await raw.status()

    stalled = [asyncio.create_task(waits()) for _ in range(10)]
    await eventually(lambda: len(raw_daemon.exchange.waiting) == 10)
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        for _ in range(50):
            await raw.send(request(raw_sandbox))
            assert await raw.status() == 200
            await raw.reader.readexactly(2)
    assert not any(task.done() for task in stalled)
    answered.set()
    assert await asyncio.gather(*stalled) == [200] * 10
    await nothing_is_left(raw_daemon)


# --- a client that leaves -----------------------------------------------------------------------------


STAGES = [
    "nothing",
    "connect",
    "half_hello",
    "tls",
    "half_head",
    "store",
    "dial",
    "upload",
    "answer",
    "stream",
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_client_that_leaves_at_any_stage_leaves_nothing(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    how: str,
) -> None:
    """No call, no limit's counter, no connection on either side; a request that was not sent stays unsent."""
    assert raw_daemon.plane is not None
    plane = raw_daemon.plane
    reached = asyncio.Event()

    async def never(*_: object) -> None:
        reached.set()
        await asyncio.sleep(0.3)
        raise OSError

    if stage == "store":
        monkeypatch.setattr("coatcheck.secrets.cache.CachedStore.fetch", never)
    if stage == "dial":
        monkeypatch.setattr(plane.upstream, "connect", never)

    async def upstream(visit: Visit, _: bytes) -> None:
        if stage == "stream":
            await visit.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        reached.set()
        await visit.until_closed()

    raw_origin.behave = upstream
    async with wire(raw_sandbox) as raw:
        if stage in ("connect", "half_hello"):
            await raw.send(CONNECT + (b"\x16\x03\x01\x02\x00" if stage == "half_hello" else b""))
            assert await raw.status() == 200
        elif stage != "nothing":
            await raw.send(CONNECT)
            assert await raw.status() == 200
            await raw.start_tls(raw_daemon.trust.ca, "api.openai.com")
        if stage == "half_head":
            await raw.send(request(raw_sandbox)[:-4])
        elif stage == "upload":
            head = request(raw_sandbox, "GET", extra="Content-Length: 100\r\n").replace(b"GET", b"PUT")
            await raw.send(head + b"x")
        elif stage in ("store", "dial", "answer", "stream"):
            await raw.send(request(raw_sandbox))
        if stage in ("store", "dial", "upload", "answer", "stream"):
            async with asyncio.timeout(3):
                await reached.wait()
        await asyncio.sleep(0.02)
        if how == "close":
            raw.writer.close()
            await asyncio.sleep(0.05)
    await nothing_is_left(raw_daemon)
    await eventually(lambda: not raw_origin.tasks)
    if stage in ("store", "dial"):
        assert not any(raw_origin.heads)
