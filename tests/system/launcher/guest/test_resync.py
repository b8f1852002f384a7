"""A guest that was saved, as its agent has it: it stands still between two frames, and a host that never
heard of its streams begins anew. The agent is the same before and after: to it, a copy
looks like that."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from coatcheck.durable.freeze import freeze, thaw
from coatcheck.launcher.channel import Channel, Chunk, Stream, StreamReset, fresh
from coatcheck.launcher.frames import RESYNC, Kind, encode
from coatcheck.launcher.mux import Mux, Side
from tests.launcher.guest.inhabited import (
    IDENTITIES,
    SECONDS,
    Inhabited,
    inhabited,
    read_until,
    refuse,
    spoken_with,
    started,
)

REBIND = (("generation", "2"), ("hostname", "clone"), *fresh().items())


@contextlib.asynccontextmanager
async def begun_anew(
    sock: socket.socket, accept: Callable[[Stream], Awaitable[None]] = refuse
) -> AsyncIterator[Inhabited]:
    """Another host, at the end of the same channel."""
    channel = Channel(sock, accept, None)
    running = asyncio.create_task(channel.run())
    try:
        await channel.ready(SECONDS)
        yield Inhabited(channel)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def saved(
    agent: Path,
    before: Callable[[Inhabited], Awaitable[None]],
    accept: Callable[[Stream], Awaitable[None]] = refuse,
) -> AsyncIterator[socket.socket]:
    """The channel of a guest that did `before` and then stood still: as a copy's host has it."""
    async with started(agent) as (ours, _):
        copy = ours.dup()
        copy.setblocking(False)
        async with spoken_with(ours, accept) as guest:
            await before(guest)
            await freeze(guest.channel)
        with copy:
            yield copy


async def test_what_ran_runs_on_in_the_copy_and_its_host_begins_with_stream_one(agent_program: Path) -> None:
    """With its input open and its output read, on pipes and on a terminal."""

    async def before(guest: Inhabited) -> None:
        loop = (
            "i=0; while :; do i=$((i+1)); echo $i > /tmp/count-{0}; echo out; echo err >&2; sleep 0.01; done"
        )
        for stream in (
            await guest.open("/bin/sh", "-c", loop.format("pipes")),
            await guest.open("/bin/sh", "-c", loop.format("terminal"), pty="24,80"),
            await guest.open("/bin/sh", "-c", "echo ready; read line; echo over > /tmp/input-ended"),
        ):
            await read_until(stream, b"\n")

    async with saved(agent_program, before) as copy, begun_anew(copy) as clone:
        assert (await clone.control("rebind", *REBIND)).get("generation") == "2"
        await clone.control("thaw")
        for kind in ("pipes", "terminal"):
            count = f"until grep -q . /tmp/count-{kind}; do :; done; cat /tmp/count-{kind}"
            seen: set[bytes] = set()
            async with asyncio.timeout(SECONDS):
                while len(seen) < 3:  # each at its own speed, and an empty one while it writes
                    seen.add((await clone.sh(count)).out)
        assert (await clone.sh("cat /tmp/input-ended; uname -n")).out == b"clone\n"


async def test_a_copy_does_nothing_before_it_is_somebody_of_its_own(agent_program: Path) -> None:
    """No command, no file, no port, no thaw; after the rebind its host's files, after the thaw commands."""

    async def nothing(guest: Inhabited) -> None: ...

    async with saved(agent_program, nothing) as copy, begun_anew(copy) as clone:
        for _ in range(2):
            with pytest.raises(StreamReset, match="frozen"):
                await clone.run("true")
            with pytest.raises(StreamReset, match="frozen"):
                await clone.put("/run/coatcheck/x", [b"x"], identity="root")
            async with await clone.channel.open("connect", [("port", "9")]) as stream:
                with pytest.raises(StreamReset, match="frozen"):
                    await stream.read()
            with pytest.raises(StreamReset, match="bad_request"):
                await clone.control("thaw")
            for generation in ("1", "0", "x"):  # its parent's, or an older one
                with pytest.raises(StreamReset, match="bad_request"):
                    await clone.control("rebind", ("generation", generation), *REBIND[1:])
        await clone.control("rebind", *REBIND)
        with pytest.raises(StreamReset, match="frozen"):
            await clone.run("true")
        await clone.put("/run/coatcheck/trust", [b"new"], identity="root")
        await clone.control("thaw")
        assert (await clone.sh("cat /run/coatcheck/trust")).out == b"new"


