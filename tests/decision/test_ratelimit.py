"""GCRA, told as a story with a clock of plain numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Limit, LimitKind, LimitScope, Rule
from coatcheck.decision.ratelimit import Rate, Rates, Spent, bucket_key, charge, enter, spend
from coatcheck.decision.session import Isolation, Session

SIXTY = Limit(LimitKind.REQUESTS, 60, 60.0, 10, LimitScope.SESSION)
BYTES = Limit(LimitKind.BYTES_DOWN, 1_000, 10.0, 1_000, LimitScope.SESSION)


def session(id: str = "a", tenant: str = "t", subject: str = "s") -> Session:  # noqa: A002
    origin = Origin(OriginClass.SOCKET, id)
    return Session(id, tenant, subject, "p", origin, frozenset(), Isolation.NONE, 1, 0, 1, 1, 1)


def rule(name: str = "r") -> Rule:
    return Rule(name, (), frozenset(), ())


def test_a_burst_then_patience() -> None:
    """Ten at once, then one a second; and being exactly as patient as we are told to be is enough."""
    now, tat = 1_000.0, 0.0
    for left in range(9, -1, -1):
        spent = spend(SIXTY, tat, now)
        assert isinstance(spent, Spent) and spent.remaining == left
        tat = spent.tat
    denied = spend(SIXTY, tat, now)
    assert isinstance(denied, Deny) and denied.reason is Reason.RATE_LIMITED
    assert denied.retry_after == pytest.approx(1.0)
    assert denied.retry_after is not None and isinstance(spend(SIXTY, tat, now + 0.9), Deny)
    spent = spend(SIXTY, tat, now + denied.retry_after)
    assert isinstance(spent, Spent) and spent.remaining == 0
    assert isinstance(spend(SIXTY, spent.tat, now + 3600), Spent)


def test_rest_refills_to_the_burst_and_no_further() -> None:
    """An hour of silence does not save up sixty minutes of requests."""
    spent = spend(SIXTY, 5.0, 3_600.0)
    assert isinstance(spent, Spent) and spent.remaining == 9


@given(st.lists(st.floats(0, 2), max_size=300))
def test_no_pattern_of_requests_gets_more_than_the_rate_and_one_burst(pauses: list[float]) -> None:
    """In any span of time: at most rate * span + burst."""
    now, tat, admitted = 100.0, 0.0, 0
    for pause in pauses:
        now += pause
        spent = spend(SIXTY, tat, now)
        if isinstance(spent, Spent):
            tat, admitted = spent.tat, admitted + 1
    assert admitted <= (now - 100.0) * 1.0 + 10 + 1e-6


def test_bytes_are_charged_after_they_passed_and_the_debt_is_waited_out() -> None:
    """The chunk that exceeds ends the stream; the next request waits until the debt is paid."""
    first = charge(BYTES, 0.0, 50.0, 1_000)
    assert first.exceeded is None
    second = charge(BYTES, first.tat, 50.0, 500)
    assert second.exceeded is not None and second.exceeded.reason is Reason.BYTES_LIMITED
    assert second.exceeded.retry_after == pytest.approx(5.0)
    assert isinstance(spend(BYTES, second.tat, 54.0, 0), Deny)
    assert isinstance(spend(BYTES, second.tat, 55.1, 0), Spent)


def test_a_used_up_byte_limit_admits_no_request() -> None:
    """Cost 0 asks whether anything is left at all."""
    assert isinstance(spend(BYTES, charge(BYTES, 0.0, 50.0, 1_000).tat, 50.0, 0), Deny)
    assert isinstance(spend(BYTES, charge(BYTES, 0.0, 50.0, 999).tat, 50.0, 0), Spent)


def test_so_many_at_once_and_not_one_more() -> None:
    """Concurrency is a count."""
    limit = Limit(LimitKind.CONCURRENT, 2, 0, 0, LimitScope.SESSION)
    assert (enter(limit, 0), enter(limit, 1)) == (1, 2)
    denied = enter(limit, 2)
    assert isinstance(denied, Deny) and denied.reason is Reason.CONCURRENCY_LIMITED
    assert denied.retry_after == 1.0


@pytest.mark.parametrize(
    ("scope", "shared_with"),
    [
        (LimitScope.SESSION, set()),
        (LimitScope.SUBJECT, {"session"}),
        (LimitScope.TENANT, {"session", "subject"}),
        (LimitScope.RULE, {"session", "subject", "tenant"}),
        (LimitScope.CREDENTIAL, {"session", "subject", "tenant", "rule"}),
    ],
)
def test_a_scope_says_who_shares_a_bucket(scope: LimitScope, shared_with: set[str]) -> None:
    """Two requests share the bucket exactly when the scope does not tell their difference."""
    limit = Limit(LimitKind.REQUESTS, 1, 1.0, 1, scope)
    mine = bucket_key(limit, session(), rule(), "c")
    others = {
        "session": bucket_key(limit, session("b"), rule(), "c"),
        "subject": bucket_key(limit, session("b", subject="z"), rule(), "c"),
        "tenant": bucket_key(limit, session("b", tenant="z"), rule(), "c"),
        "rule": bucket_key(limit, session(), rule("z"), "c"),
    }
    assert {name for name, key in others.items() if key == mine} == shared_with
    assert bucket_key(limit, session(), rule()) == bucket_key(limit, session(), rule(), "")
    another = bucket_key(limit, session(), rule(), "d")
    assert (another == mine) is (scope is not LimitScope.CREDENTIAL)


def test_a_reload_with_another_count_does_not_refill_the_bucket() -> None:
    """The key outlives an edit of the number; a different window or kind is a different bucket."""

    def key(kind: LimitKind, count: int, period: float) -> tuple[str | float, ...]:
        return bucket_key(Limit(kind, count, period, 1, LimitScope.SESSION), session(), rule())

    assert key(LimitKind.REQUESTS, 60, 60.0) == key(LimitKind.REQUESTS, 90, 60.0)
    assert key(LimitKind.REQUESTS, 60, 60.0) != key(LimitKind.REQUESTS, 60, 1.0)
    assert key(LimitKind.BYTES_UP, 60, 60.0) != key(LimitKind.BYTES_DOWN, 60, 60.0)


@given(st.floats(0, 1e7), st.integers(1, 5))
def test_a_full_bucket_gives_all_it_has_whatever_the_clock_says(now: float, burst: int) -> None:
    """7950.8 + 3600 - 7950.8 is more than 3600 in binary: an agent's only request an hour was refused."""
    limit = Limit(LimitKind.REQUESTS, 1, 3600.0, burst, LimitScope.SESSION)
    tat = 0.0
    for _ in range(burst):
        spent = spend(limit, tat, now)
        assert isinstance(spent, Spent)
        tat = spent.tat
    assert isinstance(spend(limit, tat, now), Deny)


