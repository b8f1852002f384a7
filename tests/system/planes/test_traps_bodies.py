"""Where a request ends is one reading, too: chunks, trailers, and bodies that an origin may not read (I7)."""

import hpack
import pytest

from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import eventually, nothing_is_left
from tests.planes.raw_origin import OK, RawOrigin, answering
from tests.planes.wire import Wire, tunnel, wire

GET = b"GET / HTTP/1.1\r\nHost: upstream.example\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: upstream.example\r\nTransfer-Encoding: chunked\r\n\r\n"


def completions(daemon: TestDaemon) -> list[str | None]:
    return [record["aborted"] for record in daemon.records() if record["type"] == "completion"]


@pytest.mark.parametrize(
    "body",
    [
        b"0x2\r\nok\r\n0\r\n\r\n",
        b"+2\r\nok\r\n0\r\n\r\n",
        b"2\nok\r\n0\r\n\r\n",
        b"2;a\nb\r\nok\r\n0\r\n\r\n",
        b"2\r\nokay\r\n0\r\n\r\n",
        b"2\r\nok\n0\r\n\r\n",
        b"-1\r\nok\r\n0\r\n\r\n",
        b"\r\n2\r\nok\r\n0\r\n\r\n",
        b"000000000000000000002\r\nok\r\n0\r\n\r\n",
        b"2\r\nok\r\n0\r\n\n",
        b"2\r\nok\r\n0\r\nX-A: b\n\r\n",
        b"2\r\nok\r\n0\r\nX-A: b\r\n\n",
    ],
)
@pytest.mark.parametrize("kept", [False, True])
async def test_a_body_without_one_reading_is_cut_and_recorded(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, body: bytes, kept: bool
) -> None:
    """The upstream never sees its end, the client gets no answer, and the record says why: before the head
    has left, and after (`kept`)."""
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        if kept:
            await raw.send(GET)
            assert await raw.status() == 200
            await raw.reader.readexactly(2)
        raw_origin.behave = lambda visit, _: visit.until_closed()
        await raw.send(CHUNKED + body)
        assert b"HTTP/1.1" not in await raw.rest()
    # The head waits for its turn, so its own record may come after the body's.
    await eventually(lambda: "framing_refused" in [each["reason"] for each in raw_daemon.decisions()])
    assert completions(raw_daemon) == ([None, "framing_refused"] if kept else [])
    assert not any(seen.endswith(b"0\r\n\r\n") for seen in raw_origin.heads)
    await nothing_is_left(raw_daemon)


async def test_a_client_that_leaves_in_its_body_is_recorded_as_gone(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """An upload that breaks off is no attack, and never becomes a complete one."""
    raw_origin.behave = lambda visit, _: visit.until_closed()
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(CHUNKED + b"5\r\nhel")
        await eventually(lambda: bool(raw_origin.heads))
    await eventually(lambda: bool(completions(raw_daemon)))
    assert completions(raw_daemon) == ["client_gone"]
    assert not any(seen.endswith(b"0\r\n\r\n") for seen in raw_origin.heads)


@pytest.mark.parametrize(("method", "kept"), [("GET", False), ("HEAD", False), ("POST", True)])
async def test_a_body_that_an_origin_may_not_read_is_its_connections_last(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, method: str, kept: bool
) -> None:
    """CL.0: an origin that takes the content of a GET for a request must not answer the next one with it."""
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        head = f"{method} / HTTP/1.1\r\nHost: upstream.example\r\nContent-Length: 7\r\n\r\n"
        for _ in range(2):
            await raw.send(head.encode() + b"GET /x ")
            assert await raw.status() == 200
            if method != "HEAD":
                await raw.reader.readexactly(2)
    assert raw_origin.accepted == (1 if kept else 2)


@pytest.mark.parametrize("option", ["close", "Close", "keep-alive, CLOSE"])
async def test_after_close_nothing_is_read(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, option: str
) -> None:
    """In whatever case it is written, and on either side: the client here, the upstream on the second."""
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(GET.replace(b"\r\n\r\n", f"\r\nConnection: {option}\r\n\r\n".encode()) + GET)
        assert (await raw.rest()).count(b"HTTP/1.1") == 1
    raw_origin.behave = answering(OK.replace(b"\r\n\r\n", f"\r\nConnection: {option}\r\n\r\n".encode()))
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        for _ in range(2):
            await raw.send(GET)
            assert await raw.status() == 200
            await raw.reader.readexactly(2)
    assert raw_origin.accepted == 3


async def h2(daemon: TestDaemon, raw: Wire) -> None:
    await raw.send(b"CONNECT api.github.com:443 HTTP/1.1\r\n\r\n")
    assert await raw.status() == 200
    await raw.start_tls(daemon.trust.ca, "api.github.com", ("h2",))


async def test_a_broken_http2_connection_is_recorded_in_our_words(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """mitmproxy says goodbye with a text that quotes what was sent, and tells nobody."""
    async with wire(raw_sandbox) as raw:
        await h2(raw_daemon, raw)
        # DATA on stream 0 (RFC 9113 6.1)
        await raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + b"\0\0\2\0\1\0\0\0\0ok")
        assert (await raw.rest()).endswith(b"refused")
    assert raw_daemon.decisions()[-1]["reason"] == "framing_refused"
    assert raw_origin.saw_nothing


@pytest.mark.parametrize("scheme", ["http", "ftp", "https://evil.example/?", ""])
async def test_another_scheme_than_the_connections_is_refused(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, scheme: str
) -> None:
    """Some HTTP/2 servers build a URL from it; on the way to HTTP/1 it would vanish unseen."""
    fields = [(":method", "GET"), (":scheme", scheme), (":authority", "api.github.com"), (":path", "/")]
    block = hpack.Encoder().encode(fields)
    frame = len(block).to_bytes(3) + b"\1\5\0\0\0\1" + block
    async with wire(raw_sandbox) as raw:
        await h2(raw_daemon, raw)
        await raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + frame)
        await eventually(lambda: any(r["path"] for r in raw_daemon.decisions()))
    assert raw_daemon.decisions()[-1]["reason"] == "header_form_refused"
    assert raw_origin.saw_nothing
