"""A Vault that is slow or asked too much: what waits, for how long, and who is not held up."""

import asyncio
import time

import pytest

from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.embedded import EmbeddedVault
from tests.known_secrets import known_secret
from tests.secrets.refs import ref
from tests.secrets.slow_front import STALLS, SlowFront
from tests.system.secrets.conftest import MakeStore


async def test_fields_of_one_path_share_one_read(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """Twenty concurrent fetches of two fields ask Vault once: a path has one thread at most."""
    await bao.put("shared", {"a": known_secret("shared-a"), "b": known_secret("shared-b")})
    async with SlowFront.start(bao.url) as front:
        store = make_store(url=front.url)
        got = await asyncio.gather(*(store.fetch(ref("shared", name)) for name in "ab" * 10))
        assert {secret.reveal() for secret in got} == {known_secret("shared-a"), known_secret("shared-b")}
        assert front.asked["shared"] == 1


async def test_200_requests_for_one_secret_proceed_while_three_others_stall(
    bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """B hangs, C drips its head and D its body: A's cold reads are not held up, and each holds one thread."""
    await bao.put("A", {"api_key": known_secret("A")})
    async with SlowFront.start(bao.url, dict(zip("BCD", STALLS, strict=True))) as front:
        store = make_store(url=front.url, timeout_seconds=8.0)
        await store.ready()
        cached = CachedStore(store)
        stalled = [asyncio.ensure_future(cached.fetch(ref(name))) for name in "BCD" * 50]
        while front.stalled.total() < 3:
            await asyncio.sleep(0.01)

        got = await asyncio.gather(*(cached.fetch(ref("A")) for _ in range(200)))
        assert {secret.reveal() for secret in got} == {known_secret("A")}
        assert front.asked["A"] == 1
        for _ in range(20):
            await CachedStore(store).fetch(ref("A"))
        assert front.asked["A"] == 21

        assert not any(task.done() for task in stalled)
        assert dict(front.stalled) == {"B": 1, "C": 1, "D": 1}
        outcomes = await asyncio.gather(*stalled, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {SecretUnavailable}


async def test_more_stalled_paths_than_threads_leave_room(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """Six paths stall on four threads. Once they have failed they share one, and A has the others."""
    await bao.put("A", {"api_key": known_secret("A")})
    paths = [f"stall-{number}" for number in range(6)]
    async with SlowFront.start(bao.url, dict.fromkeys(paths, "hang")) as front:
        store = make_store(url=front.url, timeout_seconds=2.0, threads=4, breaker_threshold=100)
        await store.ready()
        for _ in range(2):  # three at once have threads; the others are refused for want of one, then fail
            await asyncio.gather(*(store.fetch(ref(path)) for path in paths), return_exceptions=True)
            await asyncio.sleep(0.1)
        again = [asyncio.ensure_future(store.fetch(ref(path))) for path in paths]
        while not front.stalled.total():
            await asyncio.sleep(0.01)
        assert (await store.fetch(ref("A"))).reveal() == known_secret("A")
        assert front.stalled.total() == 1  # it still stalls
        await asyncio.gather(*again, return_exceptions=True)


@pytest.mark.parametrize("stall", STALLS)
async def test_a_stalled_answer_is_cut_and_its_thread_released(
    stall: str, bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """A byte a moment does not extend the deadline: the connection is closed by us, from its thread."""
    async with SlowFront.start(bao.url, {"B": stall}) as front:
        store = make_store(url=front.url, timeout_seconds=0.7)
        await store.ready()
        began = time.monotonic()
        with pytest.raises(SecretUnavailable, match="within"):
            await store.fetch(ref("B"))
        assert 0.5 < time.monotonic() - began < 10
        while front.stalled["B"]:
            await asyncio.sleep(0.02)
            assert time.monotonic() - began < 20, "the thread still reads"


async def test_a_path_that_fails_is_not_asked_while_its_breaker_is_open(
    bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """After two time-outs B fails at once, unasked; A is read as before; later B is tried again and heals."""
    for name in "AB":
        await bao.put(name, {"api_key": known_secret(name)})
    async with SlowFront.start(bao.url, {"B": "hang"}) as front:
        store = make_store(url=front.url, timeout_seconds=0.3, breaker_threshold=2, breaker_seconds=2.0)
        await store.ready()
        for _ in range(2):
            with pytest.raises(SecretUnavailable):
                await store.fetch(ref("B"))
            await asyncio.sleep(0.05)
        with pytest.raises(SecretUnavailable, match="several times in a row"):
            await store.fetch(ref("B"))
        assert front.asked["B"] == 2
        assert (await store.fetch(ref("A"))).reveal() == known_secret("A")
        front.stalls.clear()
        await asyncio.sleep(2.0)
        assert (await store.fetch(ref("B"))).reveal() == known_secret("B")


async def test_too_many_reads_at_once_are_refused(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """The queue of reads has a bound: one more path is refused at once."""
    async with SlowFront.start(bao.url, {"B": "hang"}) as front:
        store = make_store(url=front.url, timeout_seconds=0.5, max_reads=1)
        await store.ready()
        stalled = asyncio.ensure_future(store.fetch(ref("B")))
        await asyncio.sleep(0)
        with pytest.raises(SecretUnavailable, match="already under way"):
            await store.fetch(ref("C"))
        with pytest.raises(SecretUnavailable):
            await stalled


async def test_a_closed_store_refuses(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """After close nothing is read, and those who wait are told."""
    async with SlowFront.start(bao.url, {"B": "hang"}) as front:
        store = make_store(url=front.url, timeout_seconds=0.5)
        await store.ready()
        waiting = asyncio.ensure_future(store.fetch(ref("B")))
        await asyncio.sleep(0.05)
        await store.close()
        with pytest.raises(SecretUnavailable):
            await waiting
        with pytest.raises(SecretUnavailable, match="closed"):
            await store.fetch(ref("B"))
