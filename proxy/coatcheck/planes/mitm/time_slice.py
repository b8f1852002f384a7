"""Time slices: how long the data of one read may keep the plane's event loop busy (I5, I9).

A read of 64 KiB can hold 30,000 empty WebSocket frames, or 10,000 chunks of one byte: seconds of work in
which nothing else runs on the plane's loop, revocations included. So a layer that takes small pieces checks
the time between them, and leaves the rest for a later slice.
"""

import math
import time

from mitmproxy.proxy import events, layer

SLICE_SECONDS = 0.002
"""A read of an honest peer is a handful of pieces, and takes less."""


class Resume(events.Event):
    """Continue: `unfinished` are the layers that still have pieces to handle."""

    def __init__(self, unfinished: frozenset[layer.Layer]) -> None:
        self.unfinished = unfinished


class TimeSlice:
    """Belongs to one connection, which continues when it is its turn again (`turns`)."""

    def __init__(self) -> None:
        self._ends = math.inf
        self._unfinished: set[layer.Layer] = set()

    def begin(self) -> None:
        self._ends = time.monotonic() + SLICE_SECONDS

    def is_over(self, who: layer.Layer) -> bool:
        """Whether the slice is used up: then `who` leaves its next piece for the `Resume` that it will
        get."""
        if time.monotonic() < self._ends:
            return False
        self._unfinished.add(who)
        return True

    def has_left(self, who: layer.Layer) -> bool:
        """Whether `who` left something in hand. Then its connection's end, which TLS tells with the last
        bytes, waits until that is gone through: what was said before it must not be lost."""
        return who in self._unfinished

    def take_unfinished(self) -> Resume | None:
        """The event that continues what was left, if anything was."""
        unfinished, self._unfinished = frozenset(self._unfinished), set()
        return Resume(unfinished) if unfinished else None
