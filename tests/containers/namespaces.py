"""A sandbox of the namespace backend with the real agent in it: commands in, what they wrote out."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coatcheck.containers.container import ContainerMachine
from coatcheck.decision.session import Isolation
from coatcheck.launcher.channel import Channel, Chunk, Stream
from coatcheck.launcher.network import close_network
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.resources import Resources

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
SECONDS = 60.0
"""For one command, on a slow machine."""


def spec(
    *,
    memory_mib: int = 64,
    disk_mib: int = 16,
    processes: int = 50,
    image: Path | None = None,
    isolation: Isolation = Isolation.NAMESPACE,
) -> MachineSpec:
    """Small: the machine is shared, and some of these go wild."""
    return MachineSpec(
        isolation=isolation,
        image=image,
        resources=Resources(memory_mib=memory_mib, cpus=1, disk_mib=disk_mib, processes=processes),
    )


@dataclass(frozen=True, slots=True)
class Ran:
    code: int | None
    """None: ended by `signal`."""
    signal: int | None
    limit: str | None
    out: str
    errors: str


class Inside:
    """A sandbox that runs."""

    def __init__(
        self, directory: Path, machine: ContainerMachine, channel: Channel, opened: list[Stream]
    ) -> None:
        self.machine = machine
        self.group = f"coatcheck-{directory.name}"
        self.channel = channel
        self.opened = opened
        """By the sandbox: everything that it tried to send anywhere."""

    async def start(self, *command: str, identity: str = "agent", pty: bool = False) -> Stream:
        fields = [("arg", word) for word in command]
        fields += [("env", f"{name}={value}") for name, value in ENVIRONMENT.items()]
        fields += [("identity", identity), ("cwd", f"/home/{identity}")]
        fields += [("pty", "24,80")] if pty else [("stdin", "none")]
        return await self.channel.open("exec", fields)

    async def started(self, *command: str, identity: str = "agent") -> Stream:
        """Start a command that prints a line when what the test needs of it is done; wait for that line."""
        stream = await self.start(*command, identity=identity)
        async with asyncio.timeout(SECONDS):
            assert isinstance(await stream.read(), Chunk)
        return stream

    async def run(self, *command: str, identity: str = "agent", pty: bool = False) -> Ran:
        """Until it ended."""
        async with asyncio.timeout(SECONDS):
            return await finish(await self.start(*command, identity=identity, pty=pty))

    async def sh(self, text: str, identity: str = "agent") -> Ran:
        return await self.run("sh", "-c", text, identity=identity)

    async def python(self, code: str, identity: str = "agent", pty: bool = False) -> Ran:
        return await self.run("python3", "-I", "-S", "-c", code, identity=identity, pty=pty)


async def finish(stream: Stream, keep: int = 1 << 20) -> Ran:
    """Read a command to its end; of its output the first `keep` bytes."""
    out, errors = bytearray(), bytearray()
    said: dict[str, str] = {}
    while (piece := await stream.read()) is not None:
        if isinstance(piece, Chunk):
            kept = errors if piece.stderr else out
            kept += piece.data[: keep - len(kept)]
        else:
            said |= dict(piece.fields)
    return Ran(
        int(said["exit"]) if "exit" in said else None,
        int(said["signal"]) if "signal" in said else None,
        said.get("limit"),
        out.decode(errors="replace"),
        errors.decode(errors="replace"),
    )


@contextlib.asynccontextmanager
async def sandbox(
    scratch: Path,
    agent: Path,
    wanted: MachineSpec | None = None,
    *,
    identities: Sequence[str] = ("agent", "tool"),
    nests: bool = False,
) -> AsyncIterator[Inside]:
    """Until the block ends; nothing that it tries to send gets anywhere."""
    # A name that no other test, in whatever process, has for its group at the same time.
    directory = scratch / secrets.token_hex(8)
    machine = ContainerMachine(wanted or spec(), directory, agent=agent, nests=nests)
    opened: list[Stream] = []

    async def refuse(stream: Stream) -> None:
        opened.append(stream)
        stream.reset("refused", "")

    sock = await machine.start()
    users = {name: 1000 + index for index, name in enumerate(identities)}
    names = ",".join(f"{name}:{uid}" for name, uid in users.items())
    channel = Channel(sock, refuse, {"generation": "1", "hostname": "sandbox", "identities": names})
    running = asyncio.create_task(channel.run())
    try:
        await channel.ready(SECONDS)
        await close_network(channel, users)
        yield Inside(directory, machine, channel, opened)
    finally:
        await machine.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
