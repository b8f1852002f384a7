"""Which sandboxes are put to sleep when a daemon stops, and which end and why. Real ones:
tests/system/e2e/test_a_daemon_that_stops_puts_to_sleep_what_is_to_come_back.py."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from coatcheck.durable import stopping
from coatcheck.durable.durability import Durability
from coatcheck.durable.sandbox import Sandbox
from coatcheck.durable.stopping import put_to_sleep
from coatcheck.sandbox.sandbox import (
    SandboxProblem,
    SandboxRefused,
    SandboxState,
)
from tests.durable.test_recovery import DEAD

ONE, TWO, THREE, FOUR = (f"sbx_{number:016}" for number in range(1, 5))
SILENT = SandboxRefused(SandboxProblem.NOT_STARTED, "it does not answer", "See the log.")


def runs(name: str, keeping: Durability | None = None, state: SandboxState = SandboxState.RUNNING) -> Sandbox:
    stays = Durability(recovers=True) if keeping is None else keeping
    return replace(DEAD, id=name, state=state, ending=None, recoverable=False, keeping=stays)


class World:
    """Sandboxes that fall asleep as a test says, and remember what was done to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *there: Sandbox) -> None:
        self.there = {each.id: each for each in there}
        self.down: set[str] = set()
        self.interrupted: list[str] = []
        self.asked: list[str] = []
        self.killed: dict[str, str] = {}
        self.told: list[tuple[str, str, str]] = []
        self.fails: dict[str, Exception] = {}
        self.no_more = False
        self.unsavable = False
        self.now = 1_000.0
        self.on_ask: Callable[[float], None] = lambda seconds: None
        kept = SimpleNamespace(interrupt=self.interrupted.append)
        sandboxes = SimpleNamespace(
            all=lambda: tuple(self.there.values()),
            get=self.there.get,
            is_down=lambda name: name in self.down,
            settle=self.down.add,
            start_no_more=lambda: setattr(self, "no_more", True),
            ask=self._ask,
            kill=lambda name, ending, detail: self.killed.update({name: f"{ending}: {detail}"}),
            noted=lambda name, change, detail: self.told.append((name, change, detail)),
            kept=kept,
        )
        self.sandboxes: Any = sandboxes
        monkeypatch.setattr(stopping, "check_savable", self._check)
        monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def stops(self, seconds: float) -> None:
        state: Any = None  # asked by `check_savable` only
        await put_to_sleep(self.sandboxes, state, self._take, seconds)

    async def _take(self, work: Callable[[], None]) -> None:
        work()

    def _check(self, state: Any, sandbox: Sandbox) -> None:
        if self.unsavable:
            raise SandboxRefused(SandboxProblem.UNSAVABLE, "it holds handles", "")
        if (error := self.fails.get(sandbox.id)) is not None and error is not SILENT:
            raise error

    def _ask(self, name: str, method: str, target: str, body: dict[str, bool], seconds: float) -> None:
        assert (method, target, body, self.no_more) == ("POST", "/sleep", {"leaves": True}, True)
        self.asked.append(name)
        self.on_ask(seconds)
        if name in self.fails:
            raise self.fails[name]


async def test_what_is_to_come_back_sleeps_and_the_rest_is_left_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long-running, hybrid and shared ones; nobody begins any more meanwhile."""
    sleeps, nobody = Durability(sleeps=True), Durability(every_seconds=60.0)
    world = World(monkeypatch, runs(ONE), runs(TWO, sleeps), runs(THREE, nobody), runs(FOUR))
    world.down.add(FOUR)
    await world.stops(10.0)
    assert world.asked == [ONE, TWO] and not world.killed
    assert sorted(world.interrupted) == [ONE, TWO]


async def test_one_that_somebody_paused_sleeps_until_somebody_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next daemon must not let it run on by itself."""
    world = World(monkeypatch, runs(ONE, state=SandboxState.PAUSED))
    await world.stops(10.0)
    assert world.asked == [ONE] and world.interrupted == []


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (SILENT, "it does not answer"),
        (SandboxRefused(SandboxProblem.UNSAVABLE, "it holds handles of api (inherit: false)", ""), "inherit"),
    ],
)
async def test_what_cannot_sleep_ends_and_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    """Also what policy lets nobody save by now; and that of one is no harm to the next."""
    world = World(monkeypatch, runs(ONE), runs(TWO))
    world.fails[ONE] = error
    await world.stops(10.0)
    assert world.killed.keys() == {ONE} and world.interrupted == [TWO]
    assert world.killed[ONE].startswith(
        "daemon_gone: the daemon was stopped, and it could not be put to sleep"
    )
    assert why in world.killed[ONE]


async def test_the_time_is_for_all_of_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once; who has no turn in time is not begun, and each is told how long it was."""
    world = World(monkeypatch, *(runs(each) for each in (ONE, TWO, THREE, FOUR)))
    given: list[float] = []
    both = threading.Barrier(2)

    def too_slowly(seconds: float) -> None:
        given.append(seconds)
        both.wait(60)
        world.now += seconds
        raise SILENT

    world.on_ask = too_slowly
    await world.stops(7.0)
    assert sorted(world.asked) == [ONE, TWO] and given == [7.0, 7.0]
    assert world.killed.keys() == {ONE, TWO, THREE, FOUR} and not world.interrupted
    assert all("there was no time left of 7 s" in each for each in world.killed.values())


async def test_one_that_sleeps_already_is_only_left_by_its_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What policy says by now is about saving, and it was saved; what it waited for will not come."""
    world = World(monkeypatch, runs(ONE, state=SandboxState.SLEEPING))
    world.unsavable = True
    await world.stops(10.0)
    assert world.asked == [ONE] and world.interrupted == [ONE] and not world.killed


async def test_an_operator_who_cannot_wait_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second SIGTERM: nothing more is begun, and what is under way is ended with the rest."""
    world = World(monkeypatch, *(runs(each) for each in (ONE, TWO, THREE)))
    begun, goes_on = threading.Semaphore(0), threading.Event()

    def hang(seconds: float) -> None:
        begun.release()
        goes_on.wait(60)

    world.on_ask = hang
    stopping = asyncio.create_task(world.stops(60.0))
    for _ in range(2):
        assert await asyncio.to_thread(begun.acquire, timeout=60)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    goes_on.set()
    assert sorted(world.asked) == [ONE, TWO] and not world.interrupted and not world.killed
