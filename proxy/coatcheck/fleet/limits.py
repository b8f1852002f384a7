"""Limits that a whole fleet keeps: each daemon may run a little ahead of the database, and no further.

All daemons together may be half a burst ahead, or one request each where that is more. So much more than the
policy says may pass at a moment, but not over time, because it is paid back by waiting. Every daemon also
enforces each limit alone, whatever the database says. So a program that can write to the database can
multiply a limit by the number of daemons, and no more. A crash of the database loses what was used; limits
begin used up then.
"""

import asyncio
import hashlib
import hmac
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import OriginClass
from coatcheck.decision.policy import Limit, LimitKind, LimitScope
from coatcheck.decision.ratelimit import BucketKey, charge, spend
from coatcheck.decision.session import Session
from coatcheck.fleet.connection import LEAVING_SECONDS, SharedStateDown
from coatcheck.fleet.store import Store
from coatcheck.state.buckets import ShareAwaited

logger = logging.getLogger(__name__)

REPORT_SECONDS: Final = 0.1
"""How long use may go unreported to the others, if no request waits for it."""
FRESH_SECONDS: Final = 0.1
"""How old the others' count of running requests may be when it refuses a request."""
REFRESH_SECONDS: Final = 20.0
"""A long request is reported again after this long, because each report counts for a minute: the daemon may
have died."""
TIDY_SECONDS: Final = 1.0
"""Between two passes over all shares, which drop the empty ones and report long requests again."""
MAX_SHARES: Final = 200_000
"""As many as there may be buckets; those that say nothing are dropped each second."""
AT_ONCE: Final = 500
"""Limits in one statement, some milliseconds."""


@dataclass(slots=True)
class _Share:
    """One bucket, as far as it is shared. Units are requests or bytes."""

    limit: Limit
    told: float = 0.0
    """The theoretical arrival time that the database told, on our monotonic clock."""
    unreported: int = 0
    reporting: int = 0
    running: int = 0
    reported_running: int = 0
    others: int = 0
    """What runs at the other daemons."""
    told_at: float = float("-inf")

    def used(self, now: float) -> float:
        own = (self.unreported + self.reporting) * self.limit.period / self.limit.count
        return max(self.told, now) + own

    def is_idle(self, now: float) -> bool:
        return self.told <= now and not (
            self.unreported or self.reporting or self.running or self.reported_running
        )


