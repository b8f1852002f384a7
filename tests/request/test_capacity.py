"""How many requests run and how much they keep."""

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.request.capacity import LITTLE, Capacity, Places


def why(denial: Deny | None) -> Reason | None:
    return denial.reason if denial is not None else None


@pytest.fixture
def places() -> Capacity[str]:
    return Capacity(max_calls=3, max_session_calls=2, max_buffered=4000)


def test_one_session_cannot_take_all_places(places: Capacity[str]) -> None:
    """It hears that it has too many of its own; another still finds room, until there is none for anybody."""
    assert places.enter("a1", "a") is None
    assert places.enter("a2", "a") is None
    assert why(places.enter("a3", "a")) is Reason.CONCURRENCY_LIMITED
    assert places.enter("b1", "b") is None
    assert why(places.enter("c1", "c")) is Reason.CAPACITY


def test_one_session_cannot_take_all_room(places: Capacity[str]) -> None:
    """A fourth of the budget is a session's share: dripping bodies refuse nobody else's."""
    places.enter("a1", "a")
    places.enter("b1", "b")
    assert places.keep("a1", 1000) is None
    assert why(places.keep("a1", 1)) is Reason.CAPACITY
    assert places.keep("b1", 1000) is None


def test_greedy_sessions_together_leave_places_for_the_others() -> None:
    """They get three fourths; who has few finds one until there is none for anybody."""
    places: Capacity[tuple[str, int]] = Capacity(max_calls=100, max_session_calls=60)
    taken = [name for number in range(60) for name in ("a", "b") if not places.enter((name, number), name)]
    assert len(taken) == 75 and why(places.enter(("a", 60), "a")) is Reason.CAPACITY
    for number in range(25):
        assert places.enter(("", number), f"honest {number}") is None
    assert why(places.enter(("", 25), "honest 25")) is Reason.CAPACITY


def test_greedy_sessions_together_leave_room_for_the_others() -> None:
    """Three of them fill what they may, and a small body still finds room."""
    places: Capacity[str] = Capacity(max_buffered=8 * LITTLE)
    for name in ("a", "b", "c"):
        places.enter(name, name)
        assert places.keep(name, 2 * LITTLE) is None
    for name in ("d", "e"):
        places.enter(name, name)
        assert places.keep(name, LITTLE) is None
    assert why(places.keep("d", 1)) is Reason.CAPACITY


def test_what_ends_gives_everything_back(places: Capacity[str]) -> None:
    """Once, however often it is told to end."""
    places.enter("a1", "a")
    assert places.enter("a1", "a") is None
    places.keep("a1", 700)
    places.leave("a1")
    places.leave("a1")
    assert (places.buffered, len(places.calls)) == (0, 0)
    assert places.enter("a1", "a") is None
    assert places.keep("a1", 1000) is None


def test_a_body_without_a_request_is_not_kept(places: Capacity[str]) -> None:
    """Whatever a plane does wrong."""
    assert why(places.keep("nobody", 1)) is Reason.INTERNAL_ERROR


def test_a_tenant_that_waits_leaves_room_for_others() -> None:
    """Alone it gets half; of what is then left the next one gets half, and places come back."""
    places = Places(8)
    assert [places.take("a") for _ in range(6)] == [True] * 4 + [False] * 2
    assert [places.take("b") for _ in range(3)] == [True, True, False]
    assert places.take("c") and len(places) == 7
    places.leave("a")
    assert not places.take("a") and places.of("a") == 3
    for tenant in ("a", "a", "a", "b", "b", "c"):
        places.leave(tenant)
    assert len(places) == 0
    places.leave("a")
    assert len(places) == 0
