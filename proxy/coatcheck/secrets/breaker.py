"""A circuit breaker on numbers: after enough failures in a row, fail at once instead of waiting again."""

import time
from collections.abc import Callable


class Breaker:
    """Closed until `threshold` failures in a row; then one attempt every `cooldown` seconds.

    An attempt whose outcome is never told costs one cooldown and nothing more, so a probe that is
    lost cannot hold the breaker open for ever.
    """

    __slots__ = ("_clock", "_cooldown", "_failures", "_open_until", "_threshold")

    def __init__(
        self, threshold: int = 3, cooldown: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = threshold
        self._cooldown = cooldown
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self._threshold

    def allows(self) -> bool:
        """Whether to try now. When open, a True is the one probe of this cooldown."""
        if not self.is_open:
            return True
        now = self._clock()
        if now < self._open_until:
            return False
        self._open_until = now + self._cooldown
        return True

    def retry_after(self) -> float:
        """Seconds until the next probe; 0 when closed."""
        return max(0.0, self._open_until - self._clock()) if self.is_open else 0.0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        if self.is_open:
            self._open_until = self._clock() + self._cooldown
