"""Single flight: one fetch a key, a bound on fetches, a bound on waiting."""

import asyncio

import pytest

from coatcheck.secrets import SecretMissing, SecretUnavailable
from coatcheck.secrets.flights import Flights


async def test_waiters_get_exceptions_of_their_own() -> None:
    """A shared exception would gather every waiter's traceback; each gets its own, of the same kind."""

    async def fail() -> str:
        await asyncio.sleep(0)
        raise SecretMissing("no such field")

    flights: Flights[str, str] = Flights("a store", seconds=1, limit=10)
    failures = await asyncio.gather(*(flights.join("k", fail) for _ in range(3)), return_exceptions=True)
    assert [(type(failure), str(failure)) for failure in failures] == [(SecretMissing, "no such field")] * 3
    assert len({id(failure) for failure in failures}) == 3


async def test_a_fetch_that_outlives_its_time_keeps_its_key() -> None:
    """Its waiters are refused in time, the next asker at once, and no second fetch begins until it ended."""
    release = asyncio.Event()
    begun = 0

    async def hang() -> str:
        nonlocal begun
        begun += 1
        await release.wait()
        return "late"

    flights: Flights[str, str] = Flights("a store", seconds=0.05, limit=10)
    with pytest.raises(SecretUnavailable, match="did not answer within"):
        await flights.join("k", hang)
    with pytest.raises(SecretUnavailable, match="still hangs"):
        await flights.join("k", hang)
    assert begun == 1
    release.set()
    while len(flights):
        await asyncio.sleep(0)
    assert await flights.join("k", hang) == "late"
    assert begun == 2


async def test_fetches_are_bounded() -> None:
    """One more than the limit is refused before it begins."""
    release = asyncio.Event()

    async def wait() -> str:
        await release.wait()
        return "done"

    flights: Flights[int, str] = Flights("a store", seconds=5, limit=2)
    running = [asyncio.ensure_future(flights.join(number, wait)) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(SecretUnavailable, match="2 reads of a store are already under way"):
        await flights.join(2, wait)
    release.set()
    assert await asyncio.gather(*running) == ["done", "done"]
