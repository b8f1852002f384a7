"""When a snapshot is taken by itself, and what is said when it cannot be. Real ones, by the same code:
tests/system/e2e/test_four_lifecycles_of_one_launcher.py."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from coatcheck.control import sandbox_periodic
from coatcheck.control.problem import ControlProblem
from coatcheck.control.sandbox_periodic import PeriodicSnapshots
from coatcheck.durable.durability import Durability, Saved
from coatcheck.durable.sandbox import Sandbox
from coatcheck.launcher.sandbox import (
    SandboxProblem,
    SandboxRefused,
    SandboxState,
)
from tests.durable.test_recovery import DEAD

RUNS = replace(
    DEAD, state=SandboxState.RUNNING, ending=None, recoverable=False, keeping=Durability(every_seconds=100.0)
)


class World:
    """Sandboxes that are what a test says, a clock that stands still, and a disk that may be full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.there: list[Sandbox] = [RUNS]
        self.looks = 0
        self.taken: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.fails: ControlProblem | Exception | None = None
        self.saved: list[Saved] = []
        self.unreadable = ""
        record = SimpleNamespace(generation=2)
        kept = SimpleNamespace(snapshots=self._snapshots, record=lambda sandbox: record)
        sandboxes = SimpleNamespace(all=self._all, noted=self._noted, kept=kept)
        context: Any = SimpleNamespace(backend=SimpleNamespace(sandboxes=sandboxes))
        self.periodic = PeriodicSnapshots(context)
        monkeypatch.setattr(sandbox_periodic, "save", self._save)
        monkeypatch.setattr(sandbox_periodic, "LOOK_SECONDS", 0.0)
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(sandbox_periodic, "time", clock)

    def _all(self) -> list[Sandbox]:
        self.looks += 1
        return self.there

    def _snapshots(self, sandbox: str) -> tuple[Saved, ...]:
        if sandbox == self.unreadable:
            raise SandboxRefused(SandboxProblem.NOT_SAVED, "the key is gone", "Restore it.")
        return tuple(self.saved)

    def _noted(self, sandbox: str, change: str, detail: str) -> None:
        self.told.append((change, detail))

    async def _save(self, context: Any, sandbox: Sandbox, name: str) -> None:
        self.taken.append(name)
        if self.fails is not None:
            raise self.fails

    async def at(self, now: float) -> int:
        """How many it has taken by then."""
        self.now = now
        looks = self.looks
        running = asyncio.create_task(self.periodic.run())
        while self.looks < looks + 3:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return len(self.taken)


async def test_the_first_comes_soon_and_the_others_as_often_as_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a name by which it is known to be one of these."""
    world = World(monkeypatch)
    counts = [await world.at(1_000.0 + later) for later in (0, 59, 60, 61, 159, 160, 259, 260)]
    assert counts == [0, 0, 1, 1, 1, 2, 2, 3]
    assert all(name.startswith("auto-") for name in world.taken) and not world.told


async def test_one_that_dies_again_and_again_replaces_nothing_that_it_was_well_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each life ends before a whole period: none of them is saved. The one that runs on is."""
    world = World(monkeypatch)
    world.saved = [Saved(f"auto-{each}", float(each), 1, 1) for each in range(10)]
    for life in range(30):
        world.there = [RUNS]
        assert await world.at(1_000.0 + 200 * life) == 0
        assert await world.at(1_099.0 + 200 * life) == 0
        world.there = [replace(RUNS, state=SandboxState.ENDED)]
        await world.at(1_100.0 + 200 * life)
    world.there = [RUNS]
    assert await world.at(10_000.0) == 0
    assert await world.at(10_100.0) == 1


async def test_what_cannot_be_looked_at_is_said_when_it_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is gone: the sandboxes after it are saved all the same."""
    world = World(monkeypatch)
    world.unreadable = RUNS.id
    world.there = [RUNS, replace(RUNS, id="sbx_0000000000000002")]
    await world.at(1_000.0)
    assert await world.at(1_060.0) == 2


@pytest.mark.parametrize("state", [SandboxState.PAUSED, SandboxState.SLEEPING, SandboxState.STARTING])
async def test_while_nothing_runs_nothing_is_saved(
    monkeypatch: pytest.MonkeyPatch, state: SandboxState
) -> None:
    """There is nothing new in it; it is due when it runs again."""
    world = World(monkeypatch)
    await world.at(1_000.0)
    world.there = [replace(RUNS, state=state)]
    assert await world.at(1_500.0) == 0
    world.there = [RUNS]
    assert await world.at(1_501.0) == 1


async def test_nobody_is_saved_who_did_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that has ended; whoever begins again is due anew."""
    world = World(monkeypatch)
    world.there = [replace(RUNS, keeping=Durability())]
    await world.at(1_000.0)
    assert await world.at(2_000.0) == 0
    world.there = [RUNS]
    await world.at(2_000.0)
    world.there = [replace(RUNS, state=SandboxState.ENDING)]
    await world.at(2_100.0)
    world.there = [RUNS]
    assert await world.at(2_101.0) == 0
    assert await world.at(2_161.0) == 1


@pytest.mark.parametrize("fatal", [False, True])
async def test_one_that_fails_is_told_and_tried_again_when_the_next_is_due(
    monkeypatch: pytest.MonkeyPatch, fatal: bool
) -> None:
    """A full disk ends nothing; nor does a mistake of ours."""
    world = World(monkeypatch)
    await world.at(1_000.0)
    full = ControlProblem(SandboxProblem.NOT_SAVED, "there is no space", "Remove one.")
    world.fails = RuntimeError("a mistake") if fatal else full
    assert await world.at(1_060.0) == 1
    assert world.told == ([] if fatal else [("snapshot_failed", "there is no space. Remove one.")])
    world.fails = None
    assert await world.at(1_159.0) == 1
    assert await world.at(1_160.0) == 2


async def test_one_that_fell_asleep_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due as soon as it runs again."""
    world = World(monkeypatch)
    await world.at(1_000.0)
    world.fails = ControlProblem(SandboxProblem.NOT_RUNNING, "it is sleeping", "Wake it.")
    await world.at(1_060.0)
    assert not world.told
    world.fails, before = None, len(world.taken)
    assert await world.at(1_061.0) == before + 1
