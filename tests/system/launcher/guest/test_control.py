"""What the host orders the agent to do."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coatcheck.launcher.channel import Channel, Stream, StreamReset
from tests.launcher.guest.inhabited import (
    AS_ROOT,
    SECONDS,
    Inhabited,
    inhabited,
    read_until,
    refuse,
    spoken_with,
    started,
)

ENTROPY = ("entropy", "ab" * 32)


async def _forever(stream: Stream) -> None:
    """What stood in the pipe, and then nothing."""
    while await stream.read() is not None:
        pass


@pytest.fixture
async def guest(agent_program: Path) -> AsyncIterator[Inhabited]:
    async with inhabited(agent_program) as guest:
        yield guest


async def test_configure_gives_it_a_name(guest: Inhabited) -> None:
    """And its connections are led to the host whether or not a program knows of a proxy."""
    await guest.control("configure", ("hostname", "renamed"))
    assert guest.redirected
    assert (await guest.run("uname", "-n")).out == b"renamed\n"


async def test_frozen_commands_stand_still_and_no_new_one_starts(guest: Inhabited) -> None:
    """Until the thaw."""
    tick = "while echo tick; do sleep 0.01; done"
    async with await guest.open("/bin/sh", "-c", tick) as stream:
        await read_until(stream, b"tick\n")
        assert (await guest.control("freeze")).get("frozen") == "yes"
        with pytest.raises(StreamReset, match="frozen"):
            await guest.run("true")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_forever(stream), 0.3)
        assert (await guest.control("thaw")).get("frozen") == "no"
        await read_until(stream, b"tick\n")
    assert (await guest.run("true")).get("exit") == "0"


async def test_a_fork_becomes_somebody_else_before_it_runs(guest: Inhabited) -> None:
    """I10: a new generation, later than the old; commands start after the thaw and not before."""
    await guest.control("freeze")
    done = await guest.control("rebind", ("generation", "2"), ("hostname", "clone"), ENTROPY)
    assert done.get("generation") == "2"
    with pytest.raises(StreamReset, match="frozen"):
        await guest.run("true")
    await guest.control("thaw")
    assert (await guest.run("uname", "-n")).out == b"clone\n"
    for generation in ("2", "1", "", "x"):
        with pytest.raises(StreamReset, match="bad_request"):
            await guest.control("rebind", ("generation", generation), ENTROPY)
    with pytest.raises(StreamReset, match="bad_request"):
        await guest.control("rebind", ("generation", "3"))  # without new chance it would be a twin


async def test_what_it_does_not_know_is_refused(guest: Inhabited) -> None:
    """Operations and kinds of streams of a later protocol."""
    for op in ("", "explode"):
        with pytest.raises(StreamReset, match="bad_request"):
            await guest.control(op)
    with pytest.raises(StreamReset, match="bad_request"):
        await guest.control("configure", ("processes", "-1"))
    async with await guest.channel.open("teleport", []) as stream:
        with pytest.raises(StreamReset, match="bad_request"):
            await stream.read()


async def test_the_end_of_the_channel_is_the_end_of_the_sandbox(agent_program: Path) -> None:
    """A supervisor that dies leaves nothing running."""
    async with started(agent_program) as (ours, process):
        async with spoken_with(ours) as guest:
            await guest.open("sleep", "100")
            await guest.control("sync")
        assert await asyncio.wait_for(process.wait(), SECONDS) == 1


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ({"identities": "agent:1000"}, "generation"),
        ({"identities": "agent:1000", "generation": "0"}, "generation"),
        ({"generation": "1"}, "identities"),
        ({"generation": "1", "identities": "agent:1000,agent:1001"}, "share"),
        ({"generation": "1", "identities": "agent:1000,tool:1000"}, "share"),
        ({"generation": "1", "identities": "root:1000"}, "root"),
        ({"generation": "1", "identities": "agent"}, "malformed"),
        ({"generation": "1", "identities": "a b:1"}, "malformed"),
        ({"generation": "1", "identities": ",".join(f"i{n}:{n}" for n in range(1, 10))}, "malformed"),
    ],
)
async def test_a_host_that_makes_no_sense_gets_no_sandbox(
    agent_program: Path, hello: dict[str, str], why: str
) -> None:
    """Better none than one whose identities cannot be told apart."""
    async with started(agent_program) as (ours, process):
        running = asyncio.create_task(Channel(ours, refuse, hello).run())
        assert await asyncio.wait_for(process.wait(), SECONDS) == 1
        assert process.stdout is not None and why in (await process.stdout.read()).decode()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.skipif(not AS_ROOT, reason="needs a user namespace that maps one uid only")
async def test_two_identities_need_two_uids(agent_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one uid only is mapped, the second identity is refused, and one alone works."""
    monkeypatch.setattr("tests.launcher.guest.inhabited.AS_ROOT", False)
    async with inhabited(agent_program, identities="agent:1000") as guest:
        assert (await guest.run("id", "-u")).out == b"1000\n"
        status = (
            await guest.sh(
                "grep Cap /proc/self/status; kill -9 1; cat /proc/1/environ; readlink /proc/1/fd/3"
            )
        ).out.split()
        assert status[1::2] == [b"0" * 16] * 5
    async with started(agent_program) as (ours, process):
        hello = {"generation": "1", "identities": "agent:1000,tool:1001"}
        running = asyncio.create_task(Channel(ours, refuse, hello).run())
        assert await asyncio.wait_for(process.wait(), SECONDS) == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
