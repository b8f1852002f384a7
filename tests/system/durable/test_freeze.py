"""A copy of a saved sandbox becomes somebody of its own, or is gone: with the real agent, and with guests
that do what no agent does."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.durable.freeze import freeze, rebind, thaw
from coatcheck.durable.snapshots.manifest import NAME, open_key, write
from coatcheck.durable.spec import Saving
from coatcheck.durable.supervisor import DurableSupervisor
from coatcheck.launcher.agent import AgentError, set_clock
from coatcheck.launcher.channel import ChannelBroken
from coatcheck.launcher.frames import Fields, Kind, encode
from coatcheck.launcher.mux import Event, WasReset
from coatcheck.launcher.spec import SupervisorSpec
from coatcheck.launcher.trust import digest
from coatcheck.metadata.service import MetadataService
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.sandbox import Ending, SandboxState
from tests.durable.lives import COPY, DurableLife, durable_spec, life
from tests.durable.snapshots.test_manifest import MANIFEST
from tests.launcher.guest.inhabited import AS_ROOT, Inhabited, inhabited, read_until, spoken_with, started
from tests.launcher.scripted import Reports, ScriptedMachine, identity, spec
from tests.launcher.test_supervisor import SECONDS, Nobody, until

SNAPSHOT = Path("/nowhere/a-snapshot")
"""These machines load nothing: that one is to be restored is all that a supervisor asks."""


class SavedAgent(ScriptedMachine):
    """The real agent, in namespaces, which had another host once, and has stood still since."""

    def __init__(self, agent: Path, script: str) -> None:
        super().__init__()
        self._agent, self._script = agent, script
        self._left = contextlib.AsyncExitStack()
        self.resumed = False

    async def start(self) -> Any:
        ours, _ = await self._left.enter_async_context(started(self._agent))
        copy = ours.dup()
        copy.setblocking(False)
        async with spoken_with(ours) as guest:
            await read_until(await guest.open("/bin/bash", "-c", f"echo begun; {self._script}"), b"begun\n")
            await freeze(guest.channel)
        return copy

    async def resume(self) -> None:
        self.resumed = True

    async def stop(self) -> None:
        self.stopped = True
        await self._left.aclose()


@pytest.fixture
def trust(tmp_path: Path) -> Path:
    made = tmp_path / "trust"
    made.mkdir()
    return made


@contextlib.asynccontextmanager
async def copy(
    tmp_path: Path, trust: Path, machine: ScriptedMachine, **different: Any
) -> AsyncIterator[DurableLife]:
    async with life(tmp_path, trust, machine, COPY, Saving(restore=SNAPSHOT), **different) as it:
        yield it


@pytest.mark.skipif(not AS_ROOT, reason="a second identity needs a second uid")
async def test_what_runs_in_a_copy_reaches_the_copy_s_own_session(
    tmp_path: Path, trust: Path, agent_program: Path
) -> None:
    """A loop that called out all along: not one byte of it before the copy is somebody of its own."""
    reached: list[SandboxState] = []
    script = "while :; do exec 3<>/dev/tcp/127.0.0.1/3128; echo hello >&3; read -t 1 <&3; exec 3>&-; done"
    machine = SavedAgent(agent_program, script)
    async with copy(tmp_path, trust, machine) as it:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append(it.supervisor.state)
            writer.close()

        async with await asyncio.start_unix_server(serve, trust / "agent"):
            await it.running()
            assert machine.resumed and it.supervisor.state is SandboxState.RUNNING
            guest = Inhabited(await it.supervisor.channel())
            assert (await guest.run("uname", "-n")).out == b"sbx-0123456789abcdef\n"
            assert (
                await guest.run("cat", "/run/coatcheck/trust/tool/ca-bundle.pem")
            ).out == b"tool-bundle of tool"
            await until(lambda: len(reached) > 2)
            it.supervisor.end(Ending.KILLED, "by a test")
            await it.ended()
        assert it.reports.said[0][0] == SandboxState.STARTING


async def test_everything_is_new_before_commands_go_on(tmp_path: Path, trust: Path) -> None:
    """Generation, chance, clock, names; then trust; then the thaw."""
    machine = ScriptedMachine(saved=True)
    async with copy(tmp_path, trust, machine) as it:
        await it.running()
        assert machine.orders == ["rebind", "thaw"]
        kinds = [each.kind for each in machine.opened]
        assert kinds[0] == "control" and kinds[-1] == "control" and set(kinds[1:-1]) == {"write"}
        fields = dict(machine.opened[0].fields)
        assert fields["generation"] == "2" and fields["hostname"] == "sbx-0123456789abcdef"
        assert len(fields["machine-id"]) == 32 and len(bytes.fromhex(fields["entropy"])) >= 32
        await until(lambda: ("running", None, "") in it.reports.said)
        it.supervisor.end(Ending.KILLED, "by a test")


@pytest.mark.parametrize("changed", ["nothing", "CA", "signature"])
async def test_a_copy_is_given_new_trust_and_no_trust_that_it_has(
    tmp_path: Path, trust: Path, changed: str
) -> None:
    """Writing the files takes a guest that was just loaded longer than all the rest."""
    key = tmp_path / "key"
    machine = ScriptedMachine(saved=True)
    saving = Saving(restore=tmp_path, snapshot_key=key)
    identities = (identity(trust), identity(trust, "tool", 1001))
    origin = replace(MANIFEST.origin, trust=digest(identities))
    write(tmp_path, replace(MANIFEST, origin=origin), open_key(key))
    if changed == "CA":
        identities[1].ca.write_bytes(b"a new one")
    elif changed == "signature":
        saved = tmp_path / NAME
        saved.write_bytes(saved.read_bytes().replace(b'"generation": 3', b'"generation": 4'))
    told = durable_spec(tmp_path / "own", identities, machine=COPY, saving=saving)
    supervisor = DurableSupervisor(told, machine, Reports(), MetadataService(Nobody(), told.sandbox.id))
    running = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(SECONDS):
        await supervisor.sandbox.channel()
        supervisor.sandbox.end(Ending.KILLED, "done")
        await running
    assert bool(machine.written) is (changed != "nothing")


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        ({"rebind": (("generation", "1"),)}, "another generation"),
        ({"rebind": ()}, "another generation"),
        ({"rebind": (("generation", "2 "),)}, "another generation"),
        ({"rebind": None}, "longer than"),
        ({"thaw": (("frozen", "yes"),)}, "go on"),
        ({"thaw": None}, "longer than"),
    ],
)
async def test_a_copy_that_is_nobody_of_its_own_is_ended(
    tmp_path: Path, trust: Path, replies: dict[str, Fields | None], why: str
) -> None:
    """By what it says, or by saying nothing. It never ran, and its sessions are over."""
    machine = ScriptedMachine(saved=True, replies=replies)
    seconds = 0.5 if None in replies.values() else SECONDS
    async with copy(tmp_path, trust, machine, rebind_seconds=seconds) as it:
        ending, detail = await it.ended()
        assert ending is Ending.REBIND_FAILED and why in detail
        assert "running" not in [state for state, _, _ in it.reports.said]
        with pytest.raises(ChannelBroken):
            await it.supervisor.channel()


async def test_a_copy_that_refuses_is_ended_in_our_words(tmp_path: Path, trust: Path) -> None:
    """Its own could be anything, on somebody's terminal."""
    machine = ScriptedMachine(saved=True, refuses=("failed", "\x1b]0;owned\x07"))
    async with copy(tmp_path, trust, machine) as it:
        ending, detail = await it.ended()
        assert ending is Ending.REBIND_FAILED and "could not get its own identity" in detail
        assert detail.isprintable() and "owned" not in detail


