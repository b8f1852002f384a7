"""A machine that is nobody's until its daemon says whose it is, with a guest that does what a test wants."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.durable.spec import CLAIMED, READY, DurableSpec, Saving, dumps
from coatcheck.durable.supervisor import DurableSupervisor
from coatcheck.durable.unbound import Unbound
from coatcheck.metadata.service import MetadataService
from coatcheck.sandbox.machine import MachineError, MachineSpec
from coatcheck.sandbox.sandbox import Ending
from tests.durable.lives import durable_spec
from tests.durable.scripted import DurableMachine
from tests.launcher.scripted import MACHINE, Reports, ScriptedMachine, identity
from tests.launcher.test_supervisor import SECONDS, Nobody, until

PARKED = [*["netlink"] * 4, "configure", "configure", "freeze", "sync"]
"""What its guest was told when it stands by."""


class Machine(DurableMachine):
    """One that is saved as somebody's."""

    bound: MachineSpec | None = None

    def bind(self, spec: MachineSpec, saving: Saving) -> None:
        self.bound = spec


class StandingBy:
    """An unbound machine, and its daemon's end of the line."""

    def __init__(self, told: DurableSpec, machine: ScriptedMachine) -> None:
        self.told, self.machine = told, machine
        self.daemon, ours = socket.socketpair()
        self.daemon.setblocking(False)
        self.waiting = asyncio.create_task(self._wait(ours))

    async def _wait(self, ours: socket.socket) -> DurableSpec | None:
        self.unbound = Unbound(self.told, self.machine, *await asyncio.open_connection(sock=ours))
        return await self.unbound.wait(asyncio.create_task(self.machine.start()))

    async def hears(self, count: int = 64) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await asyncio.get_running_loop().sock_recv(self.daemon, count)

    async def ready(self) -> None:
        assert await self.hears() == READY

    async def claim(self, **different: Any) -> DurableSpec:
        machine = replace(MACHINE, generation=2)
        sandbox = replace(self.told.sandbox, machine=machine, **different)
        owner = replace(self.told, unbound=False, sandbox=sandbox)
        await asyncio.get_running_loop().sock_sendall(self.daemon, dumps(owner))
        return owner

    async def result(self) -> DurableSpec | None:
        async with asyncio.timeout(SECONDS):
            return await self.waiting

    async def is_gone(self) -> None:
        """Nothing is left of it, and its daemon sees that."""
        assert await self.result() is None
        assert self.machine.stopped and not self.told.sandbox.directory.exists()
        assert await self.hears() == b""


@pytest.fixture
def trust(tmp_path: Path) -> Path:
    made = tmp_path / "trust"
    made.mkdir()
    return made


@asynccontextmanager
async def standing_by(
    tmp_path: Path, trust: Path, machine: ScriptedMachine | None = None
) -> AsyncIterator[StandingBy]:
    directory = tmp_path / "sandbox"
    directory.mkdir()
    nobody = replace(identity(trust), session="", environment={})
    it = StandingBy(durable_spec(directory, [nobody], unbound=True), machine or Machine())
    try:
        yield it
    finally:
        it.daemon.close()
        it.waiting.cancel()
        await asyncio.gather(it.waiting, return_exceptions=True)
        await it.machine.stop()


async def owned(it: StandingBy, trust: Path) -> tuple[DurableSupervisor, Reports]:
    """It is whose its daemon said, as far as its own supervisor goes; not begun."""
    await it.ready()
    owner = await it.claim(identities=(identity(trust),))
    claimed = await it.result()
    assert claimed == owner
    reports = Reports()
    metadata = MetadataService(Nobody(), owner.sandbox.id)
    return DurableSupervisor(owner, it.machine, reports, metadata, booted=it.unbound), reports


async def test_it_stands_still_until_it_is_claimed_and_runs_when_it_says_so(
    tmp_path: Path, trust: Path
) -> None:
    """Frozen and paused; then the rebind, and only then its commands. What it trusts it has already."""
    async with standing_by(tmp_path, trust) as it:
        machine = it.machine
        assert isinstance(machine, Machine)
        await it.ready()
        assert (machine.orders, machine.did) == (PARKED, ["pause"])
        written = dict(machine.written)
        owner = await it.claim(identities=(identity(trust),))
        assert await it.result() == owner
        reports = Reports()
        supervisor = DurableSupervisor(
            owner, machine, reports, MetadataService(Nobody(), "x"), booted=it.unbound
        )
        running = asyncio.create_task(supervisor.run())
        assert await it.hears() == CLAIMED
        assert machine.orders == [*PARKED, "rebind", "thaw"]
        assert machine.did == ["pause", "resume"]
        assert machine.bound == owner.sandbox.machine
        assert machine.written == written
        async with asyncio.timeout(SECONDS):
            await supervisor.sandbox.channel()
        await until(lambda: ("running", None, "") in reports.said)
        supervisor.sandbox.end(Ending.KILLED, "by a test")
        await running


async def test_what_it_is_to_trust_is_brought_before_its_commands_run(tmp_path: Path, trust: Path) -> None:
    """A session with a CA of its own: after the rebind, since nothing is written for nobody."""
    async with standing_by(tmp_path, trust) as it:
        (trust / "own").mkdir()
        supervisor, _ = await owned(it, trust / "own")
        place = "/run/coatcheck/trust/agent/coatcheck-ca.pem"
        before = it.machine.written[place]
        (trust / "own/agent-ca").write_bytes(b"another CA")
        there: list[tuple[str, bytes]] = []

        async def look(op: str) -> None:
            there.append((op, it.machine.written[place]))

        it.machine.on_order = look
        running = asyncio.create_task(supervisor.run())
        assert await it.hears() == CLAIMED
        assert there == [("rebind", before), ("thaw", b"another CA")]
        supervisor.sandbox.end(Ending.KILLED, "by a test")
        await running