class SharedLimits:
    """Belongs to the plane's loop. `state.buckets.Shares`."""

    def __init__(
        self,
        store: Store,
        key: bytes,
        members: Callable[[], int],
        monotonic: Callable[[], float],
        max_silence: float,
    ) -> None:
        self._store, self._key, self._members, self._monotonic = store, key, members, monotonic
        self._max_silence = max_silence
        """Seconds after which a daemon that cannot say what it runs runs nothing."""
        self._since: float | None = None
        self._shares: dict[BucketKey, _Share] = {}
        self._changed: dict[BucketKey, None] = {}
        self._awaited: asyncio.Future[None] | None = None
        self._news = asyncio.Event()
        self._tidied_at = float("-inf")
        self._worker = ThreadPoolExecutor(1, "shared-limits")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """On the plane's loop."""
        self._task = asyncio.create_task(self._report_for_ever(), name="shared limits")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        gone = asyncio.wrap_future(self._worker.submit(self._store.disconnect))
        self._worker.shutdown(wait=False)
        await asyncio.wait([gone], timeout=LEAVING_SECONDS)

    # --- for Buckets ---------------------------------------------------------------------------------------

    def shares(self, limit: Limit, session: Session) -> bool:
        """Whether others may use it up, too: a socket is one daemon's."""
        return limit.per is not LimitScope.SESSION or session.origin.kind is not OriginClass.SOCKET

    def admit(self, keys: Iterable[tuple[Limit, BucketKey]], now: float) -> Deny | ShareAwaited | None:
        """Whether one more request may begin. Nothing is spent."""
        awaited = False
        for limit, key in keys:
            share = self._share(limit, key, now)
            if share is None:
                return Deny(Reason.CAPACITY, f"{MAX_SHARES} shared limits are in use", retry_after=1.0)
            if limit.kind is LimitKind.CONCURRENT:
                if share.others + share.running >= limit.count:
                    if now < share.told_at + FRESH_SECONDS:
                        what = f"{limit.count} at once per {limit.per}, in all daemons"
                        return Deny(Reason.CONCURRENCY_LIMITED, what, retry_after=1.0)
                    awaited = self._ask(key)
                elif share.running - share.reported_running >= self._ahead(limit.count):
                    awaited = self._ask(key)
                continue
            cost = 1 if limit.kind is LimitKind.REQUESTS else 0
            spent = spend(limit, share.used(now), now, cost)
            if isinstance(spent, Deny):
                return spent
            if cost and share.unreported + share.reporting >= self._ahead(limit.burst):
                awaited = self._ask(key)
        return ShareAwaited(self._next()) if awaited else None

    def began(self, keys: Iterable[tuple[Limit, BucketKey]], now: float) -> None:
        """The request that was admitted begins."""
        for limit, key in keys:
            share = self._share(limit, key, now)
            if share is None or limit.kind in (LimitKind.BYTES_UP, LimitKind.BYTES_DOWN):
                continue
            if limit.kind is LimitKind.CONCURRENT:
                share.running += 1
            else:
                share.unreported += 1
            self._note(key)

    def ended(self, keys: Iterable[tuple[Limit, BucketKey]]) -> None:
        for _, key in keys:
            share = self._shares.get(key)
            if share is not None and share.running > 0:
                share.running -= 1
                self._note(key)

    def passed(self, limit: Limit, key: BucketKey, count: int, now: float) -> Deny | None:
        """So many bytes: Deny when the fleet has used up what there was."""
        share = self._share(limit, key, now)
        if share is None:
            return Deny(Reason.CAPACITY, f"{MAX_SHARES} shared limits are in use", retry_after=1.0)
        exceeded = charge(limit, share.used(now), now, count).exceeded
        share.unreported += count
        self._note(key)
        return exceeded

    def used(self) -> tuple[dict[BucketKey, float], dict[BucketKey, int]]:
        """As far as this daemon has a part in them."""
        tats: dict[BucketKey, float] = {}
        running: dict[BucketKey, int] = {}
        for key, share in self._shares.copy().items():
            if share.limit.kind is LimitKind.CONCURRENT:
                running[key] = share.running + share.others
            else:
                tats[key] = share.told
        return tats, running

    # --- inside -------------------------------------------------------------------------------------

    def _ahead(self, most: int) -> int:
        return max(1, most // (2 * max(1, self._members())))

    def _share(self, limit: Limit, key: BucketKey, now: float) -> _Share | None:
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= MAX_SHARES:
                return None
            share = self._shares[key] = _Share(limit)
        share.limit = limit  # a reload may have changed its count
        return share

    def _note(self, key: BucketKey) -> None:
        self._changed[key] = None

    def _ask(self, key: BucketKey) -> bool:
        self._note(key)
        self._news.set()
        return True

    def _next(self) -> asyncio.Future[None]:
        if self._awaited is None or self._awaited.done():
            self._awaited = asyncio.get_running_loop().create_future()
        return self._awaited

    async def _report_for_ever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            try:
                self._tidy()
                if self._changed:
                    await self._report()
            except Exception:
                # Without this task every limit that runs ahead would be refused until a restart.
                logger.exception("the limits could not be shared")
                await asyncio.sleep(REPORT_SECONDS)

    def _tidy(self) -> None:
        now = self._monotonic()
        if now - self._tidied_at < TIDY_SECONDS:
            return
        self._tidied_at = now
        self._shares = {
            key: each for key, each in self._shares.items() if key in self._changed or not each.is_idle(now)
        }
        for key, share in self._shares.items():
            if share.running and now - share.told_at > REFRESH_SECONDS:
                self._note(key)

    async def _report(self) -> None:
        keys = [key for key in tuple(self._changed)[:AT_ONCE] if key in self._shares]
        for key in tuple(self._changed)[:AT_ONCE]:
            del self._changed[key]
        if self._changed:
            self._news.set()
        awaited, self._awaited = self._awaited, None
        batch: list[tuple[str, bool, float, float]] = []
        for key in keys:
            share = self._shares[key]
            together = share.limit.kind is LimitKind.CONCURRENT
            share.reporting, share.unreported = share.unreported, 0
            share.reported_running = share.running
            seconds = share.reporting * share.limit.period / share.limit.count
            whole = share.limit.burst * share.limit.period / share.limit.count
            batch.append((self._name(key), together, share.running if together else seconds, whole))
        loop = asyncio.get_running_loop()
        try:
            settle = partial(self._store.settle, batch, self._max_silence)
            since, answers = await loop.run_in_executor(self._worker, settle)
            self._told(dict(zip(keys, answers, strict=True)))
            if since != self._since:
                self._begun(since)
        except SharedStateDown:
            self._failed(keys)
            await asyncio.sleep(REPORT_SECONDS)
        except Exception:
            self._failed(keys)
            raise
        finally:
            if awaited is not None and not awaited.done():
                awaited.set_result(None)

    def _begun(self, since: float) -> None:
        """The database counts anew: it must know soon what runs here."""
        self._since = since
        for key, share in self._shares.items():
            if share.running:
                self._note(key)

    def _told(self, answers: Mapping[BucketKey, float]) -> None:
        now = self._monotonic()
        for key, answer in answers.items():
            share = self._shares.get(key)
            if share is None:  # it said nothing any more
                continue
            if not math.isfinite(answer):  # a program that can write to the database may have put it there
                self._failed([key])
                continue
            share.reporting, share.told_at = 0, now
            if share.limit.kind is LimitKind.CONCURRENT:
                share.others = int(answer)
            else:
                share.told = now + answer

    def _failed(self, keys: Sequence[BucketKey]) -> None:
        """It may have got there or not: told again, it may count twice, which lets through less."""
        for key in keys:
            share = self._shares.get(key)
            if share is None:
                continue
            share.unreported += share.reporting
            share.reporting = share.reported_running = 0
            self._note(key)

    def _name(self, key: BucketKey) -> str:
        """What the database knows of a limit: no tenant's and no policy's name."""
        return hmac.new(self._key, repr(key).encode(), hashlib.sha256).hexdigest()[:32]
