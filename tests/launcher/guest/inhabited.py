"""A small sandbox for tests: the real agent as process 1 of fresh namespaces, and our end of its channel."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coatcheck.launcher.channel import Channel, Chunk, Note, Stream, StreamReset
from coatcheck.launcher.network import close_network

SECONDS = 20.0
"""Until something that takes milliseconds counts as stuck, on a machine that is busy with everything else."""
AS_ROOT = os.geteuid() == 0
IDENTITIES = "agent:1000,tool:1001" if AS_ROOT else "agent:1000"
NAMESPACES = (
    *("bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--as-pid-1"),
    *("--die-with-parent", "--cap-add", "ALL", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
    *("--size", "8388608", "--tmpfs", "/home", "--tmpfs", "/run", "--perms", "1777", "--tmpfs", "/tmp"),
    *("--chdir", "/"),
)
"""Root needs no user namespace to have several uids."""
_PLACES = """
new() { mount -t tmpfs -o "size=$2" tmpfs "$1"; }
cd /; new /run 16m; cp "$0" /run/agent; new /home 8m; new /tmp 256m; exec "$@"
"""
ALONE = (
    *("unshare", "--user", "--map-user=1000", "--map-group=1000", "--keep-caps", "--pid", "--net", "--uts"),
    *("--ipc", "--mount", "--fork", "--kill-child", "--mount-proc", "bash", "-c", _PLACES),
)
"""An ordinary user has one uid to give away. (bubblewrap would change the uid in a second user namespace, to
which the network does not belong.)"""


@dataclass
class Output:
    """All that a stream brought."""

    out: bytes = b""
    err: bytes = b""
    notes: list[Note] = field(default_factory=list)

    def get(self, name: str) -> str:
        return self.notes[-1].get(name) if self.notes else ""


async def read_all(stream: Stream) -> Output:
    """Everything until the guest's END. StreamReset when it came to that instead."""
    output = Output()
    async with asyncio.timeout(SECONDS):
        while (item := await stream.read()) is not None:
            if isinstance(item, Note):
                output.notes.append(item)
            elif item.stderr:
                output.err += item.data
            else:
                output.out += item.data
    return output


async def read_until(stream: Stream, wanted: bytes) -> bytes:
    """Bytes up to the chunk in which `wanted` is complete."""
    found = b""
    async with asyncio.timeout(SECONDS):
        while wanted not in found:
            item = await stream.read()
            assert isinstance(item, Chunk), f"{item} came before {wanted!r}, after {found!r}"
            found += item.data
    return found


@dataclass
class Inhabited:
    """A sandbox with a channel to it."""

    channel: Channel
    redirected: bool = True
    """Its kernel leads connections of programs that know of no proxy to the agent."""

    async def open(self, *argv: str, **fields: str) -> Stream:
        """Start a command; `env` separated by newlines."""
        words = [("arg", word) for word in argv] + [("env", f"PATH={os.defpath}:/usr/sbin:/sbin")]
        words += [("env", each) for each in fields.pop("env", "").splitlines()]
        return await self.channel.open("exec", [*words, *fields.items()])

    async def run(self, *argv: str, stdin: bytes | None = None, **fields: Any) -> Output:
        """A command's whole output."""
        async with await self.open(*argv, **fields) as stream:
            writing = asyncio.create_task(_feed(stream, stdin))
            output = await read_all(stream)
            await writing
            return output

    async def sh(self, script: str, **fields: Any) -> Output:
        return await self.run("/bin/sh", "-c", script, **fields)

    async def control(self, op: str, *fields: tuple[str, str]) -> Output:
        async with await self.channel.open("control", [("op", op), *fields]) as stream:
            return await read_all(stream)

    async def put(self, path: str, content: Iterable[bytes], **fields: str) -> Output:
        async with await self.channel.open("write", [("path", path), *fields.items()]) as stream:
            with contextlib.suppress(StreamReset):  # the reader says it again
                for piece in content:
                    await stream.write(piece)
                await stream.end()
            return await read_all(stream)

    async def get(self, path: str, **fields: str) -> bytes:
        async with await self.channel.open("read", [("path", path), *fields.items()]) as stream:
            return (await read_all(stream)).out


async def _feed(stream: Stream, stdin: bytes | None) -> None:
    with contextlib.suppress(StreamReset):  # it ended without reading all of it
        if stdin:
            await stream.write(stdin)
        await stream.end()


async def refuse(stream: Stream) -> None:
    stream.reset("refused")


@contextlib.asynccontextmanager
async def started(agent: Path) -> AsyncIterator[tuple[socket.socket, asyncio.subprocess.Process]]:
    """The agent in its namespaces, and our end of its channel as it is: for tests that speak it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", 'exec 3<&"$1"; shift; exec "$@"', "-", str(theirs.fileno())),
            *(NAMESPACES if AS_ROOT else ALONE),
            *(("--ro-bind", str(agent), "/run/agent") if AS_ROOT else (str(agent),)),
            *("/run/agent", "--namespace"),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield ours, process
    finally:
        ours.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)  # --die-with-parent: all of it
        await process.communicate()


@contextlib.asynccontextmanager
async def inhabited(
    agent: Path, accept: Callable[[Stream], Awaitable[None]] = refuse, identities: str = IDENTITIES
) -> AsyncIterator[Inhabited]:
    """A sandbox that is ready for commands."""
    async with started(agent) as (ours, _), spoken_with(ours, accept, identities) as guest:
        yield guest


@contextlib.asynccontextmanager
async def spoken_with(
    ours: socket.socket,
    accept: Callable[[Stream], Awaitable[None]] = refuse,
    identities: str = IDENTITIES,
    seconds: float = SECONDS,
) -> AsyncIterator[Inhabited]:
    """A sandbox at the other end of `ours`, when its agent has reported."""
    hello = {"generation": "1", "hostname": "inhabited", "identities": identities}
    channel = Channel(ours, accept, hello)
    running = asyncio.create_task(channel.run())
    try:
        await channel.ready(seconds)
        users = {name: int(uid) for name, uid in (each.split(":") for each in identities.split(","))}
        yield Inhabited(channel, await close_network(channel, users))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
