"""Work in threads and work at once: what is cancelled, or fails, leaves nothing running behind."""

import asyncio
import threading

import pytest

from coatcheck.launcher.tasks import in_thread, together


async def test_what_a_thread_returns_or_raises_comes_back() -> None:
    """As if it had been called."""
    assert await in_thread(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_thread_ends_before_its_canceller_goes_on(fails: bool) -> None:
    """It writes to files that the canceller removes; its own error is then nobody's."""
    entered, leave = threading.Event(), threading.Event()
    ended = []

    def work() -> None:
        entered.set()
        leave.wait(20)
        ended.append(True)
        if fails:
            raise OSError

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(entered.wait, 20)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_the_first_error_ends_the_others() -> None:
    """Plain, as it was raised; and all results in order when there is none."""
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def fails() -> None:
        raise OSError("first")

    async def gives(value: int) -> int:
        return value

    with pytest.raises(OSError, match="first"):
        await together(waits(), fails())
    assert ended == [True]
    assert await together(gives(1), gives(2)) == [1, 2]
