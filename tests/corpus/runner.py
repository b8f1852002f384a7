"""Runs cases against a proxy under test: as they are, and with the check of each switched off."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.corpus import (
    driver,
    guests,
    handles,
    hellos,
    http2_frames,
    microvm,
    operator,
    policy_files,
    surfaces,
    switches,
    transparent,
)
from tests.corpus.driver import Driver, Outcome
from tests.corpus.expand import expander
from tests.corpus.judge import asked_for, judge, safe
from tests.corpus.proxies import Coatchecks, UnderTest
from tests.corpus.schema import Run, checks
from tests.corpus.world import World

KINDS_OF_STEPS: Final = (guests, handles, hellos, http2_frames, operator, policy_files, surfaces, transparent)
"""Modules that add to the driver's, and to what may stand in braces."""
SETTLE: Final = 0.02
"""Seconds between looks for what is still to be written, or to arrive."""
LOOKS: Final = 150
IMPATIENCE: Final = 2.0
"""Seconds for an answer once a check is off: one that does not come then is a difference, too."""
LOOKS_WITHOUT_CHECK: Final = 15
"""Enough for a record to be written, so that its lateness is not taken for a difference."""


@dataclass(frozen=True, slots=True)
class Result:
    run: Run
    wrong: list[str] = field(default_factory=list)


async def once(
    run: Run, proxy: UnderTest, world: World, *, ours: bool = True, off: bool = False
) -> list[str]:
    """What is wrong with one case; empty when it holds. Not `ours`: only what is safe, whatever it says.
    `off`: its check is, so that something is expected to be wrong."""
    if run.mode == "microvm":
        inside = (await microvm.guest_of(proxy)).inside
    else:
        inside = await proxy.open(run.case.policy, run.case.session)
    expand = expander(inside, proxy.secrets)
    world.begin(run.case.resolver, run.case.origin, expand)
    proxy.mark()
    steps = Driver(inside, expand, run.mode, proxy)
    try:
        async with asyncio.timeout(60):
            with switches.bounds(run.case.bounds):
                outcome = await steps.run(run.case.steps)
    except TimeoutError:
        return ["the case did not end"]
    if not ours:
        return safe(run.case, outcome, world.arrivals, proxy.secrets, expand)
    wrong: list[str] = []
    for _ in range(LOOKS_WITHOUT_CHECK if off else LOOKS):
        wrong = judge(run.case, outcome, world.arrivals, proxy.records(), proxy.secrets, expand)
        wrong += asked_for(run.case, world.asked)
        if any("record" not in each for each in wrong) if off else not wrong:
            break
        await asyncio.sleep(SETTLE)
    return wrong


async def all_of(todo: Iterable[Run], daemons: Coatchecks, world: World) -> list[Result]:
    """Each case as it is."""
    return [Result(run, await once(run, await daemons.of(run.case.settings), world)) for run in todo]


async def switched_off(todo: Iterable[Run], daemons: Coatchecks, world: World) -> list[Result]:
    """Each case with its check switched off: what is wrong then, which must be something."""
    results = []
    driver.PATIENCE = IMPATIENCE
    for name, of_check in _by_check(todo):
        check = checks()[name]
        for run in of_check:
            proxy = await daemons.of(run.case.settings)
            try:
                with switches.off(check):
                    wrong = await once(run, proxy, world, off=True)
            except switches.Stale as stale:
                results.append(Result(run, [str(stale)]))
                continue
            except Exception as error:  # nobody foresees how a program fails without one
                wrong = [f"{type(error).__name__}: {error}"]
            results.append(Result(run, [] if wrong else [f"holds without {name}: it does not exercise it"]))
    return results


async def peer_of(todo: Iterable[Run], peer: UnderTest, world: World) -> list[Result]:
    """What is unsafe with another proxy. A case that asks for what it does not have is left out."""
    results = []
    for run in todo:
        try:
            results.append(Result(run, await once(run, peer, world, ours=False)))
        except (LookupError, ValueError):
            continue  # handles of a kind that only we have
    return results


def _by_check(todo: Iterable[Run]) -> Iterator[tuple[str, list[Run]]]:
    found: dict[str, list[Run]] = {}
    for run in todo:
        if run.case.check is not None:
            found.setdefault(run.case.check, []).append(run)
    yield from found.items()


__all__ = ["Outcome", "Result", "all_of", "once", "peer_of", "switched_off"]
