"""Resets, half-closes, TLS without close_notify, handshakes that hang: no clean end, others unharmed."""

import asyncio
import socket
import ssl

import pytest

from coatcheck.planes.upstream import handshake
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import nothing_is_left, request
from tests.planes.raw_origin import OK, Behaviour, RawOrigin, Visit, answering
from tests.planes.wire import Wire, tunnel
from tests.system.planes.conftest import plain_origin, raw_daemon, raw_origin, raw_sandbox

__all__ = ["plain_origin", "raw_daemon", "raw_origin", "raw_sandbox"]

UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall that there is"


def fin(visit: Visit) -> None:
    """A TCP end without TLS's own: what somebody on the way can make at any byte (RFC 8446 6.1)."""
    visit.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)


async def cut(visit: Visit, _: bytes) -> None:
    await visit.send(UNTIL_CLOSED)
    fin(visit)
    await visit.until_closed()


async def ended(visit: Visit, _: bytes) -> None:
    await visit.send(UNTIL_CLOSED)
    visit.writer.close()


async def whole_and_cut(visit: Visit, _: bytes) -> None:
    await visit.send(OK)
    fin(visit)
    await visit.until_closed()


async def body(raw: Wire) -> tuple[bytes, bool]:
    """What came, and whether it ended as a whole message does."""
    out = b""
    try:
        while not out.endswith(b"\r\n0\r\n\r\n") and (chunk := await raw.reader.read(65536)):
            out += chunk
    except (ConnectionError, ssl.SSLError):
        return out, False
    return out, True


@pytest.mark.parametrize(("behave", "clean"), [(ended, True), (cut, False)], ids=["close_notify", "fin"])
async def test_a_body_until_the_end_needs_tls_to_say_that_this_is_it(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, behave: Behaviour, clean: bool
) -> None:
    """RFC 9112 9.8: without a length, a connection that was cut is a body that was cut."""
    raw_origin.behave = behave
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        out, was_clean = await body(raw)
    assert was_clean is clean
    assert b"ransfer-encoding: chunked" in out or not clean, "nothing else would show where it ends"
    await nothing_is_left(raw_daemon)
    completion = [record for record in raw_daemon.records() if record["type"] == "completion"][-1]
    assert completion["aborted"] == (None if clean else "upstream_response_refused")


async def test_an_answer_of_known_length_needs_no_word_after_it(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """Many servers end TLS abruptly; what is complete by itself is not held against them."""
    raw_origin.behave = whole_and_cut
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        for _ in range(2):
            await raw.send(request(raw_sandbox))
            assert await raw.status() == 200
            assert await raw.reader.readexactly(2) == b"ok"
    await nothing_is_left(raw_daemon)


async def test_a_handshake_that_hangs_is_given_up(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upstream that takes connections in silence holds no request as long as a model may think."""
    monkeypatch.setattr(handshake, "SECONDS", 0.2)
    taken: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    assert raw_daemon.plane is not None
    settings = raw_daemon.plane.upstream.settings
    known = dict(settings.connect_to)
    monkeypatch.setitem(settings.connect_to, "api.openai.com:443", ("127.0.0.1", port))
    async with tunnel(raw_daemon, raw_sandbox) as raw, tunnel(raw_daemon, raw_sandbox) as other:
        await raw.send(request(raw_sandbox))
        assert await raw.refused_because() == "upstream_timeout"
        monkeypatch.setitem(settings.connect_to, "api.openai.com:443", known["api.openai.com:443"])
        await other.send(request(raw_sandbox))
        assert await other.status() == 200
    silent.close()
    for writer in taken:
        writer.transport.abort()
    await nothing_is_left(raw_daemon)


async def reset_at_once(visit: Visit, _: bytes) -> None:
    visit.reset()


async def half_closed(visit: Visit, _: bytes) -> None:
    fin(visit)
    await visit.until_closed()


@pytest.mark.parametrize("behave", [reset_at_once, half_closed])
async def test_an_upstream_that_leaves_before_its_answer_is_told_as_502(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, behave: Behaviour
) -> None:
    """One request, one record, one refusal; a sandbox beside it and the next request are served."""
    async with (
        tunnel(raw_daemon, raw_sandbox) as raw,
        tunnel(raw_daemon, await raw_daemon.sandbox()) as other,
    ):
        raw_origin.behave = behave
        await raw.send(request(raw_sandbox))
        assert await raw.refused_because() == "upstream_response_refused"
        raw_origin.behave = answering(OK)
        await other.send(request(raw_sandbox))
        assert await other.refused_because() == "handle_stolen"
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert await raw.status() == 200
    decided = [record["outcome"] for record in raw_daemon.decisions()]
    assert decided.count("inject") == len([head for head in raw_origin.heads if head]) == 2
