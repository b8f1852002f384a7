"""What happens to sandboxes, for followers of their events: the last ones by number, in memory."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from coatcheck.telemetry.events import SandboxEvent

KEPT: Final = 4096
"""Some eight a sandbox's life: five hundred lives, 2 MiB. A reader that fell behind by more is told so."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """One event; a later one has a greater number, also after the daemon has begun anew."""

    number: int
    event: SandboxEvent


@dataclass(frozen=True, slots=True)
class Page:
    """What there is after a number."""

    events: tuple[Numbered, ...]
    next: int
    """Ask after this one next time."""
    missed: bool
    """Some that came after the number that was asked for are not kept any more."""


class SandboxFeed:
    """Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        # By the clock, in milliseconds: one number a restart apart is enough to go on where one was.
        self._next = int(now() * 1000)
        self._events: deque[Numbered] = deque(maxlen=KEPT)
        self._lock = Lock()

    def put(self, event: SandboxEvent) -> None:
        with self._lock:
            self._events.append(Numbered(self._next, event))
            self._next += 1

    def after(self, number: int | None, wanted: Callable[[SandboxEvent], bool], most: int) -> Page:
        """At most `most` that are `wanted`, the oldest first. None: from now on."""
        with self._lock:
            events, following = tuple(self._events), self._next
        if number is None:
            return Page((), following - 1, missed=False)
        oldest = events[0].number if events else following
        found: list[Numbered] = []
        last = max(number, following - 1)
        for each in events:
            if each.number > number and wanted(each.event):
                found.append(each)
                if len(found) == most:
                    last = each.number
                    break
        return Page(tuple(found), last, missed=number + 1 < oldest)
