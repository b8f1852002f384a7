"""What a lying, broken or malicious upstream sends, and what becomes of it (I3)."""

import asyncio
import gc

import pytest

from coatcheck.planes.mitm.flow import EgressFlow
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import eventually, nothing_is_left, request
from tests.planes.raw_origin import OK, RawOrigin, Visit, answering
from tests.planes.wire import Wire, tunnel

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
POISON = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"

REFUSED = {
    "1_4_a_103_that_announces_content": b"HTTP/1.1 103 Early Hints\r\nContent-Length: 6\r\n\r\npoison" + OK,
    "1_4_interim_answers_without_end": b"HTTP/1.1 102 Processing\r\n\r\n" * 3_000 + OK,
    "1_5_101_unasked": b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw",
    "1_5_101_to_h2c": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nraw",
    "1_7_endless_head": HEAD + b"X-Note: " + b"a" * 200_000,
    "1_7_too_many_fields": HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(2_000)) + b"\r\n",
    "two_lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
    "length_and_chunked": HEAD
    + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "negative_length": HEAD + b"Content-Length: -1\r\n\r\n",
    "odd_coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "204_with_a_length": b"HTTP/1.1 204 No Content\r\nContent-Length: 6\r\n\r\npoison",
    "folded_field": HEAD + b"X-Note: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
    "splitting_by_cr": HEAD + b"X-Note: a\rSet-Cookie: b\r\nContent-Length: 2\r\n\r\nok",
    "nul_in_a_value": HEAD + b"X-Note: a\x00b\r\nContent-Length: 2\r\n\r\nok",
    "space_in_a_name": HEAD + b"X Note: a\r\nContent-Length: 2\r\n\r\nok",
    "no_colon": HEAD + b"X-Note\r\nContent-Length: 2\r\n\r\nok",
    "status_099": b"HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok",
    "status_with_sign": b"HTTP/1.1 +200 OK\r\nContent-Length: 2\r\n\r\nok",
    "status_with_underscore": b"HTTP/1.1 2_00 OK\r\nContent-Length: 2\r\n\r\nok",
    "http_2_in_an_h1_line": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "no_http_at_all": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "206_to_an_injected_request": b"HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\n\r\nok",
    "coding_that_cannot_be_undone": HEAD + b"Content-Encoding: compress\r\nContent-Length: 2\r\n\r\nok",
}


async def everything(raw: Wire, seconds: float = 3.0) -> bytes:
    """What comes until the connection ends or nothing more comes for a while."""
    out = b""
    try:
        async with asyncio.timeout(seconds):
            while chunk := await raw.reader.read(65536):
                out += chunk
                if out.endswith((b"}\n", b"0\r\n\r\n", b"\r\n\r\nok")):
                    break
    except (OSError, TimeoutError):
        pass
    return out + await raw.soon()


@pytest.mark.parametrize("answer", REFUSED)
async def test_an_answer_with_more_than_one_reading_is_refused(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, answer: str
) -> None:
    """502 and a reason instead of it; not one of its bytes reaches the sandbox."""
    raw_origin.behave = answering(REFUSED[answer])
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        out = await everything(raw)
        assert out.startswith(b"HTTP/1.1 502")
        assert b"Coatcheck-Reason: upstream_response_refused".lower() in out.lower()
        assert out.count(b"HTTP/1.1 ") == 1
        assert not any(part in out for part in (b"poison", b"raw", b"</a>", b"SSH-"))
        raw_origin.behave = answering(OK)
        await raw.send(request(raw_sandbox))
        assert (await everything(raw)).endswith(b"\r\n\r\nok")
    assert len(raw_origin.visits) == 2, "the upstream connection was used again"
    await nothing_is_left(raw_daemon)


INTERIM = {
    "103": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    "an unasked 100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "several": b"HTTP/1.1 102 Processing\r\n\r\n" * 40 + b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
}


@pytest.mark.parametrize("answer", INTERIM)
async def test_interim_answers_are_dropped(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, answer: str
) -> None:
    """The one that follows them is the answer, and the connection is in step and used again."""
    raw_origin.behave = answering(INTERIM[answer] + OK)
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        for _ in range(2):
            await raw.send(request(raw_sandbox))
            out = await everything(raw)
            assert out.startswith(b"HTTP/1.1 200") and out.endswith(b"\r\n\r\nok")
            assert out.count(b"HTTP/1.1 ") == 1 and b"</a>" not in out
    await nothing_is_left(raw_daemon)


