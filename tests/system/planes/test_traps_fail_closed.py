"""mitmproxy goes on when an addon raises. Here every step is made to raise (I3)."""

import asyncio
import gc
import logging
import socket
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from mitmproxy.connection import Server
from mitmproxy.proxy import commands, layer
from mitmproxy.proxy.layers.http import HttpRequestHook
from mitmproxy.proxy.layers.tls import TlsClienthelloHook, TlsStartClientHook, TlsStartServerHook
from mitmproxy.proxy.server import ConnectionIO

from coatcheck.decision.denial import Reason
from coatcheck.decision.policy import SecretRef
from coatcheck.planes.mitm.ending import Ending
from coatcheck.planes.mitm.hooks import VerdictHook
from coatcheck.planes.mitm.outbox import Outbox
from coatcheck.request.call import Call
from coatcheck.request.exchange import Exchange
from coatcheck.secrets import Secret, SecretUnavailable
from coatcheck.secrets.cache import CachedStore
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import eventually, nothing_is_left, request
from tests.planes.raw_origin import RawOrigin, Visit, answering
from tests.planes.wire import Wire, tunnel, wire

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


def boom(*_: object, **__: object) -> object:
    raise RuntimeError("boom")


async def attempt(daemon: TestDaemon, sandbox: Sandbox, data: bytes = b"") -> bytes:
    """A PUT with a genuine handle through a tunnel; everything that came back inside it."""
    data = data or request(sandbox, "PUT", "/sink", body=b"x" * 1000)
    async with wire(sandbox) as raw:
        await raw.send(b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n")
        if await raw.status() != 200:
            return b""
        try:
            await raw.start_tls(daemon.trust.ca, "api.openai.com")
            await raw.send(data)
        except OSError:
            return b""
        return await answer(raw)


async def answer(raw: Wire) -> bytes:
    """Head and body of one answer, as far as they came."""
    out = b""
    try:
        async with asyncio.timeout(3):
            while chunk := await raw.reader.read(65536):
                out += chunk
                if out.endswith((b"}\n", b"0\r\n\r\n", b"\r\n\r\nok")):
                    break
    except OSError:
        pass
    return out


@pytest.mark.parametrize(
    "hook",
    [
        layer.NextLayerHook,
        TlsClienthelloHook,
        TlsStartClientHook,
        TlsStartServerHook,
        VerdictHook,
    ],
)
async def test_an_exception_in_a_hook_fails_closed(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, hook: type
) -> None:
    """Whichever hook raises, nothing of the request leaves, and the daemon lives on."""
    assert raw_daemon.plane is not None
    real = raw_daemon.plane.shared.hooks[hook]
    raw_daemon.plane.shared.hooks[hook] = (real[0], boom)  # type: ignore[assignment]
    out = await attempt(raw_daemon, raw_sandbox)
    assert not out.startswith(b"HTTP/1.1 200")
    assert not any(raw_origin.heads)
    assert raw_daemon.plane.failures
    await nothing_is_left(raw_daemon)
    raw_daemon.plane.shared.hooks[hook] = real
    assert (await attempt(raw_daemon, raw_sandbox)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "step",
    ["coatcheck.request.call.Call.on_end", "coatcheck.planes.mitm.connection.EgressConnection._finish_hook"],
)
async def test_a_request_that_fails_before_its_wait_begins_leaves_no_coroutine_behind(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """The store has to be asked; what fails before it is asked must not leak what would ask."""
    monkeypatch.setattr(step, boom)
    # A captured record holds its traceback, and that the frames with what was lost in them.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert not (await attempt(raw_daemon, raw_sandbox)).startswith(b"HTTP/1.1 2")
        await nothing_is_left(raw_daemon)
        gc.collect()
    assert raw_origin.saw_nothing
    assert [str(each.message) for each in seen if "never awaited" in str(each.message)] == []


async def test_a_decision_that_is_missing_fails_closed(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing decides there is no verdict, and the absence of a verdict is Deny."""
    monkeypatch.setattr("coatcheck.planes.mitm.admission.Admission.requestheaders", lambda *_: None)
    assert b"internal_error" in await attempt(raw_daemon, raw_sandbox)
    assert raw_origin.saw_nothing
    await nothing_is_left(raw_daemon)


BEFORE_THE_FIRST_BYTE = [
    "coatcheck.planes.mitm.plane.next_layer",
    "coatcheck.planes.mitm.admission.tunnel_target",
    "coatcheck.planes.origins.proxy_authorization.proxy_credential",
    "coatcheck.planes.mitm.admission.request_head",
    "coatcheck.planes.mitm.admission.destination_of",
    "coatcheck.planes.mitm.admission.Admission.connect",
    "coatcheck.planes.mitm.admission.Admission.requestheaders",
    "coatcheck.planes.mitm.admission.Admission.wants_http2",
    "coatcheck.planes.mitm.stream.apply_edits",
    "coatcheck.planes.upstream.upstream.Upstream.connect",
    "coatcheck.planes.upstream.upstream.Upstream.addresses",
    "coatcheck.planes.mitm.tls.ClientTls.connection",
    "coatcheck.planes.mitm.tls.UpstreamTls.connection",
    "coatcheck.request.exchange.Exchange.connect",
    "coatcheck.request.exchange.Exchange.receive",
    "coatcheck.request.exchange.Exchange._proceed",
    "coatcheck.request.audit_records.decision",
    "coatcheck.request.exchange.Exchange.context",
    "coatcheck.request.exchange.check_head",
    "coatcheck.request.exchange.decide",
    "coatcheck.request.exchange.decide_connect",
    "coatcheck.state.buckets.Buckets.take",
    "coatcheck.secrets.cache.CachedStore.peek",
    "coatcheck.secrets.cache.CachedStore.fetch",
    "coatcheck.request.call.Call.permitted",
    "coatcheck.request.call.Call.commit",
    "coatcheck.request.request_edits.substitute",
    "coatcheck.request.call.plan_request_for_scrubbing",
]


@pytest.mark.parametrize("step", BEFORE_THE_FIRST_BYTE)
async def test_an_exception_before_the_first_byte_refuses(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """I3: before the first upstream byte the request is refused, and the upstream saw nothing."""
    monkeypatch.setattr(step, boom)
    out = await attempt(raw_daemon, raw_sandbox)
    assert not out.startswith(b"HTTP/1.1 2")
    assert not any(raw_origin.heads)
    await nothing_is_left(raw_daemon)
    monkeypatch.undo()
    assert (await attempt(raw_daemon, raw_sandbox)).startswith(b"HTTP/1.1 200")


AFTER_THE_FIRST_BYTE = [
    "coatcheck.request.call.Call.upload",
    "coatcheck.request.call.Call.upload_end",
    "coatcheck.request.call.Call.respond",
    "coatcheck.request.call.Call.download",
    "coatcheck.request.call.Call.download_end",
    "coatcheck.request.response.plan_response",
    "coatcheck.decision.body_scrubber.BodyScrubber.feed",
    "coatcheck.decision.body_scrubber.BodyScrubber.finish",
    "coatcheck.decision.body_search.BodySearch.feed",
    "coatcheck.decision.body_search.BodySearch.close",
    "coatcheck.planes.mitm.stream.response_head",
    "coatcheck.planes.mitm.stream.set_response_headers",
    "coatcheck.planes.mitm.tls.UpstreamTls.answered",
]


@pytest.mark.parametrize("step", AFTER_THE_FIRST_BYTE)
async def test_an_exception_after_the_first_byte_ends_uncleanly(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """I3: after it, no side is given a clean end of message (in mitmproxy later chunks would flow on)."""
    raw_origin.behave = _read_all_and_answer
    monkeypatch.setattr(step, boom)
    out = await attempt(raw_daemon, raw_sandbox)
    assert not out.endswith(b"0\r\n\r\n")
    assert b"hello" not in out or step.endswith(("_end", "finish"))
    await nothing_is_left(raw_daemon)
    aborted = [record["aborted"] for record in raw_daemon.records() if record["type"] == "completion"]
    assert aborted and all(aborted)


async def _read_all_and_answer(visit: Visit, head: bytes) -> None:
    if b"content-length" in head.lower():
        async with asyncio.timeout(2):
            while len(visit.received) < len(head) + 1000:
                if not await visit.read():
                    return
    await visit.send(CHUNKED)


async def test_an_upload_that_raises_gives_the_upstream_no_end(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunked upload that is broken off lacks its last chunk: no upstream acts on half of it."""
    ended = asyncio.Event()

    async def behave(visit: Visit, _: bytes) -> None:
        await visit.until_closed()
        ended.set()

    raw_origin.behave = behave
    sent: list[bytes] = []
    real = Call.upload

    def second_fails(call: Call, chunk: bytes) -> object:
        sent.append(chunk)
        return real(call, chunk) if len(sent) == 1 else boom()

    monkeypatch.setattr(Call, "upload", second_fails)
    head = request(raw_sandbox, "GET", extra="Transfer-Encoding: chunked\r\n").replace(b"GET", b"PUT")
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(head + b"3\r\nabc\r\n")
        await eventually(lambda: bool(sent))
        await raw.send(b"3\r\ndef\r\n0\r\n\r\n")
        assert await raw.rest() == b""
    async with asyncio.timeout(2):
        await ended.wait()
    assert raw_origin.heads[0].endswith(b"\r\n\r\n3\r\nabc\r\n")


async def test_cancelling_a_hook_lets_nothing_leave(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CancelledError is no Exception: the store's wait is cancelled, and the request must not go on."""

    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr("coatcheck.secrets.cache.CachedStore.fetch", cancelled)
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        await eventually(lambda: len(raw_daemon.exchange.waiting) == 0)
        await asyncio.sleep(0.1)
    assert raw_origin.saw_nothing
    await nothing_is_left(raw_daemon)


async def test_the_audit_log_that_cannot_be_written_refuses(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: what cannot be recorded does not leave."""
    monkeypatch.setattr(raw_daemon.exchange.shared, "emit", boom)
    assert b"audit_unavailable" in await attempt(raw_daemon, raw_sandbox)
    assert raw_origin.saw_nothing


async def test_the_store_that_fails_refuses(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expected or not, no answer of the store means 503, and the handle is not forwarded in its place."""

    async def unavailable(*_: object) -> None:
        raise SecretUnavailable("sealed")

    monkeypatch.setattr("coatcheck.secrets.cache.CachedStore.fetch", unavailable)
    assert b"secret_unavailable" in await attempt(raw_daemon, raw_sandbox)
    assert raw_origin.saw_nothing


async def test_a_handle_that_expires_while_the_store_is_asked_refuses(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict was yes; the last look before the first upstream byte says no (I4)."""
    state = raw_daemon.state
    short = state.mint(raw_sandbox.session.id, "openai", ttl=1.0).value
    fetch, now = CachedStore.fetch, state.clock.now

    async def slow(store: CachedStore, ref: SecretRef) -> Secret:
        monkeypatch.setattr(state.clock, "now", lambda: replace(now(), wall=now().wall + 2))
        return await fetch(store, ref)

    monkeypatch.setattr(CachedStore, "fetch", slow)
    briefly = replace(raw_sandbox, handles={**raw_sandbox.handles, "openai": short})
    assert b"handle_expired" in await attempt(raw_daemon, briefly)
    assert b"".join(bytes(visit.received) for visit in raw_origin.visits) == b""  # connected is not sent


async def test_the_body_hook_that_raises_refuses(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook `request` runs only where the credential stands in a body; raising there refuses, too."""
    real = Exchange.receive

    def needs_body(exchange: Exchange, *args: object, **kwargs: object) -> object:
        call, waiting = real(exchange, *args, **kwargs)  # type: ignore[arg-type]
        call.signs_body = 10_000
        return call, waiting

    monkeypatch.setattr(Exchange, "receive", needs_body)
    assert raw_daemon.plane is not None
    raw_daemon.plane.shared.hooks[HttpRequestHook] = ("flow", boom)  # type: ignore[assignment]
    assert (await attempt(raw_daemon, raw_sandbox)).startswith(b"HTTP/1.1 503 ")
    assert raw_origin.saw_nothing
    await nothing_is_left(raw_daemon)


@pytest.mark.parametrize("side", ["client", "server"])
async def test_a_websocket_relay_that_raises_ends_both_sides(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    monkeypatch: pytest.MonkeyPatch,
    side: str,
) -> None:
    """A failing message filter ends the switch without a Close frame; no later frame passes."""
    raw_origin.behave = answering(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n"
        + (b"\x81\x02hi" if side == "server" else b"")
    )
    monkeypatch.setattr("coatcheck.planes.mitm.websocket.MessageFilter.feed", boom)
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(
            request(
                raw_sandbox, path="/ws", extra=upgrade + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            )
        )
        assert await raw.status() in (101, 0)
        if side == "client":
            await raw.send(b"\x81\x82\0\0\0\0hi")
        assert await raw.rest() == b""
    await nothing_is_left(raw_daemon)


async def test_a_connection_that_cannot_be_ended_in_order_keeps_no_revocation_from_the_others(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending the first one fails, twice: it is reset all the same, and so is the other. Nothing had left."""
    whole, failures = Ending.abort, iter((True, True))

    def abort(self: Ending, reason: Reason) -> None:
        if next(failures, False):
            raise RuntimeError("on purpose")
        whole(self, reason)

    async with tunnel(raw_daemon, raw_sandbox) as one, tunnel(raw_daemon, raw_sandbox) as other:
        monkeypatch.setattr(Ending, "abort", abort)
        await asyncio.to_thread(raw_daemon.state.revoke, raw_sandbox.session.id, "a test")
        async with asyncio.timeout(10):
            assert await one.rest() == await other.rest() == b""
    assert next(failures, None) is None and raw_origin.saw_nothing


async def test_a_head_that_is_taken_back_leaves_the_departures_of_others() -> None:
    """Two streams of a client, one upstream each: one fails before its head is written, the other's is
    written, and a later failure of that one must not be answered as if nothing had left."""
    upstreams = [Server(address=(name, 443)) for name in ("kept.example", "failed.example")]
    transports: dict[object, ConnectionIO] = {}
    far = []
    for upstream in upstreams:
        ours, theirs = socket.socketpair()
        transports[upstream] = ConnectionIO(None, *await asyncio.open_connection(sock=ours))
        theirs.setblocking(False)
        far.append(theirs)
    outbox = Outbox(Server(address=("client.example", 1)), transports)  # type: ignore[arg-type]
    kept, failed = SimpleNamespace(left=False), SimpleNamespace(left=False)
    for upstream, call in zip(upstreams, (kept, failed), strict=True):
        outbox.depart(cast(Call, call), upstream)
        outbox.put(commands.SendData(upstream, b"a head"))
    outbox.take_back(upstreams[1])
    outbox.flush()
    assert (kept.left, failed.left) == (True, False)
    assert far[0].recv(100) == b"a head"
    assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(far[1], 100), 3) == b""
    for upstream, theirs in zip(upstreams, far, strict=True):
        writer = transports[upstream].writer
        assert isinstance(writer, asyncio.StreamWriter)
        writer.transport.abort()
        theirs.close()


async def test_a_head_has_left_once_its_own_upstream_was_written_to() -> None:
    """What is written to another upstream says nothing about it."""
    first, second = Server(address=("a.example", 443)), Server(address=("b.example", 443))
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    outbox = Outbox(Server(address=("client.example", 1)), {first: ConnectionIO(None, reader, writer)})
    call = SimpleNamespace(left=False)
    outbox.depart(cast(Call, call), second)
    outbox.put(commands.SendData(first, b"of another"))
    outbox.flush()
    assert theirs.recv(100) == b"of another" and not call.left
    writer.transport.abort()
    theirs.close()
