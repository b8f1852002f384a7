"""What the reconcile loop does with each sandbox: recovers it, wakes it, saves it; and what is said when that
comes to nothing. Real ones: tests/system/e2e/test_lifecycles_of_one_launcher.py and
test_a_daemon_that_stops_puts_to_sleep_what_is_to_come_back.py."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coatcheck.durable import reconcile
from coatcheck.durable.durability import Durability, Saved
from coatcheck.durable.entries import Care
from coatcheck.durable.reconcile import Reconciler
from coatcheck.durable.sandbox import Sandbox
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState
from tests.durable.test_recovery import DEAD
from tests.durable.test_stopping import ONE, THREE, TWO, runs

RUNS = replace(
    DEAD, state=SandboxState.RUNNING, ending=None, recoverable=False, keeping=Durability(every_seconds=100.0)
)


async def nothing(*about: Any) -> None:
    """No snapshot is taken here."""


# --- recovery --------------------------------------------------------------------------------------------


class Dying:
    """One sandbox that died, and a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = DEAD.created_at
        self.serving = True
        self.maker: str | None = "launcher"
        self.sandbox = DEAD
        self.attempts: tuple[float, ...] = ()
        self.told: list[str] = []
        self.given_up = ""
        self.began: list[tuple[str, str, float]] = []
        self.fails: SandboxRefused | None = None
        kept = SimpleNamespace(
            recoveries=lambda _: self.attempts,
            recovering=lambda _, now: setattr(self, "attempts", (*self.attempts, now)),
            saved=lambda _, name: Path("newest"),
            interrupted=lambda: (),
        )
        sandboxes = SimpleNamespace(
            kept=kept,
            all=lambda: [self.sandbox],
            get=lambda _: self.sandbox,
            noted=self._noted,
            give_up=self._give_up,
            is_down=lambda _: True,
            care=defaultdict(Care).__getitem__,
        )
        self.revoked = False
        incarnations: Any = SimpleNamespace(
            restore_unattended=self._restore, is_revoked=lambda sandbox: self.revoked
        )
        there: Any = sandboxes
        self.reconciler = Reconciler(
            there, incarnations, nothing, self._named, lambda: self.serving, brings_back=True
        )
        monkeypatch.setattr(reconcile, "TICK_SECONDS", 0.0)
        monkeypatch.setattr(reconcile, "time", SimpleNamespace(time=lambda: self.now))

    def _named(self, name: str) -> Any:
        return self.maker  # a caller is a name here

    def _noted(self, sandbox: str, change: str, detail: str) -> None:
        self.told.append(f"{change}: {detail}")

    def _give_up(self, sandbox: str, detail: str, why: Ending) -> None:
        self.given_up = f"{why}: {detail}"
        self.sandbox = replace(self.sandbox, keeping=replace(self.sandbox.keeping, recovers=False))

    async def _restore(self, sandbox: Sandbox, maker: Any, saved: Path, until: float) -> Sandbox:
        assert self.attempts[-1] == self.now  # it was written down before
        if self.fails is not None:
            raise self.fails
        self.began.append((maker, saved.name, until))
        self.sandbox = replace(self.sandbox, state=SandboxState.STARTING)
        return self.sandbox

    async def at(self, later: float) -> None:
        self.now = DEAD.created_at + later
        before = len(self.told) + len(self.given_up)
        running = asyncio.create_task(self.reconciler.run())
        for _ in range(200):  # work in threads among it
            await asyncio.sleep(0.001)
            if len(self.told) + len(self.given_up) > before:
                break
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_it_is_brought_back_in_its_makers_name_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the newest that was saved; the attempt is counted before it begins, and told with the reason."""
    world = Dying(monkeypatch)
    world.sandbox = replace(DEAD, detail="QEMU was killed by signal 9")
    await world.at(1)
    assert world.began == [("launcher", "newest", DEAD.expires_at)]
    assert world.told == ["recovering: attempt 1 of 3: machine_ended: QEMU was killed by signal 9"]


async def test_a_daemon_that_goes_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it ends as it goes died of nothing."""
    world = Dying(monkeypatch)
    world.serving = False
    await world.at(1)
    assert (world.began, world.told, world.attempts) == ([], [], ())


