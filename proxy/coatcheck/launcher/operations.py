"""In the supervisor: does one thing at a time to a machine, to its end, even if the caller that asked has
left."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from coatcheck.launcher.stream import ChannelBroken


class OperationQueue:
    """Operations one after the other, each to its end, waited for or not."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._doing: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def take[T](self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` returns or raises; ChannelBroken when the sandbox ended. It continues
        when its caller is cancelled: a half-done operation is not a state."""
        task = self.start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not cancelled():
                raise ChannelBroken("the sandbox ended in the meantime") from None
            raise

    def start[T](self, work: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
        """The same, waited for by nobody."""

        async def in_turn() -> T:
            async with self._turn:
                if self._closed:
                    raise ChannelBroken("the sandbox ended in the meantime")
                return await work()

        task = asyncio.create_task(in_turn())
        self._doing.add(task)
        task.add_done_callback(self._done)
        return task

    def aside(self, work: Coroutine[Any, Any, Any]) -> None:
        """Beside what is being done: it may take long, or come to nothing."""
        task = asyncio.create_task(work)
        self._doing.add(task)
        task.add_done_callback(self._done)

    def close(self) -> None:
        """The sandbox ends: what is being done is of no use any more."""
        self._closed = True
        for task in self._doing:
            task.cancel()

    async def closed(self) -> None:
        """When nothing is being done any more."""
        await asyncio.gather(*self._doing, return_exceptions=True)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._doing.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has been told, or has gone


def cancelled() -> bool:
    """Whether the task that asks is to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
