"""What size may be had: by the range, the maker's word, and what is in use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.durable.autoscale import Autoscale
from coatcheck.durable.elastic import (
    Elastic,
    Growth,
    Initiator,
    Scaling,
)
from coatcheck.durable.scaling import CEILING_TO_FLOOR, check_in_use, range_of, wanted
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused

ELASTIC = Elastic(1024, 16384, 1, 4)
NOW = Size(2048, 2)
MOST = Size(32768, 8)


@given(st.integers(-10, 40_000), st.integers(-2, 8))
def test_nothing_outside_of_its_range_is_had(memory_mib: int, cpus: int) -> None:
    """Above the ceiling, below the floor, nonsense."""
    if 1024 <= memory_mib <= 16384 and 1 <= cpus <= 4:
        assert wanted(ELASTIC, NOW, memory_mib, cpus, Initiator.CALLER) == Size(memory_mib, cpus)
        return
    with pytest.raises(SandboxRefused) as refused:
        wanted(ELASTIC, NOW, memory_mib, cpus, Initiator.CALLER)
    assert refused.value.problem is SandboxProblem.BEYOND_LIMIT


def test_a_refusal_says_what_there_is() -> None:
    """Of memory and of CPUs, in their own words."""
    with pytest.raises(SandboxRefused, match=r"^512 MiB of memory is outside .* range, 1024 to 16384$"):
        wanted(ELASTIC, NOW, 512, None, Initiator.CALLER)
    with pytest.raises(SandboxRefused, match=r"^5 CPUs is outside .* range, 1 to 4$"):
        wanted(ELASTIC, NOW, None, 5, Initiator.CALLER)


def test_what_is_left_out_stays() -> None:
    """Memory without CPUs, CPUs without memory, and neither."""
    assert wanted(ELASTIC, NOW, 4096, None, Initiator.INSIDE) == Size(4096, 2)
    assert wanted(ELASTIC, NOW, None, 4, Initiator.INSIDE) == Size(2048, 4)
    assert wanted(ELASTIC, NOW, None, None, Initiator.INSIDE) == NOW


def test_whoever_made_it_may_lock_it_from_inside() -> None:
    """Its callers and the autoscaler still change it."""
    locked = Elastic(1024, 16384, 1, 4, Scaling.OUTSIDE, Autoscale())
    with pytest.raises(SandboxRefused) as refused:
        wanted(locked, NOW, 4096, None, Initiator.INSIDE)
    assert refused.value.problem is SandboxProblem.SCALING_LOCKED
    for by in (Initiator.CALLER, Initiator.AUTOSCALER):
        assert wanted(locked, NOW, 4096, None, by) == Size(4096, 2)


def test_a_sandbox_of_one_size_says_so() -> None:
    """With the option that would have made it another."""
    with pytest.raises(SandboxRefused, match="one size") as refused:
        wanted(None, NOW, 4096, None, Initiator.CALLER)
    assert refused.value.problem is SandboxProblem.NOT_ELASTIC and "--max-memory" in refused.value.hint


@given(st.integers(0, 4096), st.integers(1, 4096))
def test_what_is_in_use_is_never_taken(used: int, asked: int) -> None:
    """With something to spare, since it moves while it is measured. Growing needs no look at it."""
    if asked >= 2048 or asked >= used + max(32, used // 8):
        check_in_use(Size(asked, 1), Size(2048, 1), used)
        return
    with pytest.raises(SandboxRefused) as refused:
        check_in_use(Size(asked, 1), Size(2048, 1), used)
    assert refused.value.problem is SandboxProblem.OOM_FLOOR


def test_the_least_that_may_be_left() -> None:
    """An eighth of what is in use, in whole MiB, and 32 at least."""
    for used, least in ((300, 337), (100, 132)):
        check_in_use(Size(least, 1), NOW, used)
        with pytest.raises(SandboxRefused):
            check_in_use(Size(least - 1, 1), NOW, used)


def test_nothing_is_taken_from_a_guest_that_says_nothing() -> None:
    """Its balloon driver is gone, or it stands still: nobody knows what would be ended."""
    check_in_use(Size(4096, 1), NOW, None)
    check_in_use(NOW, NOW, None)
    with pytest.raises(SandboxRefused, match="not known") as refused:
        check_in_use(Size(1024, 1), NOW, None)
    assert refused.value.problem is SandboxProblem.OOM_FLOOR


def test_the_range_is_what_was_asked_for() -> None:
    """What is left out stays as it starts."""
    growth = Growth(16384, 4, Scaling.OUTSIDE, Autoscale(up_percent=80))
    assert range_of(Size(1024, 1), growth, MOST) == Elastic(
        1024, 16384, 1, 4, Scaling.OUTSIDE, Autoscale(up_percent=80)
    )
    assert range_of(Size(1024, 2), Growth(None, 4), MOST).ceiling == Size(1024, 4)
    assert range_of(Size(1024, 2), Growth(2048, None), MOST).ceiling == Size(2048, 2)
    assert range_of(Size(4096, 1), Growth(32768, 8), MOST).ceiling == MOST


@pytest.mark.parametrize(
    ("growth", "says"),
    [
        (Growth(65536, None), "65536 MiB and 1 CPU; .* 32768 MiB and 8 CPUs at most here"),
        (Growth(None, 16), "at most here"),
        (Growth(512, None), "above its own ceiling"),
        (Growth(1024 * CEILING_TO_FLOOR + 1, None), "16 times"),
    ],
)
def test_a_range_that_cannot_be_is_refused(growth: Growth, says: str) -> None:
    """More than the operator gives, less than it starts with, more tables than memory."""
    with pytest.raises(SandboxRefused, match=says) as refused:
        range_of(Size(1024, 1), growth, MOST)
    assert refused.value.problem is SandboxProblem.BEYOND_LIMIT and refused.value.hint


def test_a_refused_range_says_with_how_much_it_could_start() -> None:
    """Rounded up: with a MiB less it would be refused again."""
    with pytest.raises(SandboxRefused) as refused:
        range_of(Size(64, 1), Growth(64 * CEILING_TO_FLOOR + 1, None), MOST)
    assert refused.value.hint == "Start with --memory 65 or more."


@given(st.integers(0, 20_000))
def test_cpus_go_with_memory(memory_mib: int) -> None:
    """As far up their range, and never out of it."""
    cpus = ELASTIC.cpus_for(memory_mib)
    assert 1 <= cpus <= 4
    assert cpus <= ELASTIC.cpus_for(memory_mib + 1)
    assert (ELASTIC.cpus_for(1024), ELASTIC.cpus_for(16384)) == (1, 4)
    assert Elastic(512, 512, 1, 4).cpus_for(memory_mib) == 1
    assert Elastic(1024, 3072, 1, 9).cpus_for(2048) == 5
