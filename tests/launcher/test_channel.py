"""The host's end of a channel, with a guest that says exactly what each test wants."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from coatcheck.launcher import channel as channel_module
from coatcheck.launcher.channel import (
    Channel,
    ChannelBroken,
    Chunk,
    Note,
    Stream,
    StreamReset,
)
from coatcheck.launcher.frames import WINDOW, Kind, Violation, encode, encode_fields, first
from coatcheck.launcher.mux import (
    MAX_GUEST_STREAMS,
    Credited,
    Data,
    Ended,
    Event,
    Greeted,
    Mux,
    Opened,
    Side,
    WasReset,
    cost,
)
from coatcheck.launcher.outbox import SEND_AHEAD

SECONDS = 20.0
"""Until something that takes milliseconds counts as stuck."""
OPEN = encode_fields([("kind", "proxy"), ("identity", "agent")])


class Guest:
    """The other side: its mux, and the socket as it is."""

    def __init__(self, sock: socket.socket) -> None:
        self.mux = Mux(Side.GUEST)
        self.sock = sock
        self._heard: list[Event] = []

    async def say(self, *frames: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.get_running_loop().sock_sendall(self.sock, b"".join(frames))

    async def hear(self) -> Event:
        """The next thing that the host said."""
        async with asyncio.timeout(SECONDS):
            while not self._heard:
                data = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
                assert data, "the host closed the channel"
                self._heard += self.mux.receive(data)
        return self._heard.pop(0)

    async def hear_of(self, kind: type[Event]) -> Event:
        while not isinstance(event := await self.hear(), kind):
            pass
        return event

    async def greet(self) -> Greeted:
        await self.say(self.mux.hello([("agent", "test")]))
        event = await self.hear()
        assert isinstance(event, Greeted)
        return event


async def nobody(stream: Stream) -> None:
    raise AssertionError(f"the guest opened {stream.kind}")


@contextlib.asynccontextmanager
async def talking(
    accept: Callable[[Stream], Awaitable[None]] = nobody,
) -> AsyncIterator[tuple[Channel, Guest, asyncio.Task[None]]]:
    """A channel that runs, and its guest, not greeted yet."""
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    channel = Channel(ours, accept, {"generation": "3", "hostname": "box", "identities": "agent:1000"})
    running = asyncio.create_task(channel.run())
    try:
        yield channel, Guest(theirs), running
    finally:
        theirs.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_hellos_are_exchanged() -> None:
    """Ours is fresh: a clock and chance that were prepared earlier would be a twin's."""
    async with talking() as (channel, guest, _):
        heard = (await guest.greet()).fields
        await channel.ready(SECONDS)
    assert (first(heard, "generation"), first(heard, "identities")) == ("3", "agent:1000")
    assert abs(float(first(heard, "clock")) - time.time()) < SECONDS
    assert len(bytes.fromhex(first(heard, "entropy"))) >= 32


async def test_a_guest_that_says_nothing_is_given_up() -> None:
    """After the time that the caller gives it."""
    async with talking() as (channel, _, _), asyncio.timeout(SECONDS):
        with pytest.raises(ChannelBroken, match="did not report"):
            await channel.ready(0.05)


async def test_a_broken_rule_ends_everything_with_its_name() -> None:
    """What waits for the guest is told; nothing hangs."""
    async with talking() as (channel, guest, running):
        await guest.greet()
        stream = await channel.open("exec", [])
        reading = asyncio.create_task(stream.read())
        writing = asyncio.create_task(stream.write(b"x" * (WINDOW + 1)))
        await asyncio.sleep(0)
        await guest.say(encode(Kind.DATA, 77, b"x"))
        with pytest.raises(ChannelBroken, match="stream_never_opened"):
            await asyncio.wait_for(running, SECONDS)
        for waiting in (reading, writing):
            with pytest.raises(ChannelBroken):
                await asyncio.wait_for(waiting, SECONDS)
        with pytest.raises(ChannelBroken):
            await channel.open("exec", [])


async def test_the_guests_end_is_not_its_fault() -> None:
    """A machine that powers off closes the channel: run returns, streams are over."""
    async with talking() as (channel, guest, running):
        await guest.greet()
        stream = await channel.open("exec", [])
        guest.sock.close()
        await asyncio.wait_for(running, SECONDS)
        with pytest.raises(ChannelBroken, match="closed"):
            await stream.read()


