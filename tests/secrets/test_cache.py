"""The cache, over a store whose answers the test chooses, on a clock that the test moves."""

import asyncio
from collections.abc import Collection

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import Secret, SecretDenied, SecretMissing, SecretUnavailable
from coatcheck.secrets.cache import CachedStore
from tests.secrets.clock import Clock
from tests.secrets.refs import ref

REF = ref("cached")
TTL, STALE, NEGATIVE = 60.0, 300.0, 5.0


class Shelf:
    """A store that gives what lies on it: a value, or a failure; `open` cleared makes it wait."""

    def __init__(self) -> None:
        self.answer: str | type[SecretUnavailable] = "first"
        self.reads = 0
        self.open = asyncio.Event()
        self.open.set()
        self.closed = False

    async def fetch(self, ref: SecretRef) -> Secret:
        self.reads += 1
        answer = self.answer
        await self.open.wait()
        if isinstance(answer, str):
            return Secret(ref, answer)
        raise answer("the shelf says no")

    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        return (await self.fetch(ref),)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
async def cache(shelf: Shelf, clock: Clock) -> CachedStore:
    return CachedStore(
        shelf, ttl=TTL, negative_ttl=NEGATIVE, max_stale=STALE, refresh_ahead=10.0, max_entries=3, clock=clock
    )


async def value(cache: CachedStore, ref: SecretRef = REF) -> str:
    return (await cache.fetch(ref)).reveal()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_fresh_secret_is_served_without_a_read_or_a_wait(cache: CachedStore, shelf: Shelf) -> None:
    """One read, then peek has it at once."""
    assert cache.peek(REF) is None
    assert await value(cache) == "first"
    peeked = cache.peek(REF)
    assert peeked is not None and peeked.reveal() == "first"
    assert await value(cache) == "first"
    assert shelf.reads == 1


async def test_concurrent_waiters_share_one_read(cache: CachedStore, shelf: Shelf) -> None:
    """A hundred requests for a cold secret read it once."""
    assert set(await asyncio.gather(*(value(cache) for _ in range(100)))) == {"first"}
    assert shelf.reads == 1


async def test_a_cancelled_waiter_does_not_cancel_the_read(cache: CachedStore, shelf: Shelf) -> None:
    """Even when the first, who began it, goes away."""
    shelf.open.clear()
    first, second = asyncio.ensure_future(value(cache)), asyncio.ensure_future(value(cache))
    await settle()
    first.cancel()
    await settle()
    shelf.open.set()
    assert await second == "first"
    assert shelf.reads == 1


async def test_a_rotated_secret_is_seen_when_the_ttl_is_over(
    cache: CachedStore, shelf: Shelf, clock: Clock
) -> None:
    """Never later than ttl after the old value was read."""
    await value(cache)
    shelf.answer = "second"
    clock.advance(TTL - 10.1)
    assert await value(cache) == "first"
    clock.advance(10.1)
    assert cache.peek(REF) is None
    assert await value(cache) == "second"


async def test_age_counts_from_the_start_of_the_read(cache: CachedStore, shelf: Shelf, clock: Clock) -> None:
    """A slow answer is as old as its question: it may have been rotated on its way."""
    shelf.open.clear()
    reading = asyncio.ensure_future(value(cache))
    await settle()
    clock.advance(20)
    shelf.open.set()
    await reading
    assert cache.ages() == {str(REF): 20.0}


async def test_a_secret_in_use_is_refreshed_beside_the_requests(
    cache: CachedStore, shelf: Shelf, clock: Clock
) -> None:
    """Shortly before its ttl it is read anew, once, and nobody waits for that."""
    await value(cache)
    shelf.answer = "second"
    clock.advance(TTL - 5)
    for _ in range(3):
        peeked = cache.peek(REF)
        assert peeked is not None and peeked.reveal() == "first"
    await settle()
    assert shelf.reads == 2
    clock.advance(30)
    peeked = cache.peek(REF)
    assert peeked is not None and peeked.reveal() == "second"


async def test_a_refresh_that_hangs_does_not_extend_the_ttl(
    cache: CachedStore, shelf: Shelf, clock: Clock
) -> None:
    """While the read beside is under way the old value ends with its ttl all the same."""
    await value(cache)
    shelf.answer = "second"
    shelf.open.clear()
    clock.advance(TTL - 1)
    assert cache.peek(REF) is not None
    clock.advance(1)
    waiting = asyncio.ensure_future(value(cache))
    await settle()
    assert not waiting.done()
    shelf.open.set()
    assert await waiting == "second"
    assert shelf.reads == 2


@pytest.mark.parametrize("refusal", [SecretMissing, SecretDenied])
async def test_a_secret_that_is_not_to_be_had_is_believed_for_the_negative_ttl(
    refusal: type[SecretUnavailable], cache: CachedStore, shelf: Shelf, clock: Clock
) -> None:
    """The store is not asked again for 5 s, then it is."""
    shelf.answer = refusal
    for _ in range(3):
        with pytest.raises(refusal, match="the shelf says no"):
            await value(cache)
    assert shelf.reads == 1
    shelf.answer = "made meanwhile"
    clock.advance(NEGATIVE)
    assert await value(cache) == "made meanwhile"


