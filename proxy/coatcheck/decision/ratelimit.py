"""How often: the generic cell rate algorithm (GCRA) on plain numbers.

A bucket is one number, its *theoretical arrival time* (TAT): when the bucket will be full again, in
seconds of the caller's monotonic clock. 0 is a full bucket. Each call returns the new number together
with the decision. `state.buckets` keeps those of a policy's limits; `Rates` keeps those of fixed rates.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from math import floor

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.policy import Limit, LimitKind, LimitScope, Rule
from coatcheck.decision.session import Session

type BucketKey = tuple[str | float, ...]

_ROUNDING = 1e-6
"""Seconds. Clocks are binary fractions: 7950.8 + 3600 - 7950.8 is not 3600 but a picosecond more or less, and
a full bucket must not refuse for that."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` units in `period` seconds, with `burst` at once."""

    count: int
    period: float
    burst: int


@dataclass(frozen=True, slots=True)
class Spent:
    tat: float
    """The bucket after spending."""
    remaining: int
    """How many more units may be spent right now."""


@dataclass(frozen=True, slots=True)
class Charged:
    tat: float
    exceeded: Deny | None
    """Set once more was used than the limit allows: the stream must end."""


def take(rate: Rate | Limit, tat: float, now: float, cost: int) -> tuple[float, float]:
    """The bucket after `cost` more units, and by how many seconds they come too early; up to 0 they pass."""
    interval = rate.period / rate.count
    new = max(tat, now) + cost * interval
    return new, new - now - rate.burst * interval


class Rates[Key: Hashable]:
    """A bucket for each key, all of one rate. `now` is of one monotonic clock.

    Of more than `most` keys the one that came longest ago is forgotten: it starts anew.
    """

    def __init__(self, rate: Rate, most: int) -> None:
        self.rate = rate
        self.most = most
        self._tats: OrderedDict[Key, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tats)

    def wait(self, key: Key, now: float) -> float:
        """Take one unit and return 0.0; or take none and return the seconds after which to ask again."""
        new, early = take(self.rate, self._tats.get(key, 0.0), now, 1)
        if early > _ROUNDING:
            return max(early, self.rate.period / self.rate.count)
        self._keep(key, new)
        return 0.0

    def delay(self, key: Key, now: float) -> float:
        """Take one unit, and return for how many seconds to hold what it is for; mostly 0.0."""
        new, early = take(self.rate, self._tats.get(key, 0.0), now, 1)
        self._keep(key, new)
        return early if early > _ROUNDING else 0.0

    def forget(self, key: Key) -> None:
        """Its bucket is full again."""
        self._tats.pop(key, None)

    def _keep(self, key: Key, tat: float) -> None:
        self._tats[key] = tat
        self._tats.move_to_end(key)
        if len(self._tats) > self.most:
            self._tats.popitem(last=False)


def spend(limit: Limit, tat: float, now: float, cost: int = 1) -> Spent | Deny:
    """Spend `cost` units before they are used, or Deny with the seconds after which they would be there.

    A denied attempt costs nothing. `cost` 0 asks whether anything is left of a limit in bytes.
    """
    new, early = take(limit, tat, now, cost)
    if early > _ROUNDING or (cost == 0 and early >= 0):
        return _deny(limit, early)
    return Spent(new, floor(-early * limit.count / limit.period + 1e-9))


def charge(limit: Limit, tat: float, now: float, cost: int) -> Charged:
    """Take `cost` units that have been used already, such as the bytes of a chunk.

    The bucket may go into debt, by one chunk at most if the stream ends when `exceeded` says so; the
    debt is paid by waiting.
    """
    new, early = take(limit, tat, now, cost)
    return Charged(new, _deny(limit, early) if early > _ROUNDING else None)


def enter(limit: Limit, running: int) -> int | Deny:
    """One more of what runs at once: the new count, or Deny. Leaving is `running - 1`."""
    if running >= limit.count:
        return Deny(Reason.CONCURRENCY_LIMITED, f"{limit.count} at once per {limit.per}", retry_after=1.0)
    return running + 1


def bucket_key(limit: Limit, session: Session, rule: Rule, credential: str = "") -> BucketKey:
    """What shares this limit's bucket.

    A limit counts what its rule lets through, except per credential: there every rule that hands the
    credential out counts. The count is left out, so that a reload that changes it refills nothing.
    """
    window, name = (limit.kind, limit.period), limit.of or rule.name
    match limit.per:
        case LimitScope.SESSION:
            return (limit.per, session.policy, name, *window, session.id)
        case LimitScope.SUBJECT:
            return (limit.per, session.policy, name, *window, session.tenant, session.subject)
        case LimitScope.TENANT:
            return (limit.per, session.policy, name, *window, session.tenant)
        case LimitScope.RULE:
            return (limit.per, session.policy, name, *window)
        case LimitScope.CREDENTIAL:
            return (limit.per, session.policy, *window, credential)


def _deny(limit: Limit, seconds: float) -> Deny:
    reason = Reason.RATE_LIMITED if limit.kind is LimitKind.REQUESTS else Reason.BYTES_LIMITED
    detail = f"{limit.count} {limit.kind} in {limit.period:g} s per {limit.per}"
    return Deny(reason, detail, retry_after=max(seconds, limit.period / limit.count))
