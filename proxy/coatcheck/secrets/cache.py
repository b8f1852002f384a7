"""Keeps secrets for a bounded time, so that a request rarely waits for the store, and a rotated one is seen.

Times of one entry, from the moment when its read began:

    0 ........ ttl - refresh_ahead ........ ttl ................ ttl + max_stale
    | served   | served, read anew beside   | read, then served  | forgotten
                                              (old value only while the store is unavailable)
"""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import Secret, SecretDenied, SecretMissing, SecretStore, SecretUnavailable
from coatcheck.secrets.flights import Flights

_FLIGHT_SECONDS = 30.0
"""Inner stores have deadlines of their own; this one only ends the wait for one that broke its word."""


@dataclass(slots=True)
class _Entry:
    secret: Secret
    read_at: float
    refresh_at: float
    """When the next read beside the requests may begin."""
    retry_at: float = 0.0
    """After a failed read: until then the old value is served without asking again."""


class CachedStore:
    """A SecretStore over another. Belongs to one event loop; `peek` and `ages` never wait.

    `ttl`: seconds after which a rotated secret is picked up at the latest. `negative_ttl`: seconds
    for which "missing" and "denied", and "unavailable" where an old value can be served, are believed.
    `max_stale`: seconds past `ttl` for which the old value serves while the store is unavailable.
    `refresh_ahead`: a secret in use is read anew this many seconds before its `ttl`, beside the
    requests. `max_entries`: policy bounds the number of secrets anyway; this bounds its mistakes.
    """

    def __init__(
        self,
        inner: SecretStore,
        *,
        ttl: float = 60.0,
        negative_ttl: float = 5.0,
        max_stale: float = 300.0,
        refresh_ahead: float = 10.0,
        max_entries: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self.ttl = ttl
        self._negative_ttl = negative_ttl
        self._keep = ttl + max_stale
        self._refresh_after = max(0.0, ttl - refresh_ahead)
        self._max_entries = max_entries
        self._clock = clock
        self._entries: dict[SecretRef, _Entry] = {}
        self._refused: dict[SecretRef, tuple[float, SecretMissing | SecretDenied]] = {}
        self._flights: Flights[SecretRef, Secret] = Flights(
            "the secret store", seconds=_FLIGHT_SECONDS, limit=max_entries
        )
        self._sweeper: asyncio.TimerHandle | None = None
        self.ttl = ttl
        """Seconds after which a value is read again."""
        self.heard: Callable[[Secret], None] = lambda secret: None
        """Told of every value that was read, before anybody gets it."""

    def peek(self, ref: SecretRef) -> Secret | None:
        """The secret if it is at hand and fresh, without waiting. Call it first, then `fetch`."""
        entry = self._entries.get(ref)
        if entry is None:
            return None
        age = self._clock() - entry.read_at
        if age >= self.ttl:
            return None
        if self._clock() >= entry.refresh_at:
            self._refresh_beside(ref, entry)
        return entry.secret

    async def fetch(self, ref: SecretRef) -> Secret:
        if (secret := self.peek(ref)) is not None:
            return secret
        if (refused := self._refused.get(ref)) is not None:
            if self._clock() < refused[0]:
                raise refused[1].again()
            del self._refused[ref]
        entry = self._entries.get(ref)
        if entry is not None and self._clock() < entry.retry_at and self._servable(entry):
            return entry.secret
        try:
            return await self._flights.join(ref, lambda: self._read(ref))
        except (SecretMissing, SecretDenied):
            raise
        except SecretUnavailable:
            entry = self._entries.get(ref)
            if entry is None or not self._servable(entry):
                raise
            return entry.secret

    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        """Not cached: it is asked for once a version."""
        return await self._inner.history(ref, known)

    def ages(self) -> dict[str, float]:
        """Seconds since each secret at hand was read, by the reference's text."""
        now = self._clock()
        entries = tuple(self._entries.items())  # at once: they are asked for in other threads
        return {str(ref): now - entry.read_at for ref, entry in entries}

    def sweep(self) -> None:
        """Forget every secret that may not be served any more. A task calls it."""
        now = self._clock()
        for ref in [ref for ref, entry in self._entries.items() if now - entry.read_at >= self._keep]:
            del self._entries[ref]
        for ref in [ref for ref, (until, _) in self._refused.items() if now >= until]:
            del self._refused[ref]

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._flights.cancel()
        self._entries.clear()
        self._refused.clear()
        await self._inner.close()

    async def _read(self, ref: SecretRef) -> Secret:
        began = self._clock()  # not the end: it may have been rotated while the answer was on its way
        try:
            secret = await self._inner.fetch(ref)
        except (SecretMissing, SecretDenied) as refused:
            # Deleted or withdrawn on purpose: the old value is not stale, it is wrong.
            self._entries.pop(ref, None)
            _put(self._refused, ref, (self._clock() + self._negative_ttl, refused), self._max_entries)
            self._sweep_later()
            raise
        except SecretUnavailable:
            if (entry := self._entries.get(ref)) is not None:
                entry.retry_at = self._clock() + self._negative_ttl
            raise
        self.heard(secret)
        entry = _Entry(secret, began, began + self._refresh_after)
        _put(self._entries, ref, entry, self._max_entries)
        self._sweep_later()
        return secret

    def _refresh_beside(self, ref: SecretRef, entry: _Entry) -> None:
        entry.refresh_at = self._clock() + self._negative_ttl  # should it fail: not with every request
        try:
            self._flights.start(ref, lambda: self._read(ref))
        except SecretUnavailable:
            return  # too many reads: the value is fresh still, and the next request tries again

    def _servable(self, entry: _Entry) -> bool:
        return self._clock() - entry.read_at < self._keep

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            oldest = next(iter(self._entries.values()), None)
            left = self._keep if oldest is None else oldest.read_at + self._keep - self._clock()
            delay = max(1.0, left)  # at most once a second, however many secrets there are
            self._sweeper = asyncio.get_running_loop().call_later(delay, self._sweep_on_time)

    def _sweep_on_time(self) -> None:
        self._sweeper = None
        self.sweep()
        if self._entries or self._refused:
            self._sweep_later()


def _put[K, V](table: dict[K, V], key: K, value: V, limit: int) -> None:
    """Put as the newest, dropping the oldest above `limit`."""
    table.pop(key, None)
    table[key] = value
    while len(table) > limit:
        del table[next(iter(table))]