async def test_bytes_and_notes_come_in_order_and_before_the_end() -> None:
    """A RESET that follows the END takes nothing away."""
    async with talking() as (channel, guest, _):
        await guest.greet()
        stream = await channel.open("exec", [])
        await guest.hear_of(Opened)
        await guest.say(
            encode(Kind.DATA, 1, b"out"),
            encode(Kind.DATA, 1, b"err", 1),
            encode(Kind.NOTE, 1, encode_fields([("exit", "0")])),
            encode(Kind.END, 1),
            encode(Kind.RESET, 1, encode_fields([("reason", "done")])),
        )
        assert [await stream.read() for _ in range(4)] == [
            Chunk(b"out"),
            Chunk(b"err", 1),
            Note((("exit", "0"),)),
            None,
        ]
        with pytest.raises(StreamReset, match="done"):
            await stream.write(b"more")


async def test_what_came_before_a_reset_is_read_first() -> None:
    """Then the reason."""
    async with talking() as (channel, guest, _):
        await guest.greet()
        stream = await channel.open("read", [])
        await guest.hear_of(Opened)
        reset = encode_fields([("reason", "no_space"), ("message", "full")])
        await guest.say(encode(Kind.DATA, 1, b"x"), encode(Kind.RESET, 1, reset))
        assert await stream.read() == Chunk(b"x")
        with pytest.raises(StreamReset) as told:
            await stream.read()
        assert (told.value.reason, told.value.message) == ("no_space", "full")


async def test_a_writer_waits_for_credit_and_is_woken() -> None:
    """By credit, and by the guest's RESET."""
    async with talking() as (channel, guest, _):
        await guest.greet()
        stream = await channel.open("exec", [])
        writing = asyncio.create_task(stream.write(b"x" * 400_000))
        await guest.hear_of(Opened)
        received = 0
        while received < 200_000:
            event = await guest.hear()
            assert isinstance(event, Data)
            received += len(event.data)
        while guest.mux.flows[1].may_receive > cost(0):
            event = await guest.hear()
            assert isinstance(event, Data)
            received += len(event.data)
        assert not writing.done() and received < WINDOW
        await guest.say(guest.mux.consumed(1, 200_000))
        await asyncio.wait_for(writing, SECONDS)
        more = asyncio.create_task(stream.write(b"x" * 400_000))
        await asyncio.sleep(0.01)
        await guest.say(encode(Kind.RESET, 1))
        with pytest.raises(StreamReset):
            await asyncio.wait_for(more, SECONDS)


async def test_credit_is_given_back_as_chunks_are_read_and_not_before() -> None:
    """A stream that nobody reads holds what its window holds."""
    async with talking() as (channel, guest, _):
        await guest.greet()
        stream = await channel.open("exec", [])
        await guest.hear_of(Opened)
        while size := guest.mux.may_send(1):
            await guest.say(guest.mux.data(1, b"x" * size))
        other = await channel.open("exec", [])
        assert isinstance(await guest.hear(), Opened)  # no Credited came before it
        for _ in range(3):
            await stream.read()
        assert await guest.hear() == Credited(1)
        assert other.number == 3


async def test_a_big_transfer_does_not_keep_a_small_one_waiting() -> None:
    """Senders take turns, a frame each: what was said last comes at most one queue later."""
    async with talking() as (channel, guest, _):
        await guest.greet()
        big = [await channel.open("write", []) for _ in range(20)]
        writing = [asyncio.create_task(stream.write(b"x" * WINDOW)) for stream in big]
        await asyncio.sleep(0.05)
        small = asyncio.create_task(_open_and_say(channel, b"small"))
        before = 0
        while not (isinstance(event := await guest.hear(), Data) and event.data == b"small"):
            before += len(event.data) if isinstance(event, Data) else 0
        # What waited in our queue and the kernel's, and two rounds of turns: to open, and to say it.
        assert before < SEND_AHEAD + 700_000 + 2 * len(big) * 32768
        await small
        for task in writing:
            task.cancel()


async def _open_and_say(channel: Channel, words: bytes) -> None:
    await (await channel.open("exec", [])).write(words)


async def test_a_cancelled_writer_leaves_whole_frames() -> None:
    """The channel goes on; so does its stream."""
    async with talking() as (channel, guest, _):
        await guest.greet()

        async def drain() -> None:
            while not (isinstance(event := await guest.hear(), Opened) and event.kind == "last"):
                pass

        draining = asyncio.create_task(drain())
        for _ in range(20):
            stream = await channel.open("exec", [])
            writing = asyncio.create_task(stream.write(b"x" * WINDOW))
            await asyncio.sleep(0)
            writing.cancel()
        await channel.open("last", [])
        await draining


