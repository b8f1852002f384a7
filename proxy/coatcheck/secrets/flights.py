"""Single flight: a caller that asks for what is already being fetched waits for that fetch."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from coatcheck.secrets import SecretUnavailable

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Flight[V]:
    """One fetch under way. Its task never raises: a shared exception would grow with each waiter."""

    task: asyncio.Task[V | SecretUnavailable]
    ends_at: float
    """Monotonic seconds after which nobody waits for it any more."""


class Flights[K, V]:
    """At most one fetch a key, at most `limit` at once. Belongs to one event loop.

    A waiter that is cancelled leaves the fetch running for the others; a fetch that outlives its
    time keeps its key (and its thread) to itself, and others that ask for that key are refused at once.
    """

    def __init__(self, what: str, *, seconds: float, limit: int) -> None:
        self._what = what
        self._seconds = seconds
        self._limit = limit
        self._flights: dict[K, Flight[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, key: K) -> Flight[V] | None:
        """The flight for `key` that is under way."""
        flight = self._flights.get(key)
        return None if flight is None or flight.task.done() else flight

    def start(self, key: K, fetch: Callable[[], Coroutine[object, object, V]]) -> Flight[V]:
        """The flight for `key`, begun with `fetch` if there is none.

        Raises:
            SecretUnavailable: too many are under way.
        """
        if (flight := self.get(key)) is not None:
            return flight
        if len(self._flights) >= self._limit:
            raise SecretUnavailable(f"{self._limit} reads of {self._what} are already under way")
        task = asyncio.get_running_loop().create_task(_outcome(fetch()))
        flight = Flight(task, time.monotonic() + self._seconds)
        if not task.done():  # mitmproxy's loop runs new tasks eagerly
            self._flights[key] = flight
            task.add_done_callback(lambda _: self._land(key, flight))
        return flight

    async def join(self, key: K, fetch: Callable[[], Coroutine[object, object, V]]) -> V:
        """What `fetch` gives, or gave the first caller.

        Raises:
            SecretUnavailable: it failed, or did not end in time.
        """
        return await self.wait(self.start(key, fetch))

    async def wait(self, flight: Flight[V]) -> V:
        """The flight's value, waiting until its end and not longer; raises like `join`."""
        left = flight.ends_at - time.monotonic()
        if not flight.task.done():
            if left <= 0:
                raise SecretUnavailable(f"an earlier read of {self._what} still hangs")
            await asyncio.wait({flight.task}, timeout=left)
        if not flight.task.done():
            raise SecretUnavailable(f"{self._what} did not answer within {self._seconds:g} s")
        if flight.task.cancelled():
            raise SecretUnavailable(f"the read of {self._what} was cancelled because we are stopping")
        outcome = flight.task.result()
        if isinstance(outcome, SecretUnavailable):
            raise outcome.again()
        return outcome

    def cancel(self) -> None:
        """Give up all flights; their waiters are refused."""
        for flight in list(self._flights.values()):
            flight.task.cancel()

    def _land(self, key: K, flight: Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


async def _outcome[V](fetch: Coroutine[object, object, V]) -> V | SecretUnavailable:
    try:
        return await fetch
    except SecretUnavailable as refusal:
        return refusal.with_traceback(None)
    except Exception as bug:  # noqa: BLE001 (fail closed)
        # Only its kind: the text of a foreign exception may quote what it read.
        name = type(bug).__name__
    _log.error("reading a secret failed inside Coatcheck: %s", name)
    return SecretUnavailable(f"internal error while reading a secret: {name}")
