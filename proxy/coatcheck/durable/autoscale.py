"""In daemon and supervisor: decides when a sandbox's memory grows or shrinks, from what was in use and
when.

Up at once, since a program that waits for memory is about to be killed for it; then not again for a while, so
that one that leaks does not run through a host in a second. Down only after a long time of low use: growing
again costs the program that needs it, keeping costs the host a little memory.
"""

from dataclasses import dataclass, replace

ROOM_FACTOR = 2
"""Up is to twice the size; down is to twice what was in use at most: neither is followed by the other."""


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Of one sandbox. Percents are of its current memory; times are seconds."""

    up_percent: int = 75
    """In use, from which it grows. A quarter is what a program takes while a second goes by."""
    down_percent: int = 40
    """In use, up to which it has too much. Of the size that follows half was in use."""
    cooldown_seconds: float = 60.0
    """After growing, before it grows again."""
    down_after_seconds: float = 900.0
    """Of low use without a break, before it shrinks: longer than a build's pause for a test run."""


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered between two samples. Times are of one monotonic clock."""

    grew_at: float | None = None
    """When it was last told to grow, whether or not it could."""
    low_since: float | None = None
    """Since when every sample was low."""
    peak_mib: int = 0
    """The most that was in use since then."""


def judge(
    rule: Autoscale,
    least_mib: int,
    most_mib: int,
    now_mib: int,
    used_mib: int | None,
    at: float,
    past: History,
) -> tuple[int, History]:
    """The memory that it should have from now on, and what to remember.

    `used_mib`: None where nothing could be measured; then it stays, and a time of low use has to begin anew.
    Whatever is claimed to be in use, the answer is from `least_mib` to `most_mib`.
    """
    if used_mib is None:
        return now_mib, replace(past, low_since=None, peak_mib=0)
    if used_mib * 100 >= rule.up_percent * now_mib:
        kept = replace(past, low_since=None, peak_mib=0)
        ready = past.grew_at is None or at - past.grew_at >= rule.cooldown_seconds
        if now_mib >= most_mib or not ready:
            return now_mib, kept
        return min(most_mib, now_mib * ROOM_FACTOR), replace(kept, grew_at=at)
    if now_mib <= least_mib or used_mib * 100 > rule.down_percent * now_mib:
        return now_mib, replace(past, low_since=None, peak_mib=0)
    since = at if past.low_since is None else past.low_since
    peak = max(past.peak_mib, used_mib)
    if at - since < rule.down_after_seconds:
        return now_mib, replace(past, low_since=since, peak_mib=peak)
    return max(least_mib, peak * ROOM_FACTOR), replace(past, low_since=None, peak_mib=0)
