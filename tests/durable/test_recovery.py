"""What died is brought back a few times, and no more; what somebody ended is left."""

from dataclasses import replace

import pytest

from coatcheck.decision.session import Isolation
from coatcheck.durable.durability import Durability
from coatcheck.durable.recovery import ATTEMPTS, DIED, PAUSES, WITHIN_SECONDS, Step, next_step
from coatcheck.durable.sandbox import Sandbox
from coatcheck.sandbox.resources import Resources
from coatcheck.sandbox.sandbox import (
    Backend,
    Ending,
    SandboxState,
)

NOW = 1_000_000.0
DEAD = Sandbox(
    "sbx_1", "acme", "agent", "default", "launcher", Backend.MICROVM, Isolation.EMULATED, "why", {}, NOW,
    NOW + 9_000, Resources(256, 1, 16, 64), keeping=Durability(recovers=True), state=SandboxState.ENDED,
    ending=Ending.MACHINE_ENDED, recoverable=True,
)  # fmt: skip


@pytest.mark.parametrize("ending", list(Ending))
def test_only_what_nobody_wanted_is_undone(ending: Ending) -> None:
    """A revocation, a limit, a caller's word, a hostile guest: these stay."""
    died = {"machine_ended", "supervisor_gone", "daemon_gone", "start_failed", "rebind_failed"}
    step = next_step(replace(DEAD, ending=ending), (), NOW)
    assert step is (Step.TRY if ending.value in died else Step.NOTHING)
    assert (ending in DIED) == (ending.value in died)


@pytest.mark.parametrize(
    "different",
    [
        {"keeping": Durability()},
        {"recoverable": False},
        {"state": SandboxState.RUNNING},
        {"state": SandboxState.SLEEPING},
        {"expires_at": NOW},
    ],
)
def test_nothing_happens_to_one_that(different: dict[str, object]) -> None:
    """Was not asked to come back, cannot, runs, sleeps, or whose time is over: dying begins no new one."""
    assert next_step(replace(DEAD, **different), (), NOW) is Step.NOTHING  # type: ignore[arg-type]


def test_a_crash_loop_ends() -> None:
    """The first attempt at once, the next ones later and later, and then it is given up."""
    attempts: list[float] = []
    now = NOW
    for pause in PAUSES:
        if pause:
            assert next_step(DEAD, attempts, now + pause - 0.1) is Step.NOTHING
        now += pause
        assert next_step(DEAD, attempts, now) is Step.TRY
        attempts.append(now)
    assert len(attempts) == ATTEMPTS
    assert next_step(DEAD, attempts, now + 1) is Step.GIVE_UP
    assert next_step(DEAD, attempts, NOW + WITHIN_SECONDS - 0.1) is Step.GIVE_UP
    assert next_step(DEAD, attempts, NOW + WITHIN_SECONDS) is Step.TRY  # the first is long ago by then


def test_one_that_dies_once_a_day_is_brought_back_every_time() -> None:
    """It is no loop."""
    attempts = [NOW - 86_400 * days for days in (3, 2, 1)]
    assert next_step(DEAD, attempts, NOW) is Step.TRY
