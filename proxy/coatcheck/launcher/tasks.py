"""In the supervisor: runs several things at once, blocking ones too, and leaves none of them behind."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """All results. The first error, once all the others have ended, too."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


async def in_thread[T](work: Callable[[], T]) -> T:
    """What `work` returns. Cancelled, it ends first: what it works on is not closed or removed under it."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise
