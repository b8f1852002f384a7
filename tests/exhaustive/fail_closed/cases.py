"""Runs a case: one scenario, with one place that fails in one way from one moment on."""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.exhaustive.fail_closed.client import Seen
from tests.exhaustive.fail_closed.exempt import is_tried
from tests.exhaustive.fail_closed.injection import FAULTS, Fault
from tests.exhaustive.fail_closed.judge import Outcome
from tests.exhaustive.fail_closed.scenarios import Phase, Scenario
from tests.exhaustive.fail_closed.sites import CALLS, Site
from tests.exhaustive.fail_closed.world import LONGEST_BOUND, PATIENCE, World

type Passed = dict[Phase, set[int]]

SKIP = 20.0
"""Seconds at a time: above the short bounds, so that few skips do, below those of whole requests."""


@dataclass(frozen=True, slots=True)
class Case:
    scenario: Scenario
    site: int
    fault: Fault
    phase: Phase


async def passed(world: World, scenario: Scenario) -> Passed:
    """The places that a request without a fault passes, by the moment from which on it does."""
    world.begin()
    before: list[tuple[Phase, dict[int, int]]] = []

    def note(phase: Phase) -> None:
        if before:
            before[-1][1].update(world.faults.reached)
        world.faults.reached.clear()
        before.append((phase, {}))

    seen = await _bounded(scenario(world, note))
    assert seen is not None and seen.whole, f"the ordinary request failed: {seen}"
    assert not await world.clean()
    before[-1][1].update(world.faults.reached)
    return {phase: set(reached) for phase, reached in before}


WHOLE = ("explicit", "http2", "websocket")
"""Scenarios in which every await and hook fails. In the others, which differ in parts, those do that they
alone pass; of the rest each once, by an exception, from the start."""
AGAIN = (Fault.RAISES, Fault.HANGS, Fault.NONSENSE)
"""How what another scenario has passed before fails once more."""


async def all_passed(world: World, scenarios: Sequence[Scenario]) -> dict[str, Passed]:
    """What each scenario passes, in order."""
    return {_name(scenario): await passed(world, scenario) for scenario in scenarios}


def cases(scenario: Scenario, everything: dict[str, Passed], sites: list[Site]) -> Iterator[Case]:
    """What is to fail in a scenario. A call fails in the first that passes it."""
    name = _name(scenario)
    earlier = [
        everything[each] for each in everything if list(everything).index(each) < list(everything).index(name)
    ]
    for phase, numbers in everything[name].items():
        known = set[int]().union(*(places.get(phase, set()) for places in earlier))
        for number in sorted(numbers):
            kind = sites[number].kind
            for fault in FAULTS[kind]:
                once = phase is Phase.START and fault is Fault.RAISES
                again = kind not in CALLS and (once or (name in WHOLE and fault in AGAIN))
                if is_tried(sites[number], fault) and (number not in known or again):
                    yield Case(scenario, number, fault, phase)


def _name(scenario: Scenario) -> str:
    return str(getattr(scenario, "__name__", scenario))


async def run(world: World, case: Case) -> Outcome:
    world.begin()

    def arm(phase: Phase) -> None:
        if phase is case.phase:
            world.faults.arm(case.site, case.fault)

    task = asyncio.ensure_future(case.scenario(world, arm))
    hung = not await _skipping(world, task) if case.fault is Fault.HANGS else await _bounded(task) is None
    if hung:
        task.cancel()
        await asyncio.wait({task})
    world.faults.disarm()
    left = await world.clean()
    seen = Seen() if hung else task.result()
    return Outcome(case.fault, seen, world.upstream, world.moment, left, world.client_ended, hung)


async def _bounded(work: Awaitable[Seen]) -> Seen | None:
    """None where it hangs."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    return task.result() if done else None


async def _skipping(world: World, task: asyncio.Future[Seen]) -> bool:
    """Whether it ends. Once the place hangs, time is skipped until the bound is met that ends the wait."""
    fired = asyncio.ensure_future(world.faults.fired.wait())
    either: set[asyncio.Future[Any]] = {task, fired}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    fired.cancel()
    deadline = time.monotonic() + PATIENCE
    skipped = 0.0
    while not task.done():
        for _ in range(50):
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        if skipped < LONGEST_BOUND:
            world.clock.skip(SKIP)
            skipped += SKIP
        elif time.monotonic() > deadline:
            return False
    return True