@pytest.mark.parametrize("why", ["a refusal", "a maker that is gone"])
async def test_what_cannot_be_is_tried_three_times_and_then_said(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """In the words of whatever kept it from coming back."""
    world = Dying(monkeypatch)
    if why == "a refusal":
        world.fails = SandboxRefused(SandboxProblem.NO_ROOM, "no room for it", "Wait.")
    else:
        world.maker = None
    for later in (1, 6, 36, 37):
        await world.at(later)
    assert len(world.attempts) == 3 and not world.began
    assert "it was brought back 3 times within 10 minutes, and died again" in world.given_up
    last = "no room for it. Wait." if why == "a refusal" else "there is no caller launcher any more"
    assert world.given_up.endswith(last)


async def test_one_that_was_revoked_when_it_was_down_stays_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest can die when it likes, and somebody revokes it in that second."""
    world = Dying(monkeypatch)
    world.revoked = True
    await world.at(1)
    assert (world.began, world.attempts) == ([], ())
    assert world.given_up == "session_over: it died, and its session was revoked: only a person restores it"


# --- waking ----------------------------------------------------------------------------------------------


class Sleeping:
    """Sandboxes that an orderly stop put to sleep, and what is done with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *there: Sandbox) -> None:
        self.there = {each.id: each for each in there}
        self.woken: list[tuple[str, str]] = []
        self.told: list[tuple[str, str, str]] = []
        self.fails: dict[str, Exception] = {}
        self.maker: Any = "launcher"
        kept = SimpleNamespace(interrupted=lambda: tuple(self.there), recoveries=lambda _: ())
        sandboxes: Any = SimpleNamespace(
            all=lambda: tuple(self.there.values()),
            get=self.there.get,
            is_down=lambda _: True,
            care=defaultdict(Care).__getitem__,
            noted=lambda name, change, detail: self.told.append((name, change, detail)),
            kept=kept,
        )
        incarnations: Any = SimpleNamespace(wake=self._wake)
        self.reconciler = Reconciler(
            sandboxes, incarnations, nothing, lambda name: self.maker, lambda: True, brings_back=True
        )
        monkeypatch.setattr(reconcile, "TICK_SECONDS", 0.0)
        monkeypatch.setattr(reconcile, "PAUSES", (0.0, 0.01, 0.02))

    async def _wake(self, sandbox: Sandbox, maker: Any) -> None:
        self.woken.append((sandbox.id, maker))
        if sandbox.id in self.fails:
            raise self.fails[sandbox.id]

    async def wakes(self) -> None:
        """Until nothing more happens for ten times as long as it waits between two tries."""
        running = asyncio.create_task(self.reconciler.run())
        before = -1
        while before != (before := len(self.woken) + len(self.told)):
            await asyncio.sleep(0.2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_those_that_ran_run_again_in_their_makers_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not asleep any more was woken or removed by a caller."""
    asleep = SandboxState.SLEEPING
    world = Sleeping(monkeypatch, runs(ONE, state=asleep), runs(TWO), runs(THREE, state=asleep))
    await world.wakes()
    assert world.woken == [(ONE, "launcher"), (THREE, "launcher")] and not world.told


@pytest.mark.parametrize("why", ["no room", "a mistake", "no maker"])
async def test_one_that_does_not_wake_is_tried_again_and_then_sleeps_on(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Three times, and then it is said; the others have not waited for it."""
    asleep = SandboxState.SLEEPING
    world = Sleeping(monkeypatch, runs(ONE, state=asleep), runs(TWO, state=asleep))
    if why == "no maker":
        world.maker = None
    elif why == "no room":
        world.fails[ONE] = SandboxRefused(SandboxProblem.NO_ROOM, "there is no room", "Wait.")
    else:
        world.fails[ONE] = RuntimeError("a mistake")
    await world.wakes()
    said = {
        "no room": "there is no room. Wait.",
        "a mistake": "RuntimeError",
        "no maker": "there is no caller",
    }
    assert world.told[0][:2] == (ONE, "given_up") and said[why] in world.told[0][2]
    if why != "no maker":
        assert [name for name, _ in world.woken] == [ONE, TWO, ONE, ONE]
        assert len(world.told) == 1


# --- periodic snapshots ----------------------------------------------------------------------------------


class Saving:
    """Sandboxes that are what a test says, a clock that stands still, and a disk that may be full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.there: list[Sandbox] = [RUNS]
        self.looks: Counter[object] = Counter()
        self.taken: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.fails: SandboxRefused | Exception | None = None
        self.saved: list[Saved] = []
        self.unreadable = ""
        record = SimpleNamespace(generation=2)
        kept = SimpleNamespace(snapshots=self._snapshots, record=lambda sandbox: record)
        sandboxes: Any = SimpleNamespace(
            all=self._all,
            get=self._get,
            is_down=lambda _: True,
            noted=self._noted,
            kept=kept,
            care=defaultdict(Care).__getitem__,
        )
        none: Any = None  # what is only saved begins nothing
        self.reconciler = Reconciler(
            sandboxes, none, self._save, lambda name: None, lambda: True, brings_back=False
        )
        monkeypatch.setattr(reconcile, "TICK_SECONDS", 0.0)
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(reconcile, "time", clock)

    def _all(self) -> list[Sandbox]:
        self.looks[asyncio.current_task()] += 1
        return self.there

    def _get(self, sandbox: str) -> Sandbox | None:
        return next((each for each in self.there if each.id == sandbox), None)

    def _snapshots(self, sandbox: str) -> tuple[Saved, ...]:
        if sandbox == self.unreadable:
            raise SandboxRefused(SandboxProblem.NOT_SAVED, "the key is gone", "Restore it.")
        return tuple(self.saved)

    def _noted(self, sandbox: str, change: str, detail: str) -> None:
        self.told.append((change, detail))

    async def _save(self, sandbox: Sandbox, name: str) -> None:
        self.taken.append(name)
        if self.fails is not None:
            raise self.fails

    async def at(self, now: float) -> int:
        """How many it has taken by then."""
        self.now = now
        self.looks.clear()
        running = asyncio.create_task(self.reconciler.run())
        while len(self.looks) < 2 or min(self.looks.values()) < 3:  # by each of its lanes
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return len(self.taken)


async def test_the_first_comes_soon_and_the_others_as_often_as_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a name by which it is known to be one of these."""
    world = Saving(monkeypatch)
    counts = [await world.at(1_000.0 + later) for later in (0, 59, 60, 61, 159, 160, 259, 260)]
    assert counts == [0, 0, 1, 1, 1, 2, 2, 3]
    assert all(name.startswith("auto-") for name in world.taken) and not world.told


async def test_one_that_dies_again_and_again_replaces_nothing_that_it_was_well_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each life ends before a whole period: none of them is saved. The one that runs on is."""
    world = Saving(monkeypatch)
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
    world = Saving(monkeypatch)
    world.unreadable = RUNS.id
    world.there = [RUNS, replace(RUNS, id="sbx_0000000000000002")]
    await world.at(1_000.0)
    assert await world.at(1_060.0) == 2


@pytest.mark.parametrize("state", [SandboxState.PAUSED, SandboxState.SLEEPING, SandboxState.STARTING])
async def test_while_nothing_runs_nothing_is_saved(
    monkeypatch: pytest.MonkeyPatch, state: SandboxState
) -> None:
    """There is nothing new in it; it is due when it runs again."""
    world = Saving(monkeypatch)
    await world.at(1_000.0)
    world.there = [replace(RUNS, state=state)]
    assert await world.at(1_500.0) == 0
    world.there = [RUNS]
    assert await world.at(1_501.0) == 1


async def test_nobody_is_saved_who_did_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that has ended; one that begins again is due anew."""
    world = Saving(monkeypatch)
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
    world = Saving(monkeypatch)
    await world.at(1_000.0)
    full = SandboxRefused(SandboxProblem.NOT_SAVED, "there is no space", "Remove one.")
    world.fails = RuntimeError("a mistake") if fatal else full
    assert await world.at(1_060.0) == 1
    assert world.told == ([] if fatal else [("snapshot_failed", "there is no space. Remove one.")])
    world.fails = None
    assert await world.at(1_159.0) == 1
    assert await world.at(1_160.0) == 2


async def test_one_that_fell_asleep_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due as soon as it runs again."""
    world = Saving(monkeypatch)
    await world.at(1_000.0)
    world.fails = SandboxRefused(SandboxProblem.NOT_RUNNING, "it is sleeping", "Wake it.")
    await world.at(1_060.0)
    assert not world.told
    world.fails, before = None, len(world.taken)
    assert await world.at(1_061.0) == before + 1
