"""Turns: how long what one read brought may keep everybody else of the plane waiting (I5, I9).

A read of 64 KiB holds 30,000 empty WebSocket frames, or 10,000 chunks of one byte: seconds of work in which
nothing else runs on the plane's loop, revocations included. So whoever takes small pieces looks at the time
between them, and leaves the rest for a later turn.
"""

import asyncio
import math
import time

from mitmproxy.proxy import events, layer

TURN_SECONDS = 0.002
"""A read of an honest peer is a handful of pieces, and takes less."""


class Resume(events.Event):
    """`unfinished`: the layers that were left with pieces in hand, to go on."""

    def __init__(self, unfinished: frozenset[layer.Layer]) -> None:
        self.unfinished = unfinished


class TimeSlice:
    """Of one connection. `queue` is the plane's: of all connections that have more in hand one goes on at a
    time, so that a turn of the loop does not get longer with their number."""

    def __init__(self, queue: asyncio.Lock) -> None:
        self.queue = queue
        self._ends = math.inf
        self._unfinished: set[layer.Layer] = set()

    def begin(self) -> None:
        self._ends = time.monotonic() + TURN_SECONDS

    def is_over(self, who: layer.Layer) -> bool:
        """Whether `who` must leave its next piece for `Resume`, which it will get."""
        if time.monotonic() < self._ends:
            return False
        self._unfinished.add(who)
        return True

    def has_left(self, who: layer.Layer) -> bool:
        """Whether `who` left something in hand. Then its connection's end, which TLS tells with the last
        bytes, waits until that is gone through: what was said before it must not be lost."""
        return who in self._unfinished

    def take_unfinished(self) -> Resume | None:
        """What is next, if something was left."""
        unfinished, self._unfinished = frozenset(self._unfinished), set()
        return Resume(unfinished) if unfinished else None