CUT = {
    "0_a_chunk_that_is_no_number": CHUNKED + b"5\r\nhello\r\nzz\r\n",
    "0_a_chunk_longer_than_it_says": CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
    "0_a_negative_chunk": CHUNKED + b"5\r\nhello\r\n-1\r\n",
    "1_7_endless_chunk_header": CHUNKED + b"5\r\nhello\r\n1;" + b"a" * 200_000,
    "1_7_endless_trailers": CHUNKED + b"5\r\nhello\r\n0\r\nX-Note: " + b"a" * 200_000,
    "closed_before_the_last_chunk": CHUNKED + b"5\r\nhello\r\n",
    "closed_in_a_chunk": CHUNKED + b"5\r\nhel",
    "closed_before_its_length": HEAD + b"Content-Length: 10\r\n\r\nhello",
    "coding_that_is_broken": HEAD
    + b"Content-Encoding: gzip\r\nContent-Length: 10\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0\0",
}


@pytest.mark.parametrize("answer", CUT)
async def test_a_broken_body_has_no_clean_end(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, answer: str
) -> None:
    """I3: the client of a body that broke off must not take what it has for the whole."""
    close = "closed" in answer or "coding" in answer
    raw_origin.behave = answering(CUT[answer], close=close)
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        out = await everything(raw)
        assert not out.partition(b"\r\n\r\n")[2].endswith(b"0\r\n\r\n")
        assert b"Content-Length: 5" not in out and b"Content-Length: 3" not in out
        assert raw.reader.at_eof() or raw.reader.exception() is not None
    await nothing_is_left(raw_daemon)
    assert [r["aborted"] for r in raw_daemon.records() if r["type"] == "completion"] == [
        "upstream_response_refused"
    ]


@pytest.mark.parametrize(
    ("method", "answer", "status"),
    [
        ("GET", OK + POISON, 200),
        ("HEAD", HEAD + b"Content-Length: 6\r\n\r\npoison", 200),
        ("HEAD", CHUNKED + b"6\r\npoison\r\n0\r\n\r\n", 200),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\npoison", 204),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\n\r\npoison", 304),
        ("GET", HEAD + b"Content-Length: 0\r\n\r\npoison", 200),
        ("GET", CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + POISON, 200),
    ],
)
async def test_what_follows_an_answer_never_reaches_the_next_request(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    method: str,
    answer: bytes,
    status: int,
) -> None:
    """Response-queue poisoning: bytes that nobody asked for end the upstream connection."""
    raw_origin.behave = answering(answer)
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox, method))
        assert await raw.status() == status
        assert b"poison" not in await raw.soon()
        raw_origin.behave = answering(OK)
        await raw.send(request(raw_sandbox))
        out = await everything(raw)
        assert b"poison" not in out and out.endswith(b"ok")
    await nothing_is_left(raw_daemon)


