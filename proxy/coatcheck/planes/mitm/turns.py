"""Sandboxes take turns on the event loop, however many connections each has (I9).

asyncio serves whatever is ready, so a sandbox with 250 connections would get 250 turns for another's one.
Here a connection asks for a turn before it handles what it read. While the loop keeps up, none waits. When
more is ready than fits into SPELL_SECONDS, the sandbox that has used the least time goes next. This is
start-time fair queueing (Goyal, Vin, Cheng 1996), with seconds in place of bytes. After each spell the loop
looks at its sockets again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

logger = logging.getLogger(__name__)

SPELL_SECONDS: Final = 0.0005
"""A spell: how long turns follow each other without a look at what else has become ready."""
LOOK_PASSES: Final = 3
"""Passes of the loop until a connection that has become ready asks for its turn. The first finds the socket,
the second wakes the task that reads it, and in the third that task asks."""
FEW: Final = 4
"""A sandbox with no more connections than this counts as WEIGHT others. It asks for one thing at a time, and
would otherwise wait longer than a sandbox that asks for hundreds at once."""
WEIGHT: Final = 4.0
CREDIT_SECONDS: Final = 0.005
"""Virtual time that a sandbox may save up and be served first for. A sandbox that asks seldom would otherwise
wait for a turn of each of the others."""


class Sharer:
    """One sandbox's place among the others. Made by `Turns.join`."""

    __slots__ = ("begins", "connections", "key", "lined_up", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.begins = 0.0
        """The virtual time from which it is served next: the later, the more it has used."""
        self.connections = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.lined_up = False


class Turns:
    """Of one plane; belongs to its event loop."""

    def __init__(self) -> None:
        self._sharers: dict[str, Sharer] = {}
        self._now = 0.0
        """Virtual time: the latest `begins` of a turn that was given."""
        self._order: list[tuple[float, int, Sharer]] = []
        """Those that wait, by `begins`."""
        self._count = count()
        self._spell_ends = 0.0
        """Until when turns follow each other; 0: nothing was served in this pass of the loop."""
        self._looking = False
        self._serving: Sharer | None = None
        """The sandbox that was given a turn and has not ended it."""

    @property
    def idle(self) -> bool:
        """Whether nobody has a turn or waits for one."""
        return self._serving is None and not self._order

    def __len__(self) -> int:
        """Sandboxes with connections."""
        return len(self._sharers)

    def join(self, key: str) -> Sharer:
        """One more connection of the sandbox that `key` names. `leave` it when it ends."""
        sharer = self._sharers.get(key)
        if sharer is None:
            sharer = self._sharers[key] = Sharer(key)
        sharer.connections += 1
        return sharer

    def leave(self, sharer: Sharer) -> None:
        sharer.connections -= 1
        if not sharer.connections:
            del self._sharers[sharer.key]

    async def take(self, sharer: Sharer, work: Callable[[], None]) -> None:
        """Do `work` when it is `sharer`'s turn. It is a plain function, so that no turn lasts over an await.

        Raises what `work` raises, and RuntimeError when turns could not be given.
        """
        if not self._is_free():
            await self._wait(sharer)
        began = time.perf_counter()
        try:
            work()
        finally:
            try:
                self._end(sharer, time.perf_counter() - began)
            except Exception:
                self._break_off()
                raise

    def _is_free(self) -> bool:
        """Whether a turn can be taken at once."""
        if self._serving is not None or self._order or self._looking:
            return False
        if not self._spell_ends:
            asyncio.get_running_loop().call_soon(self._in_the_loop, self._next_pass)
            self._spell_ends = time.perf_counter() + SPELL_SECONDS
            return True
        return time.perf_counter() < self._spell_ends

    async def _wait(self, sharer: Sharer) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sharer.waiting.append(turn)
        try:
            self._line_up(sharer)
            await turn
        except BaseException:
            # One that was not given yet is passed over from now on.
            if not turn.cancel() and not turn.cancelled() and turn.exception() is None:
                asyncio.get_running_loop().call_soon(self._in_the_loop, self._end, sharer, 0.0)
            raise

    def _in_the_loop[*A](self, step: Callable[[*A], None], *args: *A) -> None:
        """What the event loop calls. It only logs what fails, and those that wait would wait for ever."""
        try:
            step(*args)
        except Exception:
            logger.exception("turns could not be given")
            self._break_off()

    def _break_off(self) -> None:
        """Turns could not be given: fail all that wait, which ends their connections, and begin anew."""
        waiting = {*self._sharers.values(), *(sharer for _, _, sharer in self._order)}
        if self._serving is not None:
            waiting.add(self._serving)
        self._order.clear()
        self._serving, self._looking, self._spell_ends = None, False, 0.0
        for sharer in waiting:
            sharer.lined_up = False
            while sharer.waiting:
                turn = sharer.waiting.popleft()
                if not turn.done():
                    turn.set_exception(RuntimeError("turns could not be given"))

    def _end(self, sharer: Sharer, seconds: float) -> None:
        """The turn took so long."""
        weight = WEIGHT if sharer.connections <= FEW else 1.0
        sharer.begins = max(sharer.begins, self._now - CREDIT_SECONDS) + seconds / weight
        if self._serving is sharer:
            self._serving = None
            self._line_up(sharer)
            if not self._order:
                self._spell_ends = 0.0
            elif time.perf_counter() < self._spell_ends:
                self._give()
            else:
                self._look(LOOK_PASSES)

    def _line_up(self, sharer: Sharer) -> None:
        if sharer.waiting and not sharer.lined_up and sharer is not self._serving:
            sharer.lined_up = True
            sharer.begins = max(sharer.begins, self._now - CREDIT_SECONDS)
            heappush(self._order, (sharer.begins, next(self._count), sharer))

    def _next_pass(self) -> None:
        """Turns were taken as they came. Connections that could not have one have asked by now."""
        if self._serving is None and not self._looking:
            self._look(LOOK_PASSES - 1 if self._order else 0)

    def _look(self, passes: int) -> None:
        self._looking = passes > 0
        if self._looking:
            asyncio.get_running_loop().call_soon(self._in_the_loop, self._look, passes - 1)
            return
        self._spell_ends = time.perf_counter() + SPELL_SECONDS if self._order else 0.0
        self._give()

    def _give(self) -> None:
        """Give the next turn. It begins in the loop's next pass."""
        while self._order:
            begins, _, sharer = heappop(self._order)
            sharer.lined_up = False
            while sharer.waiting:
                turn = sharer.waiting.popleft()
                if not turn.done():  # else its connection has ended
                    turn.set_result(None)
                    self._now, self._serving = max(self._now, begins), sharer
                    return
        self._spell_ends = 0.0
