"""A sandbox's life and every way in which it ends, with a guest and a daemon that do what a test wants."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.launcher import reporting
from coatcheck.launcher.channel import ChannelBroken
from coatcheck.launcher.supervisor import Supervisor
from coatcheck.launcher.trust import SYSTEM_BUNDLE
from coatcheck.metadata.service import MetadataService
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.sandbox import Ending, SandboxState
from tests.launcher.scripted import Reports, ScriptedMachine, identity, spec

SECONDS = 20.0
"""Until something that takes milliseconds counts as stuck."""


class Nobody(ControlClient):
    """A daemon for the metadata service, which no test here asks."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    def show(self, session: str) -> dict[str, Any]:
        raise AssertionError(session)

    def mint(self, session: str, credential: str, ttl_seconds: float | None = None) -> dict[str, Any]:
        raise AssertionError(session)


class Life:
    """A supervisor that runs."""

    def __init__(
        self,
        machine: ScriptedMachine,
        reports: Reports,
        supervisor: Supervisor,
        run: Callable[[], Coroutine[Any, Any, tuple[Ending | None, str]]] | None = None,
    ) -> None:
        self.machine, self.reports, self.supervisor = machine, reports, supervisor
        self.run = asyncio.create_task((run or supervisor.run)())
        self.notices: list[dict[str, Any]] = []
        supervisor.listeners.add(self.notices.append)

    async def ended(self) -> tuple[Ending | None, str]:
        async with asyncio.timeout(SECONDS):
            return await self.run

    async def running(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.supervisor.channel()


@pytest.fixture
def trust(tmp_path: Path) -> Path:
    made = tmp_path / "trust"
    made.mkdir()
    return made


@asynccontextmanager
async def life(
    tmp_path: Path,
    trust: Path,
    machine: ScriptedMachine | None = None,
    **different: Any,
) -> AsyncIterator[Life]:
    directory = tmp_path / "sandbox"
    directory.mkdir()
    machine, reports = machine or ScriptedMachine(), Reports()
    told = spec(directory, [identity(trust), identity(trust, "tool", 1001)], **different)
    begun = Life(machine, reports, Supervisor(told, machine, reports, MetadataService(Nobody(), told.id)))
    async with to_its_end(begun):
        yield begun


@asynccontextmanager
async def to_its_end(begun: Life) -> AsyncIterator[None]:
    """However it ended, nothing of it is left, and the daemon was told before anything was torn down."""
    directory = begun.supervisor.spec.directory
    try:
        yield
        await begun.ended()
        assert begun.machine.stopped and not directory.exists()
        ending, _ = await begun.ended()
        last = SandboxState.ENDING if ending is not None else SandboxState.SLEEPING
        assert begun.reports.said[-1][:2] == (last, ending)
    finally:
        begun.supervisor.end(Ending.KILLED, "the test is over")
        await begun.run
        shutil.rmtree(directory, ignore_errors=True)


async def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_guest_has_its_trust_before_its_first_command(tmp_path: Path, trust: Path) -> None:
    """Each identity's files, and the system's bundle with all CAs, once each."""
    async with life(tmp_path, trust) as it:
        await it.running()
        assert it.machine.written["/run/coatcheck/trust/tool/ca-bundle.pem"] == b"tool-bundle of tool"
        assert it.machine.written[str(SYSTEM_BUNDLE)] == b"agent-bundle of agent" + b"tool-ca of tool"
        assert {"exec"}.isdisjoint(each.kind for each in it.machine.opened)
        await until(lambda: ("running", None, "") in it.reports.said)
        it.supervisor.end(Ending.KILLED, "by a test")
        assert await it.ended() == (Ending.KILLED, "by a test")
        assert it.reports.said[-1] == ("ending", "killed", "by a test")


@pytest.mark.parametrize(
    ("bytes_said", "rule"),
    [(b"\xff" * 64, "oversized_frame"), (b"\x09" + bytes(7), "unknown_frame"), (b"", "too_many_streams")],
)
async def test_a_guest_that_breaks_the_protocol_is_ended_and_the_rule_is_named(
    tmp_path: Path, trust: Path, bytes_said: bytes, rule: str
) -> None:
    """Nothing that it says afterwards counts."""
    async with life(tmp_path, trust) as it:
        await it.running()
        flood = b"".join(it.machine.mux.open("dns", [("identity", "agent")])[1] for _ in range(700))
        await it.machine.say(bytes_said or flood)
        ending, why = await it.ended()
        assert ending is Ending.GUEST_BROKE_PROTOCOL and rule in why
        with pytest.raises(ChannelBroken):
            await (await it.supervisor.channel()).open("exec", [("arg", "true")])


async def test_a_machine_that_dies_is_told_in_its_own_words(tmp_path: Path, trust: Path) -> None:
    """QEMU crashed, was killed, ran out of memory: the machine knows."""
    async with life(tmp_path, trust) as it:
        await it.running()
        it.machine.unplug()
        assert await it.ended() == (Ending.MACHINE_ENDED, "the machine was unplugged")


async def test_a_machine_that_does_not_start_says_what_to_do(tmp_path: Path, trust: Path) -> None:
    """Every caller that waits for it is told the same."""
    broken = ScriptedMachine(fails=MachineError("there is no space", "remove something"))
    async with life(tmp_path, trust, broken) as it:
        waiting = asyncio.create_task(it.supervisor.channel())
        assert await it.ended() == (Ending.START_FAILED, "there is no space. remove something")
        with pytest.raises(ChannelBroken, match="there is no space"):
            await waiting


async def test_what_nobody_foresaw_ends_it_as_well(tmp_path: Path, trust: Path) -> None:
    """Else its session would live on, renewed, around nothing, until the time limit."""
    machine = ScriptedMachine(fails=OSError(11, "Resource temporarily unavailable"))
    async with life(tmp_path, trust, machine) as it:
        ending, detail = await it.ended()
        assert ending is Ending.START_FAILED and "BlockingIOError" in detail


async def test_no_word_of_a_guest_reaches_whoever_asks_why_it_ended(tmp_path: Path, trust: Path) -> None:
    """They see it on a terminal, which obeys some of them."""
    machine = ScriptedMachine(refuses=("\x1b]0;owned\x07", "\x1b[2Jgive me your password"))
    async with life(tmp_path, trust, machine) as it:
        ending, detail = await it.ended()
        assert ending is Ending.START_FAILED and "could not be prepared" in detail
        assert detail.isprintable() and "password" not in detail and "owned" not in detail


async def test_the_time_limit_is_announced_and_kept(tmp_path: Path, trust: Path) -> None:
    """First a warning to all that are connected, then the end."""
    async with life(tmp_path, trust, expires_at=time.time() + 0.6) as it:
        ending, why = await it.ended()
        assert ending is Ending.TIME_LIMIT and "--timeout" in why
        assert "left of its time limit" in it.notices[0]["warning"]
        assert it.notices[-1]["ending"] == Ending.TIME_LIMIT


async def test_a_sandbox_that_nobody_is_connected_to_ends_if_it_was_asked_to(
    tmp_path: Path, trust: Path
) -> None:
    """Not while somebody is there, and not before it could be used."""
    async with life(tmp_path, trust, idle_seconds=0.3) as it:
        with it.supervisor.presence():
            await it.running()
            await asyncio.sleep(0.5)
            assert not it.run.done()
        assert (await it.ended())[0] is Ending.IDLE


async def test_without_a_daemon_it_lives_for_one_lease(tmp_path: Path, trust: Path) -> None:
    """A daemon that restarts finds it; one that is gone for longer does not."""
    begun = time.monotonic()
    async with life(tmp_path, trust, lease_seconds=0.9) as it:
        it.reports.refuses = ControlError("nobody listens", "")
        ending, why = await it.ended()
        assert ending is Ending.DAEMON_GONE and "nobody listens" in why
        assert time.monotonic() - begun >= 0.9


async def test_the_next_daemon_hears_at_once_what_the_last_one_did_not(
    tmp_path: Path, trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a third of a lease later: a copy whose daemon died while it was loaded runs."""
    monkeypatch.setattr(reporting, "AGAIN_SECONDS", 0.01)
    machine = ScriptedMachine()
    async with life(tmp_path, trust, machine) as it:
        await until(lambda: it.reports.said)
        it.reports.refuses = ControlError("nobody listens", "")
        await it.running()
        await until(lambda: [each[0] for each in it.reports.said].count("running") > 1)
        it.reports.refuses, before = None, len(it.reports.said)
        await until(lambda: len(it.reports.said) > before)
        assert not it.run.done()
        it.supervisor.end(Ending.KILLED, "the test is over")


@pytest.mark.parametrize("reason", ["session_closed", "unknown_sandbox", "forbidden"])
async def test_a_session_that_is_over_ends_it_at_the_next_renewal(
    tmp_path: Path, trust: Path, reason: str
) -> None:
    """Also when the grant of who made it no longer covers it."""
    async with life(tmp_path, trust, lease_seconds=0.6) as it:
        await it.running()
        it.reports.refuses = ControlError("it is over", "", reason, 409)
        assert await it.ended() == (Ending.SESSION_OVER, "it is over")


async def test_its_sessions_are_over_before_its_machine_is_stopped(tmp_path: Path, trust: Path) -> None:
    """What is still in flight has no authority while the rest is torn down."""

    class Watching(ScriptedMachine):
        async def stop(self) -> None:
            self.told_first = it.reports.said[-1][0] == SandboxState.ENDING
            await super().stop()

    machine = Watching()
    async with life(tmp_path, trust, machine) as it:
        await it.running()
        it.supervisor.end(Ending.KILLED, "now")
        await it.ended()
        assert machine.told_first


async def test_two_identities_have_environments_of_their_own(tmp_path: Path, trust: Path) -> None:
    """The tool's commands see the tool's handle."""
    async with life(tmp_path, trust) as it:
        assert it.supervisor.environment("agent")["KEY"] == "handle of agent"
        assert it.supervisor.environment("tool")["KEY"] == "handle of tool"
        it.supervisor.end(Ending.KILLED, "done")