FIFTY = Rate(count=50, period=1.0, burst=256)


def test_a_burst_is_not_delayed_and_what_follows_it_is() -> None:
    """Evenly, at the rate; another key does not notice."""
    rates: Rates[str] = Rates(FIFTY, 100)
    assert [rates.delay("a", 100.0) for _ in range(256)] == [0.0] * 256
    for number in range(1, 4):
        assert rates.delay("a", 100.0) == pytest.approx(number / 50)
    assert rates.delay("b", 100.0) == 0.0


def test_what_keeps_to_the_rate_is_never_delayed() -> None:
    """For an hour; and what has waited has its burst again."""
    rates: Rates[str] = Rates(FIFTY, 100)
    assert not any(rates.delay("a", 100.0 + number / 50) for number in range(3600 * 50))
    for _ in range(512):
        rates.delay("b", 100.0)
    later = 100.0 + 512 / 50
    assert [rates.delay("b", later) for _ in range(256)] == [0.0] * 256


def test_a_refused_attempt_costs_nothing() -> None:
    """Asking again and again does not put off when it may; waiting as long as told is enough."""
    rates: Rates[str] = Rates(Rate(count=1, period=6.0, burst=2), 100)
    assert [rates.wait("a", 10.0) for _ in range(2)] == [0.0, 0.0]
    assert [rates.wait("a", 10.0) for _ in range(5)] == pytest.approx([6.0] * 5)
    assert rates.wait("a", 16.0) == 0.0 and rates.wait("a", 16.0) > 0.0
    rates.forget("a")
    assert rates.wait("a", 16.0) == 0.0


def test_keys_are_bounded_and_the_one_not_seen_for_longest_goes() -> None:
    """What comes again and again is not forgotten for it."""
    rates: Rates[str] = Rates(Rate(count=1, period=60.0, burst=1), 10)
    rates.wait("often", 0.0)
    for number in range(1000):
        assert rates.wait(str(number), 0.0) == 0.0
        assert rates.delay("often", 0.0) > 0.0
        assert len(rates) <= 10
    assert rates.wait("0", 0.0) == 0.0
