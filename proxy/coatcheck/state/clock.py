"""Both clocks in one reading, so that a wall clock that steps back revives nothing."""

import time
from collections.abc import Callable
from threading import Lock

from coatcheck.decision.session import Now


def awake() -> float:
    """Seconds on a clock that never steps, and that goes on while the machine is suspended: a lease whose
    keeper fell silent hours ago must not live on because we slept, too. `time.monotonic` stops there."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """The wall clock that only goes forward, and the monotonic one.

    `now().wall` is never less than any earlier reading, than `high_water` (what an earlier run of the
    daemon had seen, kept by the state's database), or than the last reading plus the monotonic time
    since: after a step back, time goes on at its normal pace and expiry still comes.
    """

    def __init__(
        self,
        high_water: float = 0.0,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = awake,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._lock = Lock()  # the control API's thread and the plane's both ask
        self._mark = (high_water, monotonic())

    def now(self) -> Now:
        with self._lock:
            monotonic = self._monotonic()
            marked_wall, marked_monotonic = self._mark
            wall = max(self._wall(), marked_wall + (monotonic - marked_monotonic))
            self._mark = (wall, monotonic)
            return Now(wall, monotonic)

    def raise_to(self, high_water: float) -> None:
        """Never show a wall time before `high_water`, Unix seconds."""
        with self._lock:
            wall, monotonic = self._mark
            self._mark = (max(wall, high_water), monotonic)
