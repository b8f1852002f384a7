"""The host's end of a sandbox's channel, and a guest that says anything: it goes on or it ends, in bounds."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from itertools import pairwise

from hypothesis import event, given
from hypothesis import strategies as st

from coatcheck.launcher.channel import MAX_UNSENT, Channel, ChannelBroken, Stream, StreamReset
from coatcheck.launcher.frames import MAX_PAYLOAD, MORE, WINDOW, Kind, encode, encode_fields
from coatcheck.launcher.mux import MAX_GUEST_STREAMS, Mux, Side
from tests.fuzz.budget import budget

SECONDS = 60.0
"""Until something that takes milliseconds counts as stuck."""
HELLO = Mux(Side.GUEST).hello([("agent", "fuzz")])
OPEN = encode_fields([("kind", "proxy"), ("identity", "agent")])

_fields = st.lists(
    st.tuples(
        st.sampled_from(["kind", "reason", "message", "protocol", "exit", "x"]),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    ),
    max_size=18,
).map(encode_fields)
_payloads = st.one_of(
    st.just(OPEN),
    _fields,
    st.binary(max_size=30),
    st.integers(1, MAX_PAYLOAD).map(bytes),
    st.integers(0, WINDOW + 1).map(lambda credit: struct.pack(">I", credit)),
    st.just(b""),
)
_streams = st.sampled_from([2, 2, 4, 4, 6, 8, 1, 1, 3, 5, 0, 2**32 - 2])
_frames = st.builds(
    lambda kind, stream, payload, flags: encode(kind, stream, payload, flags),
    st.sampled_from(
        [Kind.OPEN, Kind.DATA, Kind.DATA, Kind.END, Kind.RESET, Kind.WINDOW, Kind.NOTE, Kind.HELLO]
    ),
    _streams,
    _payloads,
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, MORE, 255]),
)


@st.composite
def _guests(draw: st.DrawFn) -> bytes:
    """A guest that opens streams in order and uses them, or says whatever it likes."""
    said = draw(st.sampled_from([HELLO, HELLO, HELLO, b""]))
    opened = 0
    for _ in range(draw(st.integers(1, 20))):
        match draw(st.sampled_from(["open", "use", "use", "use", "any"])):
            case "open":
                opened += 1
                said += encode(Kind.OPEN, 2 * opened, OPEN)
            case "use" if opened:
                stream = draw(st.sampled_from([2 * draw(st.integers(1, opened)), 1]))
                kind = draw(st.sampled_from([Kind.DATA, Kind.DATA, Kind.END, Kind.RESET, Kind.WINDOW]))
                payload = {Kind.DATA: b"x" * draw(st.integers(1, 3000)), Kind.WINDOW: b"\0\0\0\0"}.get(
                    kind, b""
                )
                said += encode(kind, stream, payload)
            case _:
                said += draw(_frames) if draw(st.booleans()) else draw(st.binary(max_size=20))
    return said


@contextlib.asynccontextmanager
async def _talking(
    saved: bool = False,
) -> AsyncIterator[tuple[Channel, socket.socket, asyncio.Task[None], list[int]]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    echoed: list[int] = []

    async def echo(stream: Stream) -> None:
        while (item := await stream.read()) is not None:
            data = getattr(item, "data", b"")
            echoed.append(len(data))
            await stream.write(data)

    hello = {"generation": "1", "hostname": "box", "identities": "agent:1000"}
    channel = Channel(ours, echo, None if saved else hello)
    running = asyncio.create_task(channel.run())
    try:
        yield channel, theirs, running, echoed
    finally:
        theirs.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@given(_guests(), st.lists(st.integers(0, 5000), max_size=3), st.booleans(), st.booleans())
@budget(120)
async def test_whatever_a_guest_says_the_channel_goes_on_or_ends(
    said: bytes, places: list[int], listens: bool, saved: bool
) -> None:
    """No other exception, nobody left waiting, no more held than the bounds; then the guest goes away."""
    loop = asyncio.get_running_loop()
    async with _talking(saved) as (channel, guest, running, echoed), asyncio.timeout(SECONDS):
        ends = sorted({place % (len(said) + 1) for place in places} | {0, len(said)})
        listening = asyncio.create_task(_drain(guest)) if listens else None
        with contextlib.suppress(OSError):
            for start, end in pairwise(ends):
                await loop.sock_sendall(guest, said[start:end])
                await asyncio.sleep(0)
        stream: Stream | None = None
        with contextlib.suppress(ChannelBroken):
            stream = await channel.open("exec", [("arg", "true")])
        assert len(channel.streams) <= MAX_GUEST_STREAMS + 1
        assert channel.outbox.waiting <= MAX_UNSENT + 2 * WINDOW
        assert sum(echoed) <= len(said)
        with contextlib.suppress(OSError):
            guest.shutdown(socket.SHUT_WR)
        try:
            await running
            event("ended with the guest")
        except ChannelBroken as error:
            event(str(error).partition("(")[2].partition(":")[0])
        if stream is not None:
            with contextlib.suppress(StreamReset, ChannelBroken):
                while await stream.read() is not None:
                    pass
        if listening is not None:
            await listening
        assert not channel.streams and not channel.handlers


async def _drain(guest: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(guest, 65_536):
            pass
