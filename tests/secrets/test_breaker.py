"""The circuit breaker, on a clock that the test moves."""

from coatcheck.secrets.breaker import Breaker
from tests.secrets.clock import Clock


def test_it_opens_after_failures_in_a_row_only() -> None:
    """A success in between starts the count anew."""
    breaker = Breaker(3, 10.0, Clock())
    for outcome in (breaker.failed, breaker.failed, breaker.succeeded, breaker.failed, breaker.failed):
        outcome()
    assert breaker.allows() and not breaker.is_open
    breaker.failed()
    assert breaker.is_open and not breaker.allows()


def test_open_it_allows_one_probe_a_cooldown() -> None:
    """After the cooldown one attempt goes through; the second, at the same moment, does not."""
    clock = Clock()
    breaker = Breaker(1, 10.0, clock)
    breaker.failed()
    clock.advance(4)
    assert breaker.retry_after() == 6 and not breaker.allows()
    clock.advance(6)
    assert [breaker.allows(), breaker.allows()] == [True, False]


def test_a_probe_that_succeeds_closes_it() -> None:
    """One good answer and everybody may try."""
    clock = Clock()
    breaker = Breaker(1, 10.0, clock)
    breaker.failed()
    clock.advance(10)
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows() and breaker.allows() and breaker.retry_after() == 0


def test_a_probe_that_fails_starts_the_cooldown_anew() -> None:
    """The next probe is a whole cooldown after the failure, not after the probe's start."""
    clock = Clock()
    breaker = Breaker(1, 10.0, clock)
    breaker.failed()
    clock.advance(10)
    assert breaker.allows()
    clock.advance(5)
    breaker.failed()
    clock.advance(9)
    assert not breaker.allows()
    clock.advance(1)
    assert breaker.allows()


def test_a_probe_that_never_ends_costs_one_cooldown() -> None:
    """A lost probe does not hold the breaker open for ever."""
    clock = Clock()
    breaker = Breaker(1, 10.0, clock)
    breaker.failed()
    clock.advance(10)
    assert breaker.allows()
    clock.advance(10)
    assert breaker.allows()