async def test_a_stream_that_is_left_is_dropped() -> None:
    """A handler that returns, fails or is cancelled leaves nothing open."""

    async def accept(stream: Stream) -> None:
        if stream.get("identity") == "bad":
            raise OSError("no such socket")

    async with talking(accept) as (channel, guest, _):
        await guest.greet()
        bad = encode_fields([("kind", "proxy"), ("identity", "bad")])
        await guest.say(guest.mux.open("proxy", [])[1], encode(Kind.OPEN, 4, bad))
        guest.mux.last[Side.GUEST] = 4
        assert await guest.hear() == WasReset(2, "closed", "")
        async with await channel.open("exec", []):
            await guest.hear_of(Opened)
        assert await guest.hear() == WasReset(1, "cancelled", "")


async def test_an_upload_that_is_dropped_cancels_its_handler() -> None:
    """Nothing goes on working for a client that is gone."""
    cancelled = asyncio.Event()

    async def accept(stream: Stream) -> None:
        try:
            await asyncio.sleep(SECONDS)
        finally:
            cancelled.set()

    async with talking(accept) as (_, guest, _):
        await guest.greet()
        await guest.say(encode(Kind.OPEN, 2, OPEN))
        await asyncio.sleep(0.02)
        await guest.say(encode(Kind.RESET, 2))
        await asyncio.wait_for(cancelled.wait(), SECONDS)


async def test_opening_and_dropping_in_a_loop_piles_nothing_up() -> None:
    """Handlers that take their time to end count as open (CVE-2023-44487)."""
    running = most = 0

    async def slow_to_end(stream: Stream) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
        finally:
            running -= 1

    async with talking(slow_to_end) as (_, guest, _):
        await guest.greet()
        numbers = range(2, 6 * MAX_GUEST_STREAMS, 2)
        flood = b"".join(encode(Kind.OPEN, number, OPEN) + encode(Kind.RESET, number) for number in numbers)
        await guest.say(flood)
        await guest.say(encode(Kind.OPEN, 9000, OPEN))
        guest.mux.last[Side.GUEST] = 9000
        await asyncio.sleep(0.5)
    assert most <= MAX_GUEST_STREAMS


async def test_streams_that_were_dropped_before_they_began_are_forgotten() -> None:
    """OPEN and RESET in one piece: their tasks never take a step, and 512 of them were the last (fuzz)."""

    async def answer(stream: Stream) -> None:
        await stream.write(b"here")

    async with talking(answer) as (channel, guest, _):
        await guest.greet()
        for batch in range(3):
            numbers = range(2 + 1000 * batch, 2 + 1000 * (batch + 1), 2)
            await guest.say(*(encode(Kind.OPEN, n, OPEN) + encode(Kind.RESET, n) for n in numbers))
            async with asyncio.timeout(SECONDS):
                while channel.mux.last[Side.GUEST] < numbers[-1] or channel.handlers:
                    await asyncio.sleep(0.01)
        guest.mux.last[Side.GUEST] = 3998
        number, wire = guest.mux.open("proxy", [("identity", "agent")])
        await guest.say(wire)
        assert await guest.hear_of(Data) == Data(number, b"here", 0)


async def test_a_guest_that_talks_and_does_not_listen_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to it wait in memory, up to a bound."""
    monkeypatch.setattr(channel_module, "MAX_UNSENT", 50_000)

    async def refuse(stream: Stream) -> None:
        stream.reset("refused", "x" * 900)

    async with talking(refuse) as (_, guest, running):
        await guest.greet()
        with contextlib.suppress(OSError):
            for number in range(2, 20_000, 2):
                await guest.say(encode(Kind.OPEN, number, OPEN))
                if running.done():
                    break
        with pytest.raises(ChannelBroken, match="not_reading"):
            await asyncio.wait_for(running, SECONDS)


async def test_notes_that_nobody_reads_have_a_bound() -> None:
    """They are under no credit."""
    async with talking() as (channel, guest, running):
        await guest.greet()
        await channel.open("exec", [])
        await guest.hear_of(Opened)
        await guest.say(*[encode(Kind.NOTE, 1, encode_fields([("x", "y" * 4000)]))] * 20)
        with pytest.raises(ChannelBroken, match="too_many_notes") as broken:
            await asyncio.wait_for(running, SECONDS)
        assert isinstance(broken.value.__cause__, Violation)


async def test_half_of_a_stream_can_end() -> None:
    """The other half goes on."""
    async with talking() as (channel, guest, _):
        await guest.greet()
        stream = await channel.open("connect", [])
        await stream.end()
        await guest.hear_of(Opened)
        assert await guest.hear() == Ended(1)
        await guest.say(encode(Kind.DATA, 1, b"answer"), encode(Kind.END, 1))
        assert [await stream.read(), await stream.read()] == [Chunk(b"answer"), None]
        assert stream.is_over
