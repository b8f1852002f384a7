"""What a guest says of its memory is hostile: it is a number in its bounds, and fresh, or nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.durable.sizing import STALE_SECONDS, available

NOW = 1_700_000_000

NAMES = ["stats", "last-update", "stat-total-memory", "stat-available-memory"]
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
anything = plain | st.dictionaries(
    st.sampled_from(NAMES), plain | st.dictionaries(st.sampled_from(NAMES), plain)
)


def said(total: object, free: object, at: object = NOW) -> dict[str, object]:
    return {"stats": {"stat-total-memory": total, "stat-available-memory": free}, "last-update": at}


@settings(max_examples=60)
@given(anything, st.integers(), st.integers())
def test_whatever_is_said_is_a_number_or_nothing(thing: object, total: int, free: int) -> None:
    """No number below zero, none above what it says that it has, no exception."""
    for answer in (thing, said(total, free), said(thing, free), said(total, thing)):
        found = available(answer, NOW)
        assert found is None or 0 <= found < 1 << 63


def test_no_more_is_available_than_there_is() -> None:
    """In bytes."""
    assert available(said(1 << 30, 1 << 28), NOW) == 1 << 28
    assert available(said(1 << 30, 1 << 31), NOW) is None
    assert available(said(-1, -1), NOW) is None
    # QEMU says so of what the guest never told: all bits set.
    assert available(said((1 << 64) - 1, (1 << 64) - 1), NOW) is None


@pytest.mark.parametrize("at", [0, NOW - STALE_SECONDS - 1, NOW + STALE_SECONDS + 1, None, "now"])
def test_what_was_said_long_ago_says_nothing(at: object) -> None:
    """It was paused, or somebody unloaded the driver."""
    assert available(said(1 << 30, 1 << 28, at), NOW) is None
