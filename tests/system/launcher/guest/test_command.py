"""Commands in the guest, started and ended by the real agent."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coatcheck.launcher.channel import Chunk, Note, Stream, StreamReset
from tests.launcher.guest.inhabited import (
    AS_ROOT,
    SECONDS,
    Inhabited,
    inhabited,
    read_all,
    read_until,
)

MEBIBYTE = 1024 * 1024


async def _forever(stream: Stream) -> None:
    while True:
        await stream.write(b"x" * 32768)


@pytest.fixture
async def guest(agent_program: Path) -> AsyncIterator[Inhabited]:
    async with inhabited(agent_program) as guest:
        yield guest


async def test_output_errors_and_exit_code_come_back(guest: Inhabited) -> None:
    """Both outputs are told apart, and the code comes last."""
    done = await guest.sh("echo out; echo err >&2; exit 3")
    assert (done.out, done.err, done.get("exit")) == (b"out\n", b"err\n", "3")


async def test_all_output_comes_before_the_note(guest: Inhabited) -> None:
    """Also what stood in the pipe when the command had long ended."""
    async with await guest.open("head", "-c", str(5 * MEBIBYTE), "/dev/zero") as stream:
        size, last = 0, None
        async with asyncio.timeout(SECONDS):
            while (item := await stream.read()) is not None:
                size += len(item.data) if isinstance(item, Chunk) else 0
                last = item
    assert size == 5 * MEBIBYTE and isinstance(last, Note) and last.get("exit") == "0"


async def test_standard_input_reaches_the_command_to_its_end(guest: Inhabited) -> None:
    """More than every buffer on the way holds, then end of file."""
    sent = os.urandom(3 * MEBIBYTE)
    assert (await guest.run("cat", stdin=sent)).out == sent


async def test_a_command_may_ignore_its_input(guest: Inhabited) -> None:
    """The writer is told, instead of waiting for a reader that is gone."""
    async with await guest.open("true") as stream:
        with pytest.raises(StreamReset, match="done"):
            await asyncio.wait_for(_forever(stream), SECONDS)


async def test_a_command_without_input_reads_its_end_at_once(guest: Inhabited) -> None:
    """`stdin=none` is /dev/null."""
    stream = await guest.open("cat", stdin="none")
    assert (await read_all(stream)).get("exit") == "0"


async def test_a_signal_ends_it_and_is_named(guest: Inhabited) -> None:
    """By itself, or by the host's NOTE to the whole process group."""
    assert (await guest.sh("kill -11 $$")).get("signal") == "11"
    async with await guest.open("/bin/sh", "-c", "echo up; sleep 100; echo never") as stream:
        await read_until(stream, b"up\n")
        await stream.note([("signal", "15")])
        done = await read_all(stream)
    assert (done.out, done.get("signal")) == (b"", "15")


async def test_a_program_that_cannot_be_started_is_told_apart(guest: Inhabited) -> None:
    """Missing, forbidden, and a working directory that is not there."""
    cases: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
        (("nonesuch",), {}, "not_found"),
        (("/etc/passwd",), {}, "permission_denied"),
        (("true",), {"cwd": "/nonesuch"}, "invalid_path"),
        (("true",), {"identity": "somebody"}, "unknown_identity"),
        (("true",), {"identity": "root"}, "unknown_identity"),
        (("true",), {"pty": "much"}, "bad_request"),
        ((), {}, "bad_request"),
    )
    for argv, fields, reason in cases:
        with pytest.raises(StreamReset) as told:
            await guest.run(*argv, **fields)
        assert told.value.reason == reason, argv


async def test_what_it_leaves_behind_does_not_hold_it(guest: Inhabited) -> None:
    """A server that was started in the background lives on, and may go on printing."""
    done = await guest.sh("(while echo chatter; do sleep 0.01; done) & echo $!")
    pid = next(word for word in done.out.split() if word.isdigit()).decode()
    await asyncio.sleep(0.1)
    assert (await guest.sh(f"kill -0 {pid}")).get("exit") == "0"


async def test_a_client_that_goes_away_ends_its_command(guest: Inhabited) -> None:
    """With everything in its process group."""
    async with await guest.open("/bin/sh", "-c", "sleep 987 & echo up; wait") as stream:
        await read_until(stream, b"up\n")
    async with asyncio.timeout(SECONDS):
        while b"sleep" in (await guest.sh("cat /proc/[0-9]*/comm")).out:
            await asyncio.sleep(0.02)


async def test_orphans_are_reaped(guest: Inhabited) -> None:
    """Process 1 is everybody's last parent."""
    await guest.sh("for n in 1 2 3 4 5; do (true & ) ; done")
    states = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"
    async with asyncio.timeout(SECONDS):
        while (await guest.sh(states)).out != b"0\n":
            await asyncio.sleep(0.02)


