"""Streams of a guest that stands still, and of one that was saved: a guest that says what a test wants."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping

import pytest

from coatcheck.launcher.channel import Channel, ChannelBroken, Note, Stream, StreamReset
from coatcheck.launcher.frames import RESYNC, Kind, encode, encode_fields
from coatcheck.launcher.mux import Data, Ended, Greeted, Opened, WasReset
from tests.launcher.test_channel import OPEN, SECONDS, Guest


@contextlib.asynccontextmanager
async def talking(
    hello: Mapping[str, str] | None,
) -> AsyncIterator[tuple[Channel, Guest, asyncio.Queue[Stream], "asyncio.Task[None]"]]:
    """A channel that runs, its guest, not greeted yet, and the streams that the guest opened."""
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    opened: asyncio.Queue[Stream] = asyncio.Queue()

    async def keep(stream: Stream) -> None:
        opened.put_nowait(stream)
        await asyncio.get_running_loop().create_future()

    channel = Channel(ours, keep, hello)
    running = asyncio.create_task(channel.run())
    try:
        yield channel, Guest(theirs), opened, running
    finally:
        theirs.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_saved_guest_is_spoken_to_first_and_its_hello_is_not_answered() -> None:
    """Who it is, a rebind says later: an old HELLO's chance and clock would be its parent's."""
    async with talking(None) as (channel, guest, _, _):
        assert await guest.hear() == Greeted((("protocol", "2"),))
        await guest.say(guest.mux.hello([("agent", "saved")]))
        await channel.ready(SECONDS)
        order = channel.order("rebind")
        assert await guest.hear() == Opened(1, "control", (("op", "rebind"),))
        assert order.number == 1


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (encode(Kind.DATA, 2, b"of its parent"), "hello_first"),
        (encode(Kind.OPEN, 2, OPEN), "hello_first"),
        (encode(Kind.HELLO, 0, encode_fields([("protocol", "2")]), RESYNC), "stream_id"),
        (encode(Kind.HELLO, 0, encode_fields([("protocol", "2")])) * 2, "hello_once"),
        (b"\0" * 8, "unknown_frame"),
    ],
)
async def test_a_saved_guest_that_goes_on_as_its_parent_is_ended(said: bytes, rule: str) -> None:
    """It knew what was coming, and says something else, or half of it."""
    async with talking(None) as (_, guest, _, running):
        await guest.say(said)
        with pytest.raises(ChannelBroken, match=rule):
            await asyncio.wait_for(running, SECONDS)


async def test_what_is_held_back_leaves_in_order_and_orders_go_before_it() -> None:
    """Streams get their numbers when they leave: the guest takes them in order only."""
    async with talking({}) as (channel, guest, opened, _):
        await guest.greet()
        await guest.say(guest.mux.open("proxy", [("identity", "agent")])[1])
        stream = await opened.get()
        channel.hold_back()
        await stream.write(b"answer")
        asked = asyncio.create_task(channel.open("exec", [("arg", "true")]))
        await asyncio.sleep(0)
        thaw = channel.order("thaw")
        assert await guest.hear() == Opened(1, "control", (("op", "thaw"),))
        await guest.say(guest.mux.note(1, [("frozen", "no")]), guest.mux.end(1))
        assert await thaw.notes() == [Note((("frozen", "no"),))]
        assert not asked.done()
        channel.go_on()
        assert await guest.hear() == Data(2, b"answer", 0)
        assert await guest.hear() == Opened(3, "exec", (("arg", "true"),))
        assert (await asked).number == 3


async def test_an_order_is_over_with_the_agent_s_last_word() -> None:
    """Its END does not say that nothing more of it is under way."""
    async with talking({}) as (channel, guest, _, _):
        await guest.greet()
        order = channel.order("sync")
        await guest.hear_of(Opened)
        await guest.say(guest.mux.end(1))
        assert await order.notes() == []
        over = asyncio.create_task(order.over())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not over.done()
        await guest.say(guest.mux.reset(1, "done"))
        await asyncio.wait_for(over, SECONDS)
        later = channel.order("sync")
        guest.sock.close()
        with pytest.raises(ChannelBroken):
            await asyncio.wait_for(later.over(), SECONDS)


async def test_bytes_for_a_guest_that_stands_still_are_told_and_so_is_an_answer_s_end() -> None:
    """The end of a connection that is only kept open is not: it would wake a guest for nothing."""
    async with talking({}) as (channel, guest, opened, _):
        await guest.greet()
        streams = []
        for _ in range(4):
            await guest.say(guest.mux.open("proxy", [("identity", "agent")])[1])
            streams.append(await opened.get())
        kept, asked, answered, torn = streams
        for each in (asked, torn):
            await guest.say(guest.mux.data(each.number, b"GET /"))
            await each.read()
        told: list[str] = []
        channel.when_wanted(lambda: told.append("told"))
        await answered.write(b"while it runs")
        assert not told and channel.held == 4
        channel.hold_back()
        await kept.end()
        assert not told and channel.held == 3
        await asked.end()
        assert len(told) == 1
        await answered.write(b"more")
        assert len(told) == 2
        torn.reset("closed")
        assert len(told) == 3 and channel.held == 1
        channel.go_on()
        heard = [await guest.hear() for _ in range(5)]
        assert [type(each) for each in heard] == [Data, Ended, Ended, Data, WasReset]


async def test_senders_to_a_guest_that_stands_still_wait() -> None:
    """What comes from an upstream meanwhile stays in the kernel, and holds the upstream back."""
    async with talking({}) as (channel, guest, opened, _):
        await guest.greet()
        await guest.say(guest.mux.open("proxy", [("identity", "agent")])[1])
        stream = await opened.get()
        channel.hold_back()
        writing = asyncio.create_task(stream.write(bytes(4_000_000)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not writing.done() and channel.outbox.waiting < 300_000
        channel.go_on()
        received = 0
        while received < 4_000_000:
            event = await guest.hear_of(Data)
            assert isinstance(event, Data)
            received += len(event.data)
            await guest.say(guest.mux.consumed(2, len(event.data) + 64))
        await asyncio.wait_for(writing, SECONDS)


async def test_whoever_waits_for_a_guest_that_stands_still_learns_of_its_end() -> None:
    """It may never go on."""
    async with talking({}) as (channel, guest, _, running):
        await guest.greet()
        channel.hold_back()
        waiting = asyncio.create_task(channel.open("exec", [("arg", "true")]))
        await asyncio.sleep(0)
        guest.sock.close()
        await asyncio.wait_for(running, SECONDS)
        with pytest.raises(ChannelBroken):
            await asyncio.wait_for(waiting, SECONDS)
        with pytest.raises(ChannelBroken):
            channel.order("thaw")


async def test_a_guest_that_refuses_an_order_says_why() -> None:
    """A word of the protocol, and words that nobody repeats."""
    async with talking({}) as (channel, guest, _, _):
        await guest.greet()
        order = channel.order("freeze")
        await guest.hear_of(Opened)
        await guest.say(guest.mux.reset(1, "failed", "\x1b[2J"))
        with pytest.raises(StreamReset, match="failed"):
            await order.notes()
