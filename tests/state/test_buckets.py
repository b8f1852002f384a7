"""Limits are taken together, given back, and never forgotten while they are used up."""

from dataclasses import replace

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Limit, LimitKind, LimitScope, Rule
from coatcheck.decision.session import Isolation, Session
from coatcheck.state.buckets import Buckets

SESSION = Session(
    "s0", "t", "u", "p", Origin(OriginClass.SOCKET, "s0"), frozenset(), Isolation.NONE, 1, 0, 1, 1, 1
)
ONE = Limit(LimitKind.REQUESTS, 1, 60.0, 1, LimitScope.SESSION)
TENANT_TEN = Limit(LimitKind.REQUESTS, 10, 60.0, 10, LimitScope.TENANT)
TWO_AT_ONCE = Limit(LimitKind.CONCURRENT, 2, 1.0, 1, LimitScope.SESSION)
BYTES = Limit(LimitKind.BYTES_UP, 100, 10.0, 100, LimitScope.SESSION)


def rule(*limits: Limit) -> Rule:
    return Rule("r", (), frozenset(), (), limits=limits)


def session(number: int) -> Session:
    return replace(SESSION, id=f"s{number}")


def test_a_refused_request_spends_from_no_bucket() -> None:
    """One limit refuses: the tenant's budget is untouched, or one session could starve the others."""
    buckets, both = Buckets(), rule(TENANT_TEN, ONE)
    assert buckets.take(SESSION, both, (), 100.0) is None
    for _ in range(50):
        assert buckets.take(SESSION, both, (), 100.0) is not None
    assert [buckets.take(session(n), both, (), 100.0) for n in range(1, 10)] == [None] * 9
    denied = buckets.take(session(10), both, (), 100.0)
    assert isinstance(denied, Deny) and "tenant" in denied.detail


def test_what_runs_at_once_is_counted_until_it_leaves() -> None:
    """Two in, the third waits for one to leave; the map is empty when all have left."""
    buckets, two = Buckets(), rule(TWO_AT_ONCE)
    assert [buckets.take(SESSION, two, (), 1.0), buckets.take(SESSION, two, (), 1.0)] == [None, None]
    denied = buckets.take(SESSION, two, (), 1.0)
    assert isinstance(denied, Deny) and denied.reason is Reason.CONCURRENCY_LIMITED
    buckets.leave(SESSION, two, ())
    assert buckets.take(SESSION, two, (), 1.0) is None
    buckets.leave(SESSION, two, ())
    buckets.leave(SESSION, two, ())
    assert buckets.running == {}


def test_bytes_end_the_stream_that_uses_them_up_and_refuse_the_next() -> None:
    """Only the limit of that direction is charged."""
    buckets, limited = Buckets(), rule(BYTES)
    assert buckets.charge(SESSION, limited, (), LimitKind.BYTES_DOWN, 10_000, 1.0) is None
    assert buckets.charge(SESSION, limited, (), LimitKind.BYTES_UP, 100, 1.0) is None
    denied = buckets.charge(SESSION, limited, (), LimitKind.BYTES_UP, 50, 1.0)
    assert denied is not None and denied.reason is Reason.BYTES_LIMITED
    assert buckets.take(SESSION, limited, (), 1.0) is not None
    assert buckets.take(SESSION, limited, (), 6.1) is None


def test_each_credential_in_use_has_its_own_bucket() -> None:
    """Per credential: two rules that hand it out share, another credential does not."""
    buckets = Buckets()
    per = replace(ONE, per=LimitScope.CREDENTIAL)
    assert buckets.take(SESSION, rule(per), ("a", "b"), 1.0) is None
    assert buckets.take(session(2), replace(rule(per), name="other"), ("b",), 1.0) is not None
    assert buckets.take(session(2), rule(per), ("c",), 1.0) is None


def test_a_used_up_bucket_is_never_dropped_for_room() -> None:
    """An attacker who opens bucket after bucket is refused, and does not reset anybody's limit."""
    buckets, limited = Buckets(max_buckets=3), rule(ONE)
    assert [buckets.take(session(n), limited, (), 100.0) for n in range(3)] == [None] * 3
    denied = buckets.take(session(3), limited, (), 101.0)
    assert isinstance(denied, Deny) and denied.reason is Reason.CAPACITY
    assert all(buckets.take(session(n), limited, (), 102.0) is not None for n in range(3))


def test_full_buckets_make_room() -> None:
    """A bucket that has refilled equals one that was never used."""
    buckets, limited = Buckets(max_buckets=3), rule(ONE)
    assert [buckets.take(session(n), limited, (), 100.0) for n in range(3)] == [None] * 3
    assert buckets.take(session(3), limited, (), 161.0) is None
    assert len(buckets) == 1


def test_known_buckets_go_on_at_the_bound() -> None:
    """Being at the limit refuses newcomers, not those who have their bucket."""
    buckets, limited = Buckets(max_buckets=2), rule(TENANT_TEN, ONE)
    assert buckets.take(SESSION, limited, (), 100.0) is None
    assert buckets.take(SESSION, limited, (), 160.0) is None