@pytest.mark.parametrize(
    ("said", "ending"),
    [
        (encode(Kind.DATA, 2, b"of its parent"), Ending.GUEST_BROKE_PROTOCOL),
        (encode(Kind.OPEN, 2, b"kind\0proxy\0identity\0agent\0"), Ending.GUEST_BROKE_PROTOCOL),
        (b"", Ending.REBIND_FAILED),
    ],
)
async def test_a_copy_that_does_not_begin_anew_is_ended(
    tmp_path: Path, trust: Path, said: bytes, ending: Ending
) -> None:
    """It goes on as its parent, or stays silent."""

    class Deaf(ScriptedMachine):
        async def _greet(self) -> None:
            await self.say(said)

    seconds = SECONDS if said else 0.5
    async with copy(tmp_path, trust, Deaf(saved=True), rebind_seconds=seconds) as it:
        assert (await it.ended())[0] is ending


async def test_what_a_copy_says_before_its_rebind_leads_nowhere(tmp_path: Path, trust: Path) -> None:
    """Also one whose agent heeds no rule: the host's side is closed as well."""
    reached: list[str] = []
    answers: list[Event] = []

    class Eager(ScriptedMachine):
        async def _answer(self, event: Event) -> None:
            answers.append(event)
            await super()._answer(event)

    machine = Eager(saved=True)
    tried: dict[str, int] = {}

    async def call_out(op: str) -> None:
        for kind in ("proxy", "dns", "metadata", "transparent"):
            fields = [("identity", "agent"), ("destination", "192.0.2.1"), ("port", "443")]
            tried[f"{op} {kind}"], opened = machine.mux.open(kind, fields)
            await machine.say(opened)

    machine.on_order = call_out

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append("out")
        writer.close()

    async with contextlib.AsyncExitStack() as servers:
        for suffix in ("", ".t", ".d"):
            server = await asyncio.start_unix_server(serve, f"{trust / 'agent'}{suffix}")
            await servers.enter_async_context(server)
        async with copy(tmp_path, trust, machine, rebind_seconds=SECONDS) as it:
            await it.running()
            resets = {each.stream: each.reason for each in answers if isinstance(each, WasReset)}
            assert all(resets[number] == "frozen" for what, number in tried.items() if "rebind" in what)
            await until(lambda: reached)  # what it opens after that is its own
            it.supervisor.end(Ending.KILLED, "by a test")


