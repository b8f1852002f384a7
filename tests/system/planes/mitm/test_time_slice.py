"""I5, I9: what one read brought keeps nobody waiting, however small its pieces are."""

import asyncio
from collections.abc import Callable
from typing import override

import pytest

from coatcheck.planes.mitm import time_slice, turns
from coatcheck.planes.mitm.turns import Sharer, Turns
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import nothing_is_left, request
from tests.planes.raw_origin import RawOrigin, Visit
from tests.planes.wire import Wire, tunnel

PIECES = 1000
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n"
)


class Counted(Turns):
    """The plane's, counting the turns that were taken."""

    turns = 0

    @override
    async def take(self, sharer: Sharer, work: Callable[[], None]) -> None:
        await super().take(sharer, work)
        self.turns += 1


@pytest.fixture
def queue(raw_daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """A turn is one piece: what happens then does not depend on how fast this machine is."""
    assert raw_daemon.plane is not None
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(turns, "SPELL_SECONDS", 0.0)
    raw_daemon.plane.shared.turns = counting = Counted()
    return counting


async def received(raw: Wire, count: int, piece: bytes) -> bytes:
    """All up to the `count`th `piece` and what came with it, in whatever portions."""
    got = b""
    async with asyncio.timeout(30):
        while got.count(piece) < count:
            data = await raw.reader.read(65_536)
            assert data, f"ended after {got.count(piece)}"
            got += data
    return got


async def test_chunks_of_one_byte_leave_the_loop_to_others(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, queue: Counted
) -> None:
    """Upwards: each turn takes one, and the body arrives whole and in order."""
    body = bytes(97 + number % 26 for number in range(PIECES))
    done = asyncio.Event()

    async def behave(visit: Visit, _: bytes) -> None:
        got = b""
        while b"0\r\n\r\n" not in got:
            got += await visit.read()
        chunks = got.split(b"\r\n")
        assert b"".join(chunks[1:-3:2]) == body
        done.set()
        await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    raw_origin.behave = behave
    chunked = request(raw_sandbox, "POST", host="upstream.example").replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(chunked + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert await raw.status() == 200
    assert done.is_set()
    assert queue.turns > PIECES / 2
    await nothing_is_left(raw_daemon)


async def test_an_answer_in_chunks_of_one_byte_leaves_the_loop_to_others(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, queue: Counted
) -> None:
    """Downwards, where an allowed host is the attacker."""

    async def behave(visit: Visit, _: bytes) -> None:
        await visit.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n~\r\n" * PIECES + b"0\r\n\r\n"
        )

    raw_origin.behave = behave
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(request(raw_sandbox, host="upstream.example"))
        assert await raw.status() == 200
        # The last ones come together with the end: until then they could be the beginning of a secret.
        whole = await received(raw, 1, b"0\r\n\r\n")
        assert whole.count(b"~") == PIECES
    assert queue.turns > PIECES / 2
    await nothing_is_left(raw_daemon)


@pytest.mark.parametrize("from_client", [True, False], ids=["up", "down"])
async def test_websocket_messages_of_one_byte_leave_the_loop_to_others(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, queue: Counted, from_client: bool
) -> None:
    """In either direction each turn takes one message, and none is lost."""
    arrived = asyncio.Event()

    async def behave(visit: Visit, _: bytes) -> None:
        await visit.send(SWITCHING)
        if not from_client:
            await visit.send(b"\x81\x01~" * PIECES)
            await visit.until_closed()
            return
        got = 0
        while got < 7 * PIECES:
            got += len(await visit.read())
        arrived.set()

    raw_origin.behave = behave
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(request(raw_sandbox, path="/ws", host="upstream.example", extra=UPGRADE))
        assert await raw.status() == 101
        if from_client:
            await raw.send(b"\x81\x81\x00\x00\x00\x00~" * PIECES)
            async with asyncio.timeout(30):
                await arrived.wait()
        else:
            await received(raw, PIECES, b"\x81\x01~")
    assert queue.turns > PIECES / 2
    await nothing_is_left(raw_daemon)


async def test_http2_pings_leave_the_loop_to_others(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, queue: Counted
) -> None:
    """A flood of frames that cost their sender nothing is answered in turns."""
    async with tunnel(raw_daemon, raw_sandbox, "api.github.com", alpn=("h2",)) as raw:
        await raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4))
        await raw.send((b"\x00\x00\x08\x06\x00" + bytes(4) + b"flooding") * PIECES)
        await received(raw, PIECES, b"flooding")
    assert queue.turns > PIECES / 32
    await nothing_is_left(raw_daemon)


async def test_connections_with_something_in_hand_take_turns(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, queue: Counted
) -> None:
    """A turn of the loop does not get longer with the number of those that flood it."""

    async def behave(visit: Visit, _: bytes) -> None:
        await visit.send(SWITCHING)
        await visit.send(b"\x89\x00" * PIECES)
        await visit.until_closed()

    async def flooded() -> None:
        async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
            await raw.send(request(raw_sandbox, path="/ws", host="upstream.example", extra=UPGRADE))
            assert await raw.status() == 101
            await received(raw, PIECES, b"\x89\x00")

    raw_origin.behave = behave
    await asyncio.gather(*(flooded() for _ in range(4)))
    assert queue.turns > 4 * PIECES / 2
    await nothing_is_left(raw_daemon)


CHUNKS = b"".join(b"1\r\n%c\r\n" % (97 + number % 26) for number in range(PIECES))


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (SWITCHING + b"\x81\x02hi" * PIECES + b"\x88\x02\x03\xe8", b"\x88\x02\x03\xe8"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\n\r\n", b"0\r\n\r\n"),
    ],
    ids=["frames", "chunks"],
)
async def test_an_upstreams_end_does_not_overtake_what_it_said(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    queue: Counted,
    answer: bytes,
    end: bytes,
) -> None:
    """TLS tells the end of the connection together with the last bytes, which are still gone through."""

    async def behave(visit: Visit, _: bytes) -> None:
        await visit.send(answer)
        visit.writer.close()

    raw_origin.behave = behave
    extra = UPGRADE if answer.startswith(SWITCHING) else ""
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox, path="/ws", extra=extra))
        await raw.head()
        got = b""
        async with asyncio.timeout(30):
            while not got.endswith(end):
                data = await raw.reader.read(65_536)
                assert data, "ended before its end"
                got += data
    await nothing_is_left(raw_daemon)
    ends = [record["aborted"] for record in raw_daemon.records() if record["type"] == "completion"]
    assert ends == [None]
