"""I3, shown at every await, every hook and every call between the parts of the request path.

One place at a time is made to fail in one way, from one moment on, while an ordinary request runs. Before the
first upstream byte the client must get a documented refusal and the upstream nothing; after it neither side
may get a clean end; and nothing of the request may stay.
"""

import gc
import warnings

import pytest

from tests.exhaustive.fail_closed import scenarios
from tests.exhaustive.fail_closed.cases import all_passed, cases, passed, run
from tests.exhaustive.fail_closed.exempt import (
    EXCUSES,
    GIVES_BACK,
    NOT_PASSED,
    SOMETIMES,
    WAITS_FOR_PLACES,
    excused,
    not_passed,
)
from tests.exhaustive.fail_closed.judge import complaints
from tests.exhaustive.fail_closed.sites import CALLS
from tests.exhaustive.fail_closed.world import World

ENOUGH = 10
"""Holes told at once: one that hangs takes half a minute."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_await_and_every_hook_is_passed_or_listed(world: World) -> None:
    """A new await without a case is found here: some scenario passes it, or somebody says why none does."""
    everything = await all_passed(world, scenarios.ALL)
    reached = {place for phases in everything.values() for places in phases.values() for place in places}
    sites = {
        number: site
        for number, site in enumerate(world.faults.sites)
        if site.kind not in CALLS and not str(site).startswith(SOMETIMES)
    }
    unknown = [str(site) for number, site in sites.items() if number not in reached and not not_passed(site)]
    wrong = [str(site) for number, site in sites.items() if number in reached and not_passed(site)]
    assert not unknown, "no scenario passes these places, and exempt.py does not say why"
    assert not wrong, "these are listed as passed by no scenario, but are"


def test_every_exemption_names_a_place(world: World) -> None:
    """A list that outlives what it names would let off something else one day."""
    names = [str(site) for site in world.faults.sites]
    listed = [*NOT_PASSED, *SOMETIMES, *WAITS_FOR_PLACES, *GIVES_BACK, *(excuse.place for excuse in EXCUSES)]
    assert [name for name in listed if not any(site.startswith(name) for site in names)] == []


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
async def test_whatever_fails_the_request_fails_closed(world: World, scenario: scenarios.Scenario) -> None:
    """Refused before the first upstream byte; broken off on both sides after it; nothing left behind."""
    wrong: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fired = await _tried(world, scenario, wrong)
        gc.collect()
    leaked = {str(each.message) for each in warned if "never awaited" in str(each.message)}
    assert fired > 50, "the places are no longer passed"
    assert not wrong, "\n".join(wrong)
    assert not leaked, "a coroutine was made, and lost where something failed before it was awaited"
    assert await passed(world, scenario), "the daemon no longer serves"


async def _tried(world: World, scenario: scenarios.Scenario, wrong: list[str]) -> int:
    """Runs the scenario's cases; how many of their faults came about. What went wrong goes into `wrong`."""
    fired = 0
    for case in cases(scenario, await all_passed(world, scenarios.ALL), world.faults.sites):
        outcome = await run(world, case)
        fired += outcome.moment is not None
        site = world.faults.sites[case.site]
        found = complaints(outcome)
        if found and not excused(site, case.fault, outcome):
            wrong.append(f"{site} {case.fault} {case.phase}: {outcome.kind}: {'; '.join(found)}")
        if len(wrong) == ENOUGH:
            break
    return fired
