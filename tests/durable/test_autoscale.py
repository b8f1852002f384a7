"""When memory grows and shrinks by itself: over any course of samples, true or made up."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.durable.autoscale import Autoscale, History, judge

LEAST, MOST = 512, 8192
RULE = Autoscale()

type Course = Sequence[tuple[float, int | None]]

rules = st.builds(
    Autoscale,
    up_percent=st.integers(55, 95),
    down_percent=st.integers(5, 45),
    cooldown_seconds=st.floats(1, 600),
    down_after_seconds=st.floats(1, 3600),
)
samples = st.lists(st.tuples(st.floats(0.1, 120), st.none() | st.integers(0, 2**40)), max_size=60)
"""Seconds since the one before, and what is said to be in use: anything at all."""


def course(rule: Autoscale, given: Course, start: int = LEAST) -> list[tuple[float, int, int, int | None]]:
    """(when, size before, size after, in use) of each sample."""
    at, size, past, found = 0.0, start, History(), []
    for pause, used in given:
        at += pause
        before = size
        size, past = judge(rule, LEAST, MOST, size, used, at, past)
        found.append((at, before, size, used))
    return found


@given(rules, samples, st.integers(LEAST, MOST))
def test_whatever_is_claimed_the_size_stays_in_its_range(rule: Autoscale, given: Course, start: int) -> None:
    """A guest that lies gets its ceiling at most, and never less than its floor."""
    assert all(LEAST <= after <= MOST for _, _, after, _ in course(rule, given, start))


@given(rules, samples)
def test_it_never_grows_twice_within_the_cooldown(rule: Autoscale, given: Course) -> None:
    """However hard a leak, or a lie, pushes."""
    grew = [at for at, before, after, _ in course(rule, given) if after > before]
    assert all(later - sooner >= rule.cooldown_seconds for sooner, later in itertools.pairwise(grew))


@given(rules, samples, st.integers(LEAST, MOST))
def test_it_shrinks_only_after_low_use_without_a_break(rule: Autoscale, given: Course, start: int) -> None:
    """Every sample of the time before was low for the size that it had, and none was missing."""
    seen = course(rule, given, start)
    for number, (at, before, after, _) in enumerate(seen):
        if after >= before:
            continue
        run = number
        while run > 0 and at - seen[run][0] < rule.down_after_seconds:
            run -= 1
        assert at - seen[run][0] >= rule.down_after_seconds
        for _, size, _, used in seen[run : number + 1]:
            assert size == before and used is not None and used * 100 <= rule.down_percent * size


@given(rules, samples, st.integers(LEAST, MOST))
def test_what_made_it_shrink_does_not_make_it_grow(rule: Autoscale, given: Course, start: int) -> None:
    """Else it would swing for as long as somebody uses the same memory."""
    for _, before, after, used in course(rule, given, start):
        if after < before:
            assert used is not None and used * 100 < rule.up_percent * after


def test_pressure_makes_it_grow_at_once() -> None:
    """At the first sample, to twice the size; the next time after a minute; at its ceiling no more."""
    high = [(1.0, 400), *[(1.0, 900)] * 59, (1.0, 900), (60.0, 1600), (60.0, 3500), (60.0, 8000)]
    changes = [(at, after) for at, before, after, _ in course(RULE, high) if after != before]
    assert changes == [(1.0, 1024), (61.0, 2048), (121.0, 4096), (181.0, 8192)]


def test_a_quarter_of_an_hour_of_low_use_makes_it_shrink() -> None:
    """To twice the most that was in use; a single busy moment, or one without numbers, begins it anew."""
    calm: Course = [(10.0, 700)] * 91
    assert course(RULE, calm, 8192)[-2][2] == 8192
    assert course(RULE, calm, 8192)[-1][2] == 1400
    for interruption in (4000, None):
        broken = [*calm[:80], (10.0, interruption), *calm[:80]]
        assert {after for _, _, after, _ in course(RULE, broken, 8192)} == {8192}
    assert course(RULE, [(10.0, 10)] * 91, 8192)[-1][2] == LEAST


NOW = 1000.0
LOW = History(grew_at=100.0, low_since=500.0, peak_mib=90)
FORGOTTEN = History(grew_at=100.0)


@pytest.mark.parametrize(
    ("size", "used", "past", "expected"),
    [
        pytest.param(400, None, LOW, (400, FORGOTTEN), id="nothing could be measured"),
        pytest.param(400, 299, LOW, (400, FORGOTTEN), id="just below the upper mark"),
        pytest.param(400, 300, LOW, (800, History(grew_at=NOW)), id="just at it"),
        pytest.param(
            400, 399, History(NOW - 59.9, 500.0, 90), (400, History(grew_at=NOW - 59.9)), id="it just grew"
        ),
        pytest.param(1600, 1600, LOW, (1600, FORGOTTEN), id="at its ceiling"),
        pytest.param(400, 161, LOW, (400, FORGOTTEN), id="just above the lower mark"),
        pytest.param(400, 160, LOW, (400, History(100.0, 500.0, 160)), id="just at it, and more than before"),
        pytest.param(400, 159, LOW, (400, History(100.0, 500.0, 159)), id="just below it"),
        pytest.param(400, 10, LOW, (400, LOW), id="less than before"),
        pytest.param(400, 10, FORGOTTEN, (400, History(100.0, NOW, 10)), id="low for the first time"),
        pytest.param(400, 10, History(None, 100.0, 90), (180, History()), id="low for long enough"),
        pytest.param(400, 10, History(None, 100.1, 90), (400, History(None, 100.1, 90)), id="not quite"),
        pytest.param(100, 10, LOW, (100, FORGOTTEN), id="at its floor"),
    ],
)  # fmt: skip
def test_one_sample(size: int, used: int | None, past: History, expected: tuple[int, History]) -> None:
    """The size and what is remembered, at each edge. What ends a time of low use forgets all of it."""
    assert judge(RULE, 100, 1600, size, used, NOW, past) == expected