async def test_connections_of_its_parent_are_torn_and_do_not_end_in_order(agent_program: Path) -> None:
    """Half an answer must not look like a whole one."""
    answered = asyncio.Event()

    async def half(stream: Stream) -> None:
        await stream.write(b"half of it\n")
        answered.set()
        await asyncio.get_running_loop().create_future()

    async def before(guest: Inhabited) -> None:
        script = "exec 3<>/dev/tcp/127.0.0.1/3128; cat <&3 > /tmp/answer 2> /tmp/why; echo $? >> /tmp/why"
        await guest.open("/bin/bash", "-c", script)
        await answered.wait()
        async with asyncio.timeout(SECONDS):
            while not (await guest.sh("cat /tmp/answer")).out:
                pass

    async with saved(agent_program, before, half) as copy, begun_anew(copy) as clone:
        await clone.control("rebind", *REBIND)
        await clone.control("thaw")
        why = b""
        async with asyncio.timeout(SECONDS):
            while not why.endswith(b"1\n"):
                why = (await clone.sh("cat /tmp/why")).out
        assert b"reset by peer" in why
        assert (await clone.sh("cat /tmp/answer")).out == b"half of it\n"


async def test_its_connections_are_the_copy_s_and_begin_after_the_thaw(agent_program: Path) -> None:
    """One that a program had opened when it was frozen, and that no agent had taken up yet, too."""
    kinds: list[str] = []

    async def note(stream: Stream) -> None:
        kinds.append(stream.kind)

    async def before(guest: Inhabited) -> None:
        script = "while :; do exec 3<>/dev/tcp/127.0.0.1/3128; exec 3>&-; done"
        await read_until(await guest.open("/bin/bash", "-c", f"echo ready; {script}"), b"ready\n")

    async with saved(agent_program, before) as copy, begun_anew(copy, note) as clone:
        await clone.control("rebind", *REBIND)
        assert not kinds
        await clone.control("thaw")
        async with asyncio.timeout(SECONDS):
            while not kinds:
                await clone.run("true")
        assert set(kinds) == {"proxy"}


async def test_a_frozen_guest_has_nothing_under_way_and_goes_on_where_it_stood(agent_program: Path) -> None:
    """While bytes flow both ways: not one of them is lost, or said twice. Who asks meanwhile waits."""
    content = b"".join(b"%d\n" % number for number in range(500_000))
    async with inhabited(agent_program) as guest:
        stream = await guest.open("cat")
        sending = asyncio.create_task(_send(stream, content))
        came = bytearray()
        while item := await stream.read():
            came += item.data if isinstance(item, Chunk) else b""
            if len(came) // 700_000 % 2:
                continue
            await freeze(guest.channel)
            with pytest.raises(BlockingIOError):
                guest.channel.sock.recv(1, socket.MSG_PEEK)
            waiting = asyncio.create_task(guest.run("echo", "later"))
            await asyncio.sleep(0)
            await thaw(guest.channel)
            assert (await waiting).out == b"later\n"
        await sending
        assert came == content


async def _send(stream: Stream, content: bytes) -> None:
    await stream.write(content)
    await stream.end()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Mux(Side.HOST).hello([], RESYNC), "not frozen"),
        (Mux(Side.HOST).hello([]), "twice"),
        (encode(Kind.HELLO, 1, b"", RESYNC), "twice"),
    ],
)
async def test_a_host_that_begins_anew_with_a_running_guest_gets_none(
    agent_program: Path, said: bytes, why: str
) -> None:
    """Its streams would be somebody's who still waits for them."""
    async with started(agent_program) as (ours, process):
        loop = asyncio.get_running_loop()
        first = Mux(Side.HOST).hello([("generation", "1"), ("hostname", "x"), ("identities", IDENTITIES)])
        await loop.sock_sendall(ours, first + said)
        assert await asyncio.wait_for(process.wait(), SECONDS) == 1
        assert process.stdout is not None and why in (await process.stdout.read()).decode()


async def test_a_guest_that_was_never_greeted_is_no_copy(agent_program: Path) -> None:
    """One that booted, where a saved one was to be: it has no identities, and no closed network."""
    async with started(agent_program) as (ours, process):
        await asyncio.get_running_loop().sock_sendall(ours, Mux(Side.HOST).hello([], RESYNC))
        assert await asyncio.wait_for(process.wait(), SECONDS) == 1
        assert process.stdout is not None and "not frozen" in (await process.stdout.read()).decode()
