"""Limits that are nearly used up are found in the buckets, and told to those who may know of them."""

from dataclasses import replace

from coatcheck.decision.policy import Limit, LimitKind, LimitScope, Policy, Rule
from coatcheck.state.buckets import Buckets
from coatcheck.state.levels import MAX_LEVELS, Level, levels, together
from tests.state.test_buckets import SESSION, TWO_AT_ONCE, session

HOURLY = Limit(LimitKind.REQUESTS, 10, 3600.0, 10, LimitScope.SESSION)
OF_TENANT = Limit(LimitKind.REQUESTS, 10, 60.0, 10, LimitScope.TENANT)
OF_CREDENTIAL = Limit(LimitKind.REQUESTS, 4, 60.0, 4, LimitScope.CREDENTIAL)
BYTES = Limit(LimitKind.BYTES_DOWN, 100, 10.0, 100, LimitScope.SESSION)


def policy(*limits: Limit) -> Policy:
    return Policy("p", "tests", "", rules=(Rule("r", (), frozenset(), (), limits=limits),))


def near(buckets: Buckets, of: Policy, now: float = 100.0) -> list[Level]:
    return levels(*buckets.used(), (of,), now, lambda scope, who: True)


def test_a_limit_is_shown_from_four_fifths_on_and_until_there_is_room_again() -> None:
    """Seven of ten are nothing to look at; nine are; half an hour later they are not."""
    buckets, of = Buckets(), policy(HOURLY)
    for _ in range(7):
        buckets.take(SESSION, of.rules[0], (), 100.0)
    assert near(buckets, of) == []
    for _ in range(2):
        buckets.take(SESSION, of.rules[0], (), 100.0)
    (level,) = near(buckets, of)
    assert (level.policy, level.rule, level.limit, level.who) == ("p", "r", HOURLY, ("s0",))
    assert 0.89 < level.used < 0.91
    assert near(buckets, of, 2000.0) == []


def test_each_kind_and_scope_is_measured_as_it_is_counted() -> None:
    """At once, bytes in debt, a tenant's and a credential's; the fullest first."""
    of = policy(TWO_AT_ONCE, OF_TENANT, OF_CREDENTIAL, BYTES)
    buckets, rule = Buckets(), of.rules[0]
    for number in range(2):
        assert buckets.take(session(0), rule, ("openai",), 100.0 + number) is None
    for _ in range(2):
        assert buckets.take(session(1), rule, ("openai",), 101.0) is None
    buckets.charge(SESSION, rule, (), LimitKind.BYTES_DOWN, 150, 101.0)
    found = near(buckets, of, 101.0)
    assert {(level.limit.kind, level.limit.per, level.who) for level in found} == {
        ("bytes_down", "session", ("s0",)),
        ("concurrent", "session", ("s0",)),
        ("concurrent", "session", ("s1",)),
        ("requests", "credential", ("openai",)),
    }
    assert found[0].limit is BYTES and 1.4 < found[0].used < 1.6
    assert next(level for level in found if level.limit is OF_CREDENTIAL).rule == ""


def test_what_one_may_not_know_of_and_what_is_not_in_force_is_left_out() -> None:
    """A reload that takes a limit away leaves its buckets behind for a while."""
    buckets, of = Buckets(), policy(replace(OF_TENANT, count=1, burst=1))
    buckets.take(SESSION, of.rules[0], (), 100.0)
    asked: list[tuple[LimitScope, tuple[str, ...]]] = []

    def sees(scope: LimitScope, who: tuple[str, ...]) -> bool:
        asked.append((scope, who))
        return False

    assert levels(*buckets.used(), (of,), 100.0, sees) == []
    assert asked == [(LimitScope.TENANT, ("t",))]
    assert near(buckets, policy()) == []


def test_there_are_never_more_than_a_person_reads() -> None:
    """Thousands of sessions at their limits are one problem, not thousands."""
    buckets, of = Buckets(), policy(replace(HOURLY, count=1, burst=1))
    for number in range(MAX_LEVELS + 10):
        buckets.take(session(number), of.rules[0], (), 100.0)
    assert len(near(buckets, of)) == MAX_LEVELS


def test_a_limit_that_two_daemons_see_is_shown_once_as_whoever_knows_more_sees_it() -> None:
    """The fullest first, and no more than are looked at."""
    ours = Level("p", "r", OF_TENANT, ("acme",), 0.85)
    theirs = replace(ours, used=0.95)
    others = [replace(ours, who=(f"t{n}",), used=0.9) for n in range(MAX_LEVELS)]
    assert together([ours], [theirs]) == together([theirs], [ours]) == [theirs]
    shown = together([ours], [*others, theirs])
    assert shown[0] == theirs
    assert len(shown) == MAX_LEVELS
