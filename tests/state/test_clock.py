"""Time only goes forward, whatever is done to the machine's clock."""

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.state.clock import Clock


class Machine:
    wall = 1_000.0
    monotonic = 10.0


def clock_of(machine: Machine, high_water: float = 0.0) -> Clock:
    return Clock(high_water, wall=lambda: machine.wall, monotonic=lambda: machine.monotonic)


def test_a_wall_clock_that_steps_back_does_not_take_time_with_it() -> None:
    """After the step, time goes on at its normal pace, so that expiry still comes."""
    machine = Machine()
    clock = clock_of(machine)
    assert clock.now().wall == 1_000.0
    machine.wall, machine.monotonic = 400.0, 15.0
    assert clock.now().wall == 1_005.0
    machine.wall, machine.monotonic = 460.0, 75.0
    assert clock.now().wall == 1_065.0


def test_a_clock_starts_no_earlier_than_the_last_run_saw() -> None:
    """The high-water mark that the database kept is the floor."""
    machine = Machine()
    clock = clock_of(machine)
    clock.raise_to(5_000.0)
    machine.monotonic += 2.0
    assert clock.now().wall == 5_002.0
    assert clock_of(machine, 7_000.0).now().wall == 7_000.0


def test_a_clock_that_is_right_is_believed() -> None:
    """Without steps, now is now."""
    machine = Machine()
    clock = clock_of(machine)
    machine.wall, machine.monotonic = 1_060.0, 70.0
    now = clock.now()
    assert (now.wall, now.monotonic) == (1_060.0, 70.0)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e4))))
def test_no_sequence_of_steps_makes_time_run_back(steps: list[tuple[float, float]]) -> None:
    """Each reading is at least the one before plus the monotonic time between them."""
    machine = Machine()
    clock = clock_of(machine)
    before = clock.now()
    for step, passed in steps:
        machine.wall += step
        machine.monotonic += passed
        now = clock.now()
        assert now.wall >= before.wall + (now.monotonic - before.monotonic) - 1e-6
        before = now
