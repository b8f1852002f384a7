"""Who waits longest is next, and who has it may take it again."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coatcheck.state.fair_lock import FairLock
from tests.system.fleet.fleet import PATIENCE, until


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def test_whoever_lets_go_waits_behind_those_who_waited(threads: ThreadPoolExecutor) -> None:
    """However fast it comes back: the order is that in which they came."""
    lock, order = FairLock(), list[int]()

    def take(number: int) -> None:
        with lock:
            order.append(number)

    with lock:
        waiting = []
        for number in range(5):
            waiting.append(threads.submit(take, number))
            until(lambda number=number: lock.waiting == number + 1)
    take(5)
    for each in waiting:
        each.result(PATIENCE)
    assert order == [0, 1, 2, 3, 4, 5]


def test_who_has_it_may_take_it_again_and_nobody_else_meanwhile(threads: ThreadPoolExecutor) -> None:
    """Also when what was done inside failed."""
    lock, inside = FairLock(), threading.Event()

    def take() -> None:
        with lock:
            inside.set()

    with lock:
        with pytest.raises(ValueError, match="inside"), lock:
            raise ValueError("inside")
        other = threads.submit(take)
        until(lambda: bool(lock.waiting))
        with lock:
            pass
        assert not inside.is_set()
    other.result(PATIENCE)
    take()


def test_no_two_have_it_at_once(threads: ThreadPoolExecutor) -> None:
    """A count that is read and written in two steps comes out right."""
    lock, count = FairLock(), [0]

    def add() -> None:
        for _ in range(200):
            with lock:
                seen = count[0]
                with lock:
                    count[0] = seen + 1

    for each in [threads.submit(add) for _ in range(8)]:
        each.result(PATIENCE)
    assert count == [1_600]
