"""Sandboxes take turns on the event loop, however many connections each has (I9)."""

import asyncio
from collections import Counter

import pytest

from coatcheck.planes.mitm import turns as module
from coatcheck.planes.mitm.turns import FEW, Sharer, Turns


class Clock:
    """Of the core: time passes while somebody works."""

    now = 1.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What is measured does not depend on what else this machine does."""
    monkeypatch.setattr(Clock, "now", 1.0)
    monkeypatch.setattr(module, "time", made := Clock())
    return made


def busy(seconds: float) -> None:
    Clock.now += seconds


async def passes(count: int) -> None:
    """Of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def take(turns: Turns, sharer: Sharer, seconds: float) -> None:
    """One turn."""
    await turns.take(sharer, lambda: busy(seconds))


class Crowd:
    """So many connections of one sandbox, each of which takes turns for ever."""

    def __init__(self, turns: Turns, key: str, connections: int, seconds: float) -> None:
        self.taken: Counter[int] = Counter()
        self._turns, self._seconds = turns, seconds
        self.sharers = [turns.join(key) for _ in range(connections)]
        self._tasks = [asyncio.create_task(self._go_on(number)) for number in range(connections)]

    async def _go_on(self, number: int) -> None:
        while True:
            await take(self._turns, self.sharers[number], self._seconds)
            self.taken[number] += 1
            await asyncio.sleep(0)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sharer in self.sharers:
            self._turns.leave(sharer)


async def test_nobody_waits_while_the_loop_keeps_up() -> None:
    """A turn that is free is taken in the same step: a request alone costs nothing more."""
    turns = Turns()
    sharer = turns.join("a")
    for _ in range(3):
        taking = turns.take(sharer, lambda: None)
        with pytest.raises(StopIteration):
            taking.send(None)
        await asyncio.sleep(0)


@pytest.mark.parametrize(("sessions", "connections"), [(1, 250), (8, 60)])
async def test_who_asks_for_little_waits_for_one_turn_of_others(sessions: int, connections: int) -> None:
    """Not for one turn of each of their connections, nor of each of them."""
    turns = Turns()
    crowds = [Crowd(turns, f"greedy-{number}", connections, 0.0003) for number in range(sessions)]
    quiet = turns.join("quiet")
    await passes(2000)
    waited = []
    for _ in range(50):
        await passes(20)
        before = sum(crowd.taken.total() for crowd in crowds)
        await take(turns, quiet, 0.0003)
        waited.append(sum(crowd.taken.total() for crowd in crowds) - before)
    for crowd in crowds:
        await crowd.end()
    # Before this there were 250, or 480.
    assert sorted(waited)[len(waited) // 2] <= 3, waited
    assert all(crowd.taken for crowd in crowds)


async def test_time_is_shared_and_not_turns() -> None:
    """Whose turns take longer has fewer of them."""
    turns = Turns()
    cheap = Crowd(turns, "cheap", 2 * FEW, 0.0002)
    dear = Crowd(turns, "dear", 2 * FEW, 0.002)
    await passes(4000)
    await cheap.end()
    await dear.end()
    ratio = cheap.taken.total() * 0.0002 / (dear.taken.total() * 0.002)
    assert 0.9 < ratio < 1.1, ratio


async def test_connections_of_one_sandbox_take_turns_in_order() -> None:
    """None of them is forgotten."""
    turns = Turns()
    crowd = Crowd(turns, "one", 50, 0.0001)
    await passes(2000)
    await crowd.end()
    assert len(crowd.taken) == 50
    assert max(crowd.taken.values()) - min(crowd.taken.values()) <= 1


async def test_a_turn_that_nobody_takes_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may end while it waits, or after it was given its turn."""
    monkeypatch.setattr(module, "SPELL_SECONDS", 0.0)
    turns = Turns()
    sharers = [turns.join(f"s{number}") for number in range(3)]
    waiting = [asyncio.create_task(take(turns, sharer, 0.0)) for sharer in sharers]
    await take(turns, sharers[0], 0.0)  # before they ask, so that all of them wait for the next pass
    await asyncio.sleep(0)
    waiting[0].cancel()  # while it waits
    while sharers[1].waiting:
        await asyncio.sleep(0)
    waiting[1].cancel()  # right when it was given
    async with asyncio.timeout(5):
        await waiting[2]
    assert all(each.cancelled() for each in waiting[:2])
    assert turns.idle


@pytest.mark.parametrize("time", [1, 2, 3])
@pytest.mark.parametrize("step", ["_next_pass", "_look", "_give", "_end", "_line_up"])
async def test_whoever_waits_for_a_turn_that_cannot_be_given_is_told(
    monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    """Each gets a turn or an error, and later ones get turns again."""
    monkeypatch.setattr(module, "SPELL_SECONDS", 0.0)
    turns = Turns()
    sharers = [turns.join(f"s{number}") for number in range(3)]
    works, calls = getattr(Turns, step), 0
    ends: list[BaseException | None] = []

    def fails_at(turns: Turns, *args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == time:
            raise KeyError("on purpose")
        works(turns, *args)

    monkeypatch.setattr(Turns, step, fails_at)
    async with asyncio.timeout(5):
        while calls < time:
            ends = await asyncio.gather(
                *(take(turns, sharer, 0.0) for sharer in sharers * 2), return_exceptions=True
            )
        told = any(isinstance(end, KeyError | RuntimeError) for end in ends)
        assert told, "nobody waited, and this shows nothing"
        assert turns.idle
        for sharer in sharers:
            await take(turns, sharer, 0.0)
    assert turns.idle


async def test_nothing_is_kept_of_who_has_left() -> None:
    """The table is as large as there are sandboxes with connections."""
    turns = Turns()
    crowd = Crowd(turns, "a", 3, 0.0)
    await passes(20)
    assert len(turns) == 1
    await crowd.end()
    assert not len(turns)
    fresh = turns.join("a")
    await take(turns, fresh, 0.0)
