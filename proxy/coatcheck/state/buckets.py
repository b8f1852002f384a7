"""The rate limits' buckets: a bounded map of numbers, and the counts of what runs at once.

Belongs to the plane's thread; nothing here locks. Times are monotonic seconds.
"""

from asyncio import Future
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.policy import Limit, LimitKind, LimitScope, Rule
from coatcheck.decision.ratelimit import BucketKey, bucket_key, charge, enter, spend
from coatcheck.decision.session import Session
from coatcheck.state.levels import Level

MAX_BUCKETS = 200_000
"""About 60 MB at worst: 10,000 sessions with twenty limits each."""
_SWEEP_SECONDS = 1.0
"""Looking for full buckets costs milliseconds at MAX_BUCKETS; refused callers cannot make it more often."""


@dataclass(frozen=True, slots=True)
class ShareAwaited:
    """Whether the request may begin is known once `future` is done: then it is to be asked again."""

    future: Future[None]


class Shares(Protocol):
    """What other daemons have used of the same limits. Each is called on the plane's loop."""

    def shares(self, limit: Limit, session: Session) -> bool: ...

    def admit(self, keys: Iterable[tuple[Limit, BucketKey]], now: float) -> Deny | ShareAwaited | None: ...

    def began(self, keys: Iterable[tuple[Limit, BucketKey]], now: float) -> None: ...

    def ended(self, keys: Iterable[tuple[Limit, BucketKey]]) -> None: ...

    def passed(self, limit: Limit, key: BucketKey, count: int, now: float) -> Deny | None: ...

    def used(self) -> tuple[dict[BucketKey, float], dict[BucketKey, int]]:
        """`Buckets.used` of all daemons together. In any thread."""


class NullPeers:
    """`Shares` of a daemon that keeps its limits by itself."""

    def shares(self, limit: Limit, session: Session) -> bool:
        return False

    def admit(self, keys: Iterable[tuple[Limit, BucketKey]], now: float) -> None:
        return None

    def began(self, keys: Iterable[tuple[Limit, BucketKey]], now: float) -> None:
        return None

    def ended(self, keys: Iterable[tuple[Limit, BucketKey]]) -> None:
        return None

    def passed(self, limit: Limit, key: BucketKey, count: int, now: float) -> None:
        return None

    def used(self) -> tuple[dict[BucketKey, float], dict[BucketKey, int]]:
        return {}, {}


class Buckets:
    """Spends from every limit of a rule, or from none.

    Only a full bucket is ever dropped, because dropping a full one changes nothing. Where that makes no
    room the request is refused (CAPACITY): forgetting a used-up limit would lift it.
    """

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max = max_buckets
        self._tats: dict[BucketKey, float] = {}
        self.running: dict[BucketKey, int] = {}
        """Requests under way, by the limit that counts them."""
        self._swept_at = float("-inf")
        self.shares: Shares = NullPeers()
        """Another where a fleet of daemons keeps limits together."""
        self.near_elsewhere: Callable[[], Sequence[Level]] = tuple
        """Limits that a fleet's other daemons see nearly used up."""

    def __len__(self) -> int:
        """How many limits are remembered: those that were used lately."""
        return len(self._tats)

    def take(
        self, session: Session, rule: Rule, credentials: Iterable[str], now: float
    ) -> Deny | ShareAwaited | None:
        """Admit one request under the rule's limits. After None, `leave` must be called once, always."""
        if not rule.limits:
            return None
        tats: dict[BucketKey, float] = {}
        running: dict[BucketKey, int] = {}
        shared: list[tuple[Limit, BucketKey]] = []
        for limit, key in _keys(session, rule, credentials):
            if self.shares.shares(limit, session):
                shared.append((limit, key))
            if limit.kind is LimitKind.CONCURRENT:
                count = enter(limit, running.get(key, self.running.get(key, 0)))
                if isinstance(count, Deny):
                    return count
                running[key] = count
                continue
            cost = 1 if limit.kind is LimitKind.REQUESTS else 0
            spent = spend(limit, tats.get(key, self._tats.get(key, 0.0)), now, cost)
            if isinstance(spent, Deny):
                return spent
            if cost:
                tats[key] = spent.tat
        if not self._room_for(sum(key not in self._tats for key in tats), now):
            return Deny(Reason.CAPACITY, f"{self._max} rate limit buckets are in use", retry_after=1.0)
        answer = self.shares.admit(shared, now)
        if answer is not None:
            return answer
        self.shares.began(shared, now)
        self._tats.update(tats)
        self.running.update(running)
        return None

    def leave(self, session: Session, rule: Rule, credentials: Iterable[str]) -> None:
        """The request that `take` admitted has ended. The same values as then, even if policy has changed."""
        shared: list[tuple[Limit, BucketKey]] = []
        for limit, key in _keys(session, rule, credentials, LimitKind.CONCURRENT):
            if self.shares.shares(limit, session):
                shared.append((limit, key))
            count = self.running.get(key, 0) - 1
            if count > 0:
                self.running[key] = count
            else:
                self.running.pop(key, None)
        self.shares.ended(shared)

    def charge(
        self,
        session: Session,
        rule: Rule,
        credentials: Iterable[str],
        kind: LimitKind,
        count: int,
        now: float,
    ) -> Deny | None:
        """Take `count` bytes (kind BYTES_UP or BYTES_DOWN) that passed; Deny when the stream must end."""
        exceeded: Deny | None = None
        for limit, key in _keys(session, rule, credentials, kind):
            if key not in self._tats and not self._room_for(1, now):
                return Deny(Reason.CAPACITY, f"{self._max} rate limit buckets are in use", retry_after=1.0)
            charged = charge(limit, self._tats.get(key, 0.0), now, count)
            self._tats[key] = charged.tat
            exceeded = exceeded or charged.exceeded
            if self.shares.shares(limit, session):
                exceeded = exceeded or self.shares.passed(limit, key, count, now)
        return exceeded

    def used(self) -> tuple[dict[BucketKey, float], dict[BucketKey, int]]:
        """Copies of the buckets and of what runs at once, a fleet's. In any thread: a copy is one step."""
        tats, running = self._tats.copy(), self.running.copy()
        everywhere, everything = self.shares.used()
        for key, tat in everywhere.items():
            tats[key] = max(tat, tats.get(key, tat))
        return tats, running | everything

    def _room_for(self, count: int, now: float) -> bool:
        if len(self._tats) + count <= self._max:
            return True
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            self._tats = {key: tat for key, tat in self._tats.items() if tat > now}
        return len(self._tats) + count <= self._max


def _keys(
    session: Session, rule: Rule, credentials: Iterable[str], kind: LimitKind | None = None
) -> list[tuple[Limit, BucketKey]]:
    """Each limit (of one kind) with its buckets. Per credential there is one bucket a credential in use."""
    names = tuple(credentials)
    return [
        (limit, bucket_key(limit, session, rule, name))
        for limit in rule.limits
        if kind is None or limit.kind is kind
        for name in (names if limit.per is LimitScope.CREDENTIAL else ("",))
    ]