async def test_h1_trailers_are_dropped_and_crash_nothing(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """mitmproxy raises NotImplementedError at them; RFC 9110 6.5.1 lets a proxy discard them."""
    raw_origin.behave = answering(CHUNKED + b"2\r\nok\r\n0\r\nServer-Timing: a\r\nX-Echo: b\r\n\r\n")
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        for _ in range(2):
            await raw.send(request(raw_sandbox))
            out = await everything(raw)
            assert out.endswith(b"2\r\nok\r\n0\r\n\r\n")
            assert b"Server-Timing" not in out and b"X-Echo" not in out
    assert len(raw_origin.visits) == 1


async def test_h1_trailers_of_a_request_are_refused(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """They might have meant something to the upstream: it gets no end of this message."""
    raw_origin.behave = lambda visit, _: visit.until_closed()
    head = request(raw_sandbox, "GET", extra="Transfer-Encoding: chunked\r\n").replace(b"GET", b"PUT")
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(head + b"2\r\nok\r\n0\r\nX-Note: a\r\n\r\n")
        assert b" 200 OK" not in await raw.rest()
    await nothing_is_left(raw_daemon)
    assert not raw_origin.heads[0].endswith(b"0\r\n\r\n")
    assert b"X-Note" not in raw_origin.heads[0]


async def test_an_early_answer_ends_the_upload_and_keeps_the_reason(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """413 in the middle of an upload reaches the client whole; nothing more of the body leaves."""
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"

    async def early(visit: Visit, _: bytes) -> None:
        await visit.send(refusal)
        await visit.until_closed()

    raw_origin.behave = early
    head = request(raw_sandbox, "GET", extra="Content-Length: 1000000\r\n").replace(b"GET", b"PUT")
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(head + b"a" * 1000)
        assert await raw.status() == 413
        assert await raw.reader.readexactly(2) == b"no"
        await raw.send(b"b" * 100_000)
    await nothing_is_left(raw_daemon)
    assert b"b" * 100 not in raw_origin.heads[0]


@pytest.mark.parametrize("stage", ["accept", "head", "nothing"])
async def test_an_upstream_that_closes_early_is_answered_502(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, stage: str
) -> None:
    """Before a byte of an answer the client reads a reason, and the reason is recorded."""

    async def closing(visit: Visit, _: bytes) -> None:
        if stage == "head":
            await visit.send(b"HTTP/1.1 20")
        if stage == "accept":
            visit.reset()
        visit.writer.close()

    raw_origin.behave = closing
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox, "PUT", body=b"x"))
        assert (await everything(raw)).startswith(b"HTTP/1.1 502")
    await nothing_is_left(raw_daemon)


async def test_a_stale_kept_connection_is_tried_once_more_for_reads_only(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """mitmproxy #3038: the upstream closes as the next request leaves. GET goes out again, PUT does not."""

    async def once(visit: Visit, _: bytes) -> None:
        if visit.received.count(b" HTTP/1.1") > 1:
            visit.writer.close()
            return
        await visit.send(OK)

    raw_origin.behave = once
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        for _ in range(2):
            await raw.send(request(raw_sandbox))
            assert (await everything(raw)).endswith(b"ok")
        await raw.send(request(raw_sandbox, "PUT", body=b"x"))
        assert (await everything(raw)).startswith(b"HTTP/1.1 502")
    assert sum(head.count(b"PUT") for head in raw_origin.heads) == 1


async def test_a_websocket_that_breaks_off_is_not_closed_cleanly(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """An upstream that dies gives the client no Close frame 1000, which would say that all was said."""
    raw_origin.behave = answering(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n\x01\x05begin",
        close=True,
    )
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(
            request(
                raw_sandbox, path="/ws", extra=upgrade + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            )
        )
        assert await raw.status() == 101
        assert b"\x88" not in await raw.rest()
    await nothing_is_left(raw_daemon)
    assert [r["aborted"] for r in raw_daemon.records() if r["type"] == "completion"] != [None]


@pytest.mark.parametrize(
    "frame", [b"\x81\x82\0\0\0\0hi", b"\xc1\x02hi", b"\x83\x02hi", b"\x09\x02hi", b"\x80\x02hi"]
)
async def test_frames_that_break_the_rules_end_a_websocket_and_are_recorded(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, frame: bytes
) -> None:
    """wsproto makes a Close of them: relayed, it would say that the upstream closed, and the record, too."""
    raw_origin.behave = answering(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n" + frame
    )
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(
            request(
                raw_sandbox, path="/ws", extra=upgrade + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            )
        )
        assert await raw.status() == 101
        assert await raw.rest() == b""
    await nothing_is_left(raw_daemon)
    assert [r["aborted"] for r in raw_daemon.records() if r["type"] == "completion"] == ["protocol_refused"]


async def test_flow_messages_do_not_grow(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """mitmproxy keeps every WebSocket message of a flow; ours keeps none."""
    raw_origin.behave = answering(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n" + b"\x81\x02hi" * 1000
    )
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    assert raw_daemon.plane is not None
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(
            request(
                raw_sandbox, path="/ws", extra=upgrade + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            )
        )
        assert await raw.status() == 101
        assert await raw.reader.readexactly(4000) == b"\x81\x02hi" * 1000
        flows = [found for found in gc.get_objects() if isinstance(found, EgressFlow) and found.websocket]
        assert flows
        assert not any(flow.websocket.messages for flow in flows if flow.websocket is not None)
    await eventually(lambda: not raw_daemon.exchange.calls)