async def test_it_has_what_was_given_and_nothing_else(guest: Inhabited) -> None:
    """Environment, directory, descriptors, session."""
    done = await guest.sh("env; pwd; ls -1 /proc/self/fd", env="GIVEN=yes", cwd="/usr")
    assert b"GIVEN=yes\n" in done.out and b"/usr\n" in done.out
    names = {line.split(b"=")[0] for line in done.out.splitlines() if b"=" in line}
    assert names <= {b"GIVEN", b"PATH", b"PWD", b"OLDPWD", b"SHLVL", b"_"}
    assert done.out.splitlines()[-4:] == [b"0", b"1", b"2", b"3"]  # 3 is ls's own, the directory
    assert (await guest.sh("ulimit -c; umask")).out == b"0\n0022\n"


async def test_it_has_no_privilege_and_can_gain_none(guest: Inhabited) -> None:
    """No capability in any set that an exec could use, and no set-uid program helps."""
    status = (await guest.sh("cat /proc/self/status")).out.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert set(fields["Uid"].split()) == {"1000"}


async def test_the_agent_is_out_of_its_reach(guest: Inhabited) -> None:
    """No signal, no memory, no descriptor of process 1: the channel speaks for every identity."""
    done = await guest.sh(
        "kill -9 1; kill -15 1; readlink /proc/1/fd/3; cat /proc/1/environ; head -c1 /proc/1/mem; echo alive",
        env="LC_ALL=C",
    )
    assert done.out == b"alive\n"
    assert (await guest.sh("true")).get("exit") == "0"


@pytest.mark.skipif(not AS_ROOT, reason="an ordinary user's namespace has one uid")
async def test_each_identity_has_its_own_uid(guest: Inhabited) -> None:
    """And cannot touch the other's processes."""
    assert (await guest.run("id", "-u", identity="tool")).out == b"1001\n"
    async with await guest.open("/bin/sh", "-c", "echo $$; sleep 100") as harness:
        pid = (await read_until(harness, b"\n")).decode().strip()
        assert (await guest.sh(f"kill -9 {pid}; cat /proc/{pid}/environ", identity="tool")).out == b""
        assert (await guest.sh(f"kill -0 {pid}")).get("exit") == "0"


async def test_a_terminal_is_one(guest: Inhabited) -> None:
    """Its size, its new size, and its end of file."""
    script = "stty size; trap 'stty size' WINCH; echo ready; cat; stty size"
    async with await guest.open("/bin/bash", "-c", script, pty="24,80") as stream:
        assert b"24 80\r\n" in await read_until(stream, b"ready\r\n")
        await stream.write(b"typed\n")
        await read_until(stream, b"typed\r\ntyped\r\n")  # the terminal's echo, and cat's: it runs
        await stream.note([("resize", "50,132")])
        await stream.end()
        done = await read_all(stream)
    assert b"50 132\r\n" in done.out and done.get("exit") == "0"


async def test_a_signal_reaches_the_terminals_foreground(guest: Inhabited) -> None:
    """Ctrl-C, typed or sent."""
    for note in (True, False):
        async with await guest.open("/bin/bash", "-c", "echo up; exec sleep 100", pty="24,80") as stream:
            await read_until(stream, b"up\r\n")
            if note:
                await stream.note([("signal", "2")])
            else:
                await stream.write(b"\x03")
            assert (await read_all(stream)).get("signal") == "2"


async def test_a_flood_that_nobody_reads_holds_nobody_else(guest: Inhabited) -> None:
    """Each stream waits for its own credit."""
    async with contextlib.AsyncExitStack() as floods:
        for _ in range(8):
            await floods.enter_async_context(await guest.open("yes"))
        await asyncio.sleep(0.05)
        for _ in range(5):
            assert (await guest.run("echo", "quick")).out == b"quick\n"


async def test_arguments_may_be_long_and_too_long_is_told(guest: Inhabited) -> None:
    """128 KiB is what Linux takes as one argument; scripts come as one."""
    script = "echo " + "x" * 120_000
    assert len((await guest.sh(script)).out) == 120_001
    with pytest.raises(StreamReset, match="Argument list too long"):
        await guest.sh("echo " + "x" * 140_000)
    with pytest.raises(ValueError, match="are allowed"):
        await guest.sh("x" * 300_000)


async def test_many_at_once_have_a_bound_and_then_room_again(guest: Inhabited) -> None:
    """256 streams of the host, the next is refused, and all end."""
    async with contextlib.AsyncExitStack() as open_ones:
        for _ in range(256):
            await open_ones.enter_async_context(await guest.open("cat"))
        with pytest.raises(StreamReset, match="busy"):
            await guest.run("true")
    async with asyncio.timeout(SECONDS):
        while True:
            with contextlib.suppress(StreamReset):
                assert (await guest.run("true")).get("exit") == "0"
                return
            await asyncio.sleep(0.05)