@pytest.mark.parametrize("claimed", [False, True])
async def test_nothing_that_it_says_leads_anywhere_before_it_is_somebodys(
    tmp_path: Path, trust: Path, claimed: bool
) -> None:
    """Neither while it stands by, nor while it is being rebound."""
    calls: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append("called")
        writer.close()

    async with (
        standing_by(tmp_path, trust) as it,
        await asyncio.start_unix_server(proxy, identity(trust).socket),
    ):
        if not claimed:
            await it.ready()
            await it.machine.say(it.machine.mux.open("proxy", [("identity", "agent")])[1])
            await it.machine.say(it.machine.mux.open("metadata", [("identity", "agent")])[1])
        supervisor, _ = await owned(it, trust) if claimed else (None, None)
        if supervisor is not None:

            async def call(op: str) -> None:
                if op == "rebind":
                    await it.machine.say(it.machine.mux.open("proxy", [("identity", "agent")])[1])

            it.machine.on_order = call
            running = asyncio.create_task(supervisor.run())
            assert await it.hears() == CLAIMED
            assert not calls
            await it.machine.say(it.machine.mux.open("proxy", [("identity", "agent")])[1])
            await until(lambda: calls)  # now it does
            supervisor.sandbox.end(Ending.KILLED, "by a test")
            await running
        assert len(calls) == claimed


@pytest.mark.parametrize("when", ["while it boots", "while it stands by"])
async def test_with_its_daemon_all_of_it_is_gone(tmp_path: Path, trust: Path, when: str) -> None:
    """`kill -9` of the daemon closes the line, and nothing else is needed."""
    async with standing_by(tmp_path, trust) as it:
        if when == "while it boots":
            stuck = asyncio.Event()
            it.machine.on_order = lambda op: _forever(stuck)
            await until(lambda: it.machine.orders)
        else:
            await it.ready()
        it.daemon.shutdown(socket.SHUT_WR)
        await it.is_gone()


async def _forever(stuck: asyncio.Event) -> None:
    await stuck.wait()


async def test_half_a_line_is_nobodys_word(tmp_path: Path, trust: Path) -> None:
    """A daemon that died while it said whose it is: it may have ended those sessions already."""
    async with standing_by(tmp_path, trust) as it:
        await it.ready()
        sandbox = replace(it.told.sandbox, identities=(identity(trust),))
        owner = replace(it.told, unbound=False, sandbox=sandbox)
        await asyncio.get_running_loop().sock_sendall(it.daemon, dumps(owner)[:-20])
        it.daemon.shutdown(socket.SHUT_WR)
        await it.is_gone()


async def test_when_its_machine_dies_it_is_gone(tmp_path: Path, trust: Path) -> None:
    """Nobody gets it."""
    async with standing_by(tmp_path, trust) as it:
        await it.ready()
        it.machine.unplug()
        await it.is_gone()


@pytest.mark.parametrize(
    "machine",
    [
        ScriptedMachine(fails=MachineError("there is no space")),
        ScriptedMachine(refuses=("failed", "no")),
        Machine(replies={"freeze": (("frozen", "no"),)}),
    ],
    ids=["it does not start", "it cannot be configured", "it does not stand still"],
)
async def test_one_that_does_not_come_up_never_stands_by(
    tmp_path: Path, trust: Path, machine: ScriptedMachine
) -> None:
    """Its daemon sees its end, and nothing is left."""
    async with standing_by(tmp_path, trust, machine) as it:
        await it.is_gone()


@pytest.mark.parametrize("step", ["resume", "rebind", "thaw"])
async def test_one_that_does_not_become_somebodys_never_says_that_it_did(
    tmp_path: Path, trust: Path, step: str
) -> None:
    """At each step: its commands do not run, its sessions are over, and nothing of it is left."""
    machine = Machine(replies={"rebind": (("generation", "1"),)} if step == "rebind" else {})
    if step == "thaw":
        machine = Machine(replies={"thaw": (("frozen", "yes"),)})
    async with standing_by(tmp_path, trust, machine) as it:
        supervisor, reports = await owned(it, trust)
        if step == "resume":
            machine.fails_at.add("resume")
        async with asyncio.timeout(SECONDS):
            ending, why = await supervisor.run()
        assert ending is Ending.REBIND_FAILED and "could not be given its own identity" in why
        assert reports.said[-1][:2] == ("ending", "rebind_failed")
        assert machine.stopped and not it.told.sandbox.directory.exists()
        assert "running" not in {state for state, _, _ in reports.said}
        it.unbound.writer.close()
        assert await it.hears() == b""


async def test_a_machine_that_died_when_it_was_claimed_is_not_taken(tmp_path: Path, trust: Path) -> None:
    """Between the daemon's word and its first order."""
    async with standing_by(tmp_path, trust) as it:
        supervisor, _ = await owned(it, trust)
        it.machine.unplug()
        async with asyncio.timeout(SECONDS):
            ending, _ = await supervisor.run()
        assert ending is Ending.REBIND_FAILED
