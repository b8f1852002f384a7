"""Reports decisions that take long: whatever makes them slow can be used to take others' time (I9)."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from coatcheck.request.call import Call
from coatcheck.telemetry.events import Event, SlowDecision

SLOW_SECONDS: Final = 0.005
"""Of one decision. An ordinary one takes a hundredth of this."""
QUIET_SECONDS: Final = 1.0
"""Between two events: an attacker who finds a way to be slow must not fill the log with it."""


class SlowDecisions:
    """Of one plane; belongs to its event loop. `wall`: Unix seconds."""

    def __init__(
        self,
        tell: Callable[[Event], None],
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._wall = wall
        self._count = 0
        self._slowest = 0.0
        self._told_at = -QUIET_SECONDS

    @contextmanager
    def judging(self, call: Call) -> Iterator[None]:
        """While the verdict on `call` is made."""
        began = self._clock()
        try:
            yield
        finally:
            now = self._clock()
            if now - began > SLOW_SECONDS:
                self._note(call, now, now - began)

    def _note(self, call: Call, now: float, seconds: float) -> None:
        self._count += 1
        self._slowest = max(self._slowest, seconds)
        if now - self._told_at < QUIET_SECONDS:
            return
        session = call.session
        event = SlowDecision(
            self._wall(),
            call.request_id,
            session.id if session else "",
            session.tenant if session else "",
            self._slowest,
            self._count,
        )
        self._count, self._slowest, self._told_at = 0, 0.0, now
        self._tell(event)