async def test_an_unavailable_store_is_bridged_for_max_stale_and_no_longer(
    cache: CachedStore, shelf: Shelf, clock: Clock
) -> None:
    """Up to ttl + max_stale the old value serves; from that moment on the request is refused."""
    await value(cache)
    shelf.answer = SecretUnavailable
    clock.advance(TTL + STALE - 0.1)
    assert await value(cache) == "first"
    clock.advance(0.1)
    with pytest.raises(SecretUnavailable):
        await value(cache)


async def test_while_a_failure_is_young_the_old_value_serves_without_asking(
    cache: CachedStore, shelf: Shelf, clock: Clock
) -> None:
    """An outage costs one wait every 5 s, not one a request; what changed is seen right after."""
    await value(cache)
    shelf.answer = SecretUnavailable
    clock.advance(TTL)
    for _ in range(10):
        assert await value(cache) == "first"
    assert shelf.reads == 2
    shelf.answer = "second"
    clock.advance(NEGATIVE)
    assert await value(cache) == "second"


@pytest.mark.parametrize("refusal", [SecretMissing, SecretDenied])
async def test_a_deleted_or_withdrawn_secret_is_not_served_stale(
    refusal: type[SecretUnavailable], cache: CachedStore, shelf: Shelf, clock: Clock
) -> None:
    """That is an answer: the old value goes at once, also when the store fails afterwards."""
    await value(cache)
    shelf.answer = refusal
    clock.advance(TTL)
    with pytest.raises(refusal):
        await value(cache)
    shelf.answer = SecretUnavailable
    clock.advance(NEGATIVE)
    with pytest.raises(SecretUnavailable):
        await value(cache)


async def test_unavailable_without_an_old_value_is_refused(cache: CachedStore, shelf: Shelf) -> None:
    """Nothing to bridge with: refused, and asked again by the next request."""
    shelf.answer = SecretUnavailable
    for _ in range(2):
        with pytest.raises(SecretUnavailable):
            await value(cache)
    assert shelf.reads == 2


async def test_entries_are_bounded(cache: CachedStore) -> None:
    """With room for three the oldest of four goes."""
    refs = [ref(f"entry-{number}") for number in range(4)]
    for each in refs:
        await value(cache, each)
    assert list(cache.ages()) == [str(each) for each in refs[1:]]


async def test_a_secret_past_its_use_leaves_memory(cache: CachedStore, clock: Clock) -> None:
    """A sweep drops what may not be served any more, and keeps the rest."""
    await value(cache)
    clock.advance(TTL + STALE - 1)
    cache.sweep()
    assert cache.ages()
    clock.advance(1)
    cache.sweep()
    assert not cache.ages()


async def test_the_sweep_runs_by_itself(shelf: Shelf) -> None:
    """An idle daemon forgets, too: nobody has to ask."""
    cache = CachedStore(shelf, ttl=0.1, max_stale=0.1, refresh_ahead=0.0)
    await cache.fetch(REF)
    assert cache.ages()
    await asyncio.sleep(1.2)
    assert not cache.ages()
    await cache.close()


async def test_an_unexpected_error_is_unavailable_and_says_only_its_kind(
    shelf: Shelf, cache: CachedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a store fails closed; its text, which may quote a secret, is neither told nor logged."""

    async def broken(_: SecretRef) -> Secret:
        raise ValueError("sk-quoted")

    monkeypatch.setattr(shelf, "fetch", broken)
    with pytest.raises(SecretUnavailable, match="ValueError") as caught:
        await value(cache)
    assert "sk-quoted" not in str(caught.value) + caplog.text
    assert "ValueError" in caplog.text


async def test_close_forgets_and_closes_the_store_below(cache: CachedStore, shelf: Shelf) -> None:
    """Secrets leave memory, waiters are refused, the inner store is closed."""
    await value(cache)
    shelf.open.clear()
    waiting = asyncio.ensure_future(value(cache, ref("other")))
    await settle()
    await cache.close()
    assert not cache.ages() and shelf.closed
    with pytest.raises(SecretUnavailable):
        await waiting


def test_it_works_on_a_loop_that_runs_tasks_eagerly(clock: Clock) -> None:
    """mitmproxy's loop runs a new task at once, before its creator goes on; no entry may get stuck."""

    class Ready(Shelf):
        async def fetch(self, ref: SecretRef) -> Secret:
            self.reads += 1
            return Secret(ref, f"read {self.reads}")

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        shelf = Ready()
        cache = CachedStore(shelf, ttl=TTL, clock=clock)
        seen: list[str] = []
        for _ in range(3):
            seen.append(await value(cache))
            clock.advance(TTL)
        assert seen == ["read 1", "read 2", "read 3"]
        await cache.close()

    asyncio.run(main())