async def test_a_machine_that_cannot_be_let_go_on_is_ended(tmp_path: Path, trust: Path) -> None:
    """QEMU died between its load and its first instruction."""

    class Dead(ScriptedMachine):
        async def resume(self) -> None:
            raise MachineError("the machine is not running")

    async with copy(tmp_path, trust, Dead(saved=True)) as it:
        ending, detail = await it.ended()
        assert ending is Ending.REBIND_FAILED and "not running" in detail


async def test_a_machine_that_dies_while_it_is_rebound_leaves_nothing(tmp_path: Path, trust: Path) -> None:
    """At every order, before its answer."""
    for number, order in enumerate(("rebind", "thaw")):
        machine = ScriptedMachine(saved=True)

        async def die(op: str, order: str = order, machine: ScriptedMachine = machine) -> None:
            if op == order:
                machine.unplug()

        machine.on_order = die
        directory = tmp_path / str(number)
        directory.mkdir()
        async with copy(directory, trust, machine) as it:
            assert (await it.ended())[0] is Ending.REBIND_FAILED


async def test_freezing_says_what_the_agent_did_not_do(agent_program: Path, tmp_path: Path) -> None:
    """And the channel goes on once it is thawed."""
    told: SupervisorSpec = spec(tmp_path, [identity(tmp_path)], machine=COPY)
    async with inhabited(agent_program) as guest:
        with pytest.raises(AgentError, match="get its own identity"):
            await rebind(guest.channel, replace(told, machine=replace(COPY, generation=1)))
        await freeze(guest.channel)
        await set_clock(guest.channel)
        await thaw(guest.channel)
        assert (await guest.run("echo", "on")).out == b"on\n"
    with pytest.raises(ChannelBroken):
        await freeze(guest.channel)
    shutil.rmtree(tmp_path / "sandbox", ignore_errors=True)
