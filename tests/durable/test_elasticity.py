"""The steps of another size, with a machine and a daemon that do what a test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.durable import elasticity
from coatcheck.durable.autoscale import Autoscale
from coatcheck.durable.elastic import (
    Elastic,
    Initiator,
    Scaling,
)
from coatcheck.durable.elasticity import Elasticity, Means
from coatcheck.durable.sizing import Sizing, Use
from coatcheck.launcher.channel import Channel
from coatcheck.sandbox.limits import Limits, for_commands
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.resources import Resources, Size
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused
from tests.launcher.scripted import ScriptedMachine
from tests.launcher.test_supervisor import until

ELASTIC = Elastic(512, 4096, 1, 4)


class ScriptedSizing(Sizing):
    """A machine whose balloon moves when a test says so."""

    def __init__(self) -> None:
        self.target = Size(512, 1)
        self.fixed = ""
        self.has_mib, self.resident_mib, self.used_mib = 4096, 100, 100
        self.steps: list[object] = []
        """What the machine and the daemon were told, in their order."""
        self.follows = True
        self.fails = ""
        self.looks = 0
        """How often somebody looked at the machine."""

    async def resize(self, size: Size) -> None:
        if self.fails:
            raise MachineError(self.fails)
        self.steps.append(size)
        self.target = size
        if self.follows:
            self.has_mib = size.memory_mib

    async def settle(self) -> None: ...

    async def has(self) -> int:
        self.looks += 1
        return self.has_mib

    async def use(self) -> Use:
        self.looks += 1
        return Use(self.has_mib, self.resident_mib, self.used_mib)

    @property
    def cpus_held_by(self) -> str:
        return "a test"


class Daemon(ControlClient):
    """What admits sizes."""

    def __init__(self, steps: list[object]) -> None:
        super().__init__(Path("/nowhere"))
        self.steps = steps
        self.refuses: ControlError | None = None

    def size_sandbox(self, sandbox: str, memory_mib: int, cpus: int, by: str) -> dict[str, Any]:
        if self.refuses is not None:
            raise self.refuses
        self.steps.append((memory_mib, cpus, by))
        return {}


class Running:
    def __init__(self, elastic: Elastic = ELASTIC, *, restored: bool = False, fixed: str = "") -> None:
        self.machine = ScriptedMachine()
        self.sizing = ScriptedSizing()
        self.daemon = Daemon(self.sizing.steps)
        self.is_running = True
        self.now = 0.0
        means = Means(elastic, self.sizing, self.daemon)
        self.sizing.fixed = fixed
        limits = Limits(Resources(memory_mib=512))
        self.elasticity = Elasticity("sbx_0", limits, means, lambda: self.now, restored=restored)

    @property
    def commands(self) -> list[int]:
        """Bytes that the guest's agent was told its commands may use, in order."""
        return [int(dict(each.fields)["memory"]) for each in self.machine.opened]

    async def looked(self) -> None:
        """Waits until what is now was looked at, more than once."""
        before = self.sizing.looks
        await until(lambda: self.sizing.looks > before + 3)

    async def refused(self, memory_mib: int | None, cpus: int | None = None) -> SandboxProblem:
        before = self.elasticity.now, list(self.sizing.steps)
        with pytest.raises(SandboxRefused) as refused:
            await self.elasticity.scale(memory_mib, cpus, Initiator.CALLER)
        assert refused.value.message and refused.value.hint
        assert (self.elasticity.now, self.sizing.steps) == before
        return refused.value.problem


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, elastic: Elastic = ELASTIC, **options: Any
) -> AsyncIterator[Running]:
    monkeypatch.setattr(elasticity, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(elasticity, "MOVING_SECONDS", 0.01)
    it = Running(elastic, **options)
    channel = Channel(await it.machine.start(), nobody, {})
    talking = asyncio.create_task(channel.run())

    async def ready() -> Channel:
        await channel.ready(20.0)
        return channel

    task = asyncio.create_task(it.elasticity.run(ready, lambda: it.is_running))
    try:
        if not options:
            await until(lambda: it.sizing.steps == [Size(512, 1)])
            it.sizing.steps.clear()
        yield it
        assert not task.done() or task.result() is None
    finally:
        for each in (task, talking):
            each.cancel()
        await asyncio.gather(task, talking, return_exceptions=True)
        await it.machine.stop()


async def nobody(stream: object) -> None:
    raise AssertionError(stream)


async def test_it_grows_once_the_daemon_has_admitted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promised first, then given; its commands may use it when the balloon has let go, and no sooner."""
    async with running(monkeypatch) as it:
        it.sizing.follows = False
        it.sizing.has_mib = 512
        assert await it.elasticity.scale(2048, 2, Initiator.CALLER) == Size(2048, 2)
        assert it.sizing.steps == [(2048, 2, "caller"), Size(2048, 2)]
        it.sizing.has_mib = 1024
        await until(lambda: it.commands == [for_commands(1024)])
        it.sizing.has_mib = 2047  # a page or two never come
        await until(lambda: it.commands == [for_commands(1024), for_commands(2048)])
        shown = it.elasticity.limits()
        assert (shown["memory_mib"], shown["cpus"], shown["processes"]) == (
            2048,
            2,
            Limits().resources.processes,
        )
        assert shown["elastic"]["max_memory_mib"] == 4096 and shown["elastic"]["cpus_held_by"] == "a test"
        assert shown["one_size"] == ""


async def test_what_is_taken_counts_until_the_balloon_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that gives nothing back keeps what it was promised, and nobody else is promised it."""
    async with running(monkeypatch) as it:
        await it.elasticity.scale(4096, 4, Initiator.CALLER)
        await until(lambda: it.commands == [for_commands(4096)])
        it.sizing.follows = False
        it.sizing.steps.clear()
        assert await it.elasticity.scale(1024, 1, Initiator.INSIDE) == Size(1024, 1)
        assert it.sizing.steps == [(4096, 1, "inside"), Size(1024, 1)]
        it.sizing.has_mib = 3000
        looks = it.machine.opened[:]
        await it.looked()
        assert it.sizing.steps[2:] == [] and it.machine.opened == looks
        it.sizing.has_mib = 1024
        await until(lambda: it.sizing.steps[2:] == [(1024, 1, "inside")])
        assert it.commands[-1] == for_commands(1024)


async def test_a_host_without_room_refuses_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a daemon that does not answer: nobody knows what it has promised."""
    async with running(monkeypatch) as it:
        it.daemon.refuses = ControlError("no room for it", "Wait.", "no_room", 503)
        assert await it.refused(1024) is SandboxProblem.NO_ROOM
        it.daemon.refuses = ControlError("gone", "Start it.")
        assert await it.refused(1024) is SandboxProblem.NO_ROOM
        it.daemon.refuses = None
        assert await it.elasticity.scale(1024, None, Initiator.CALLER) == Size(1024, 1)


async def test_what_is_in_use_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything taken from a guest that does not say what it uses."""
    async with running(monkeypatch) as it:
        await it.elasticity.scale(4096, None, Initiator.CALLER)
        it.sizing.used_mib = 2000
        assert await it.refused(2048) is SandboxProblem.OOM_FLOOR
        it.sizing.used_mib = None  # type: ignore[assignment]
        assert await it.refused(3000) is SandboxProblem.OOM_FLOOR
        it.sizing.used_mib = 100
        assert await it.elasticity.scale(512, None, Initiator.CALLER) == Size(512, 1)


async def test_whoever_lets_the_air_out_counts_for_its_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the host's own count of pages: nobody else is promised what it may take, until it gave it back."""
    async with running(monkeypatch) as it:
        it.sizing.resident_mib = it.sizing.has_mib = 700
        await until(lambda: it.sizing.steps == [(4096, 1, "inside")])
        it.sizing.resident_mib = it.sizing.has_mib = 512
        await until(lambda: it.sizing.steps == [(4096, 1, "inside"), (512, 1, "caller")])
        assert it.elasticity.now == Size(512, 1)


async def test_a_machine_that_fails_gives_its_promise_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the host would count what nobody has."""
    async with running(monkeypatch) as it:
        it.sizing.fails = "QEMU is gone"
        with pytest.raises(SandboxRefused, match="QEMU is gone") as refused:
            await it.elasticity.scale(1024, None, Initiator.CALLER)
        assert refused.value.problem is SandboxProblem.NOT_RUNNING
        assert it.sizing.steps == [(1024, 1, "caller"), (512, 1, "caller")]


async def test_one_that_stands_still_is_not_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paused or asleep: its balloon does not move."""
    async with running(monkeypatch) as it:
        it.is_running = False
        assert await it.refused(1024) is SandboxProblem.NOT_RUNNING


async def test_a_machine_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone shares its template's memory: a balloon in it would free nothing."""
    async with running(monkeypatch) as it:
        it.sizing.fixed = "this sandbox is a fork, which shares memory with its siblings"
        with pytest.raises(SandboxRefused, match="shares memory") as refused:
            await it.elasticity.scale(1024, None, Initiator.CALLER)
        assert refused.value.problem is SandboxProblem.NOT_ELASTIC


async def test_what_comes_back_has_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted for that, its agent is told, and it goes on from there."""
    async with running(monkeypatch, restored=True) as it:
        await until(lambda: it.commands == [for_commands(4096)])
        assert it.sizing.steps == [(4096, 1, "restored"), Size(4096, 1)]
        assert await it.elasticity.scale(1024, None, Initiator.CALLER) == Size(1024, 1)
        await until(lambda: it.sizing.steps[2:] == [Size(1024, 1), (1024, 1, "caller")])


async def test_a_clone_counts_for_what_it_has_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its balloon is its ancestor's, and moves no more."""
    async with running(monkeypatch, restored=True, fixed="it is a clone") as it:
        await until(lambda: it.sizing.steps == [(4096, 1, "restored")])
        assert await it.refused(1024) is SandboxProblem.NOT_ELASTIC
        shown = it.elasticity.limits()
        assert (shown["memory_mib"], shown["elastic"], shown["one_size"]) == (4096, None, "it is a clone")


async def test_a_sandbox_of_one_size_needs_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace, or a microVM that was asked for without a ceiling."""
    plain = Elasticity("sbx_0", Limits())
    assert plain.limits()["elastic"] is None and plain.limits()["memory_mib"] == 512
    assert plain.limits()["one_size"] == "it was asked for with one size"
    with pytest.raises(SandboxRefused, match="one size"):
        await plain.scale(1024, None, Initiator.CALLER)


async def test_a_guest_that_lies_about_pressure_gets_its_ceiling_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One step a cool-down, each admitted by the host, CPUs along with it; though it may not ask itself."""
    lying = replace(ELASTIC, scaling=Scaling.OUTSIDE, autoscale=Autoscale())
    async with running(monkeypatch, lying) as it:
        it.sizing.used_mib = 1 << 40
        claims = [(1024, 1, "autoscaler"), (2048, 2, "autoscaler"), (4096, 4, "autoscaler")]
        for number in range(3):
            await until(lambda n=number: it.elasticity.now.memory_mib == 1024 << n)  # type: ignore[misc]
            await it.looked()
            assert [step for step in it.sizing.steps if isinstance(step, tuple)] == claims[: number + 1]
            it.now += 60.0
        await it.looked()
        assert it.elasticity.now == Size(4096, 4)
        it.sizing.used_mib = 300
        await it.looked()
        it.now += 899.0
        await it.looked()
        assert it.elasticity.now == Size(4096, 4)
        it.now += 2.0
        await until(lambda: it.elasticity.now == Size(600, 1))
