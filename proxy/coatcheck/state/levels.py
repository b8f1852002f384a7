"""Which limits are nearly used up, for the page: read from copies of the buckets, in any thread."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coatcheck.decision.policy import Limit, LimitKind, LimitScope, Policy
from coatcheck.decision.ratelimit import BucketKey

NEAR: Final = 0.8
"""Of a bucket: from here on a limit is worth a look."""
MAX_LEVELS: Final = 50


@dataclass(frozen=True, slots=True)
class Level:
    """How much of one limit is used right now."""

    policy: str
    rule: str
    """Empty for limits per credential, which count every rule that hands it out."""
    limit: Limit
    who: tuple[str, ...]
    """A session's id; tenant and subject; a tenant; a credential; or nobody, for a rule's own limit."""
    used: float
    """1 is full: the next request is refused."""


def levels(
    tats: Mapping[BucketKey, float],
    running: Mapping[BucketKey, int],
    policies: Iterable[Policy],
    now: float,
    sees: Callable[[LimitScope, tuple[str, ...]], bool],
) -> list[Level]:
    """The fullest first, at most MAX_LEVELS; limits that are not in force any more are left out.

    `now`: monotonic seconds, as the buckets were filled by. `sees`: whether the caller may know of a limit
    of this scope for these.
    """
    known: dict[BucketKey, tuple[str, str, Limit]] = {}
    for policy in policies:
        for rule in policy.rules:
            for limit in rule.limits:
                window = (limit.kind, limit.period)
                if limit.per is LimitScope.CREDENTIAL:
                    known[(limit.per, policy.name, *window)] = (policy.name, "", limit)
                else:
                    known[(limit.per, policy.name, rule.name, *window)] = (policy.name, rule.name, limit)
    found: list[Level] = []
    filled = [(key, tat - now) for key, tat in tats.items() if tat > now]
    for key, much in (*filled, *running.items()):
        length = 4 if key[0] == LimitScope.CREDENTIAL else 5
        of, who = known.get(key[:length]), tuple(str(part) for part in key[length:])
        if of is not None and (used := _used(of[2], much)) >= NEAR and sees(of[2].per, who):
            found.append(Level(*of, who, used))
    return sorted(found, key=lambda level: -level.used)[:MAX_LEVELS]


def together(here: Iterable[Level], elsewhere: Iterable[Level]) -> list[Level]:
    """Each limit once, as the daemon that knows more of it sees it; the fullest first, at most MAX_LEVELS."""
    found: dict[tuple[str, str, Limit, tuple[str, ...]], Level] = {}
    for level in (*here, *elsewhere):
        key = (level.policy, level.rule, level.limit, level.who)
        if key not in found or found[key].used < level.used:
            found[key] = level
    return sorted(found.values(), key=lambda level: -level.used)[:MAX_LEVELS]


def _used(limit: Limit, much: float) -> float:
    """`much`: what runs at once, or the seconds until the bucket has all its room again."""
    if limit.kind is LimitKind.CONCURRENT:
        return much / limit.count
    return much / (limit.burst * limit.period / limit.count)
