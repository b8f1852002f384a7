"""How fast one sandbox's connections may follow each other (I9).

A TLS handshake takes milliseconds of the plane's core, and the plane serves whoever has connections ready:
who opens most would get most of it.
"""

from typing import Final

PER_SECOND: Final = 50
"""New connections of one sandbox, in the long run: a fifth of a slow core. Clients keep theirs; those that do
not, and loop, wait."""
BURST: Final = 256
"""At once: as many as one sandbox may have."""
MAX_KEYS: Final = 20_000
"""Sandboxes that are told apart, about 3 MB."""
_SWEEP_SECONDS: Final = 1.0


class Pace:
    """GCRA (decision/ratelimit), except that one too many waits instead of being refused. Times are seconds
    of one monotonic clock."""

    def __init__(self) -> None:
        self._full_at: dict[str, float] = {}
        """When each sandbox may have its whole burst again."""
        self._swept_at = 0.0

    def wait(self, key: str, now: float) -> float:
        """One more connection of `key`: how long it must wait before it is looked at; mostly 0."""
        if len(self._full_at) >= MAX_KEYS and now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            self._full_at = {each: at for each, at in self._full_at.items() if at > now}
        full_at = max(self._full_at.get(key, now), now) + 1 / PER_SECOND
        if key in self._full_at or len(self._full_at) < MAX_KEYS:
            self._full_at[key] = full_at
        return max(0.0, full_at - now - BURST / PER_SECOND)
