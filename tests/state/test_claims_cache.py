"""The cache is bounded, keeps what is used, and holds no handle."""

from coatcheck.decision.handle import Claims
from coatcheck.state.claims_cache import ClaimsCache, digest_of


def claims(number: int) -> Claims:
    return Claims("s", "c", 1, 1, 2, str(number))


def test_it_never_holds_more_than_its_bound() -> None:
    """A sandbox that invents handles fills the cache and nothing else."""
    cache = ClaimsCache(100)
    for number in range(10_000):
        cache.put(digest_of(str(number)), claims(number))
        assert len(cache) <= 100


def test_what_is_in_use_stays() -> None:
    """A handle that is asked for goes along into each new generation."""
    cache = ClaimsCache(100)
    used = digest_of("used")
    cache.put(used, claims(0))
    for number in range(1, 1_000):
        cache.put(digest_of(str(number)), claims(number))
        assert cache.get(used) == claims(0)


def test_what_is_not_in_use_goes() -> None:
    """And a miss says so."""
    cache = ClaimsCache(100)
    for number in range(1_000):
        cache.put(digest_of(str(number)), claims(number))
    assert cache.get(digest_of("1")) is None
    assert cache.get(digest_of("999")) == claims(999)


def test_any_text_has_a_digest() -> None:
    """Also text that is no valid Unicode: it came from a socket."""
    assert len(digest_of("\udcff")) == 32
