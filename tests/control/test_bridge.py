"""To the plane's loop and back."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from coatcheck.control import bridge
from coatcheck.control.bridge import PlaneBridge
from coatcheck.control.problem import ControlProblem


@pytest.fixture
def plane() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


async def where() -> int:
    return threading.get_ident()


async def test_work_is_done_on_the_planes_loop(plane: asyncio.AbstractEventLoop) -> None:
    """And its result comes back, as do its errors."""
    assert await PlaneBridge(plane).call(where) != threading.get_ident()

    async def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await PlaneBridge(plane).call(fails)


async def test_a_stuck_plane_is_given_up_and_what_was_asked_is_cancelled(
    plane: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not open something later for a request that failed."""
    monkeypatch.setattr(bridge, "ANSWER_SECONDS", 0.1)
    stuck, done = threading.Event(), []
    plane.call_soon_threadsafe(stuck.wait, 10)

    async def work() -> None:
        done.append(1)

    with pytest.raises(ControlProblem) as problem:
        await PlaneBridge(plane).call(work)
    stuck.set()
    assert problem.value.reason == "plane_stalled"
    assert problem.value.status == 503
    assert await PlaneBridge(plane).call(where)  # the loop goes on
    assert done == []


async def test_a_closed_loop_is_a_plane_that_does_not_answer() -> None:
    """While the daemon stops."""
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(ControlProblem):
        await PlaneBridge(loop).call(where)


async def test_its_age_grows_while_it_is_stuck(
    plane: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is small again after."""
    monkeypatch.setattr(bridge, "BEAT_SECONDS", 0.01)
    beaten = PlaneBridge(plane)
    beating = asyncio.create_task(beaten.keep_beating())
    await asyncio.sleep(0.1)
    stuck = threading.Event()
    plane.call_soon_threadsafe(stuck.wait, 10)
    await asyncio.sleep(0.3)
    assert beaten.age > 0.2
    stuck.set()
    for _ in range(100):
        await asyncio.sleep(0.02)
        if beaten.age < 0.1:
            break
    assert beaten.age < 0.1
    beating.cancel()
