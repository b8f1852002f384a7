"""What slips past a rule that asks or limits, held against the core's own decisions."""

from collections import defaultdict
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.decision.approval import Asking
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Limit, LimitKind, LimitScope, PathPattern, Policy, Rule, match
from coatcheck.policy import load_policy
from coatcheck.policy.file.building import DEFAULT_REQUESTS
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.problem import Location
from coatcheck.policy.lint.requests import lint_requests
from coatcheck.policy.lint.slips import lacks
from tests.policy.diff.test_cells import UNHURRIED
from tests.policy.diff.test_difference import HOSTS, hosts, written_otherwise
from tests.policy.lint.test_lint_against_the_core import DOORS, PATHS

FEW = Limit(LimitKind.REQUESTS, 60, 60.0, 60, LimitScope.SESSION)
MANY = replace(FEW, count=600, burst=600)
patterns = st.builds(PathPattern, st.lists(st.sampled_from("abc*"), max_size=2).map(tuple), st.booleans())
rules = st.builds(
    Rule,
    name=st.just(""),
    hosts=hosts,
    methods=st.sampled_from([frozenset({"GET"}), frozenset({"PUT"}), frozenset({"GET", "PUT"})]),
    paths=st.lists(patterns.filter(lambda each: each.segments or each.prefix), max_size=2).map(tuple),
    ports=st.sampled_from([frozenset({443}), frozenset({80, 443})]),
    limits=st.sampled_from([(DEFAULT_REQUESTS,), (FEW,), (MANY,)]),
    plain_http=st.booleans(),
    websocket=st.booleans(),
    asking=st.sampled_from([None, Asking()]),
)
policies = st.lists(rules, min_size=1, max_size=4).map(
    lambda drawn: Policy("p", "o", "0", rules=tuple(replace(r, name=f"r{at}") for at, r in enumerate(drawn)))
)


def expected(policy: Policy) -> set[Location]:
    """By asking the core about each request of a small universe, once with all rules and once with each
    alone."""
    alone = [replace(policy, rules=(rule,)) for rule in policy.rules]
    past: dict[tuple[int, int], bool] = defaultdict(bool)
    inside: dict[int, set[int]] = {}
    reached: set[int] = set()
    numbers = {rule.name: number for number, rule in enumerate(policy.rules)}
    for host, door, method, websocket, path in product(
        (*HOSTS, "c.b.a.x"), DOORS, ("GET", "PUT"), (False, True), PATHS
    ):
        if written_otherwise(path, policy):
            continue
        headers = (("upgrade", "websocket"),) if websocket else ()
        asked = Destination(door[0], host, door[1]), RequestHead(method, path, headers)
        found = match(policy, *asked)
        if not isinstance(found, Rule):
            continue
        at = numbers[found.name]
        reached.add(at)
        fit = {number for number, one in enumerate(alone) if isinstance(match(one, *asked), Rule)}
        inside[at] = inside.get(at, fit) & fit
        for number in fit:
            if number > at and lacks(found, policy.rules[number]):
                past[number, at] = True
    slipping = {number for number, at in past if number in reached and number not in inside[at]}
    return {("rules", number, "ask" if policy.rules[number].asking else "limits") for number in slipping}


@settings(UNHURRIED, max_examples=40)
@given(policies)
def test_what_slips_past_is_found_exactly(policy: Policy) -> None:
    """By the same readings as requests are judged by, and for no other rule."""
    said = {each.location for each in lint_requests(policy) if each.code == Code.SLIPS_PAST}
    assert said == expected(policy)


def found(*rules: str) -> list[str]:
    lines = "\n".join(
        f"  - {{name: r{number}, hosts: [x.example], {rule}}}" for number, rule in enumerate(rules)
    )
    policy = load_policy("x", f"version: 1\nowner: x\nrules:\n{lines}\n".encode())
    return [each.message for each in lint_requests(policy) if each.code == Code.SLIPS_PAST]


def test_a_broad_rule_above_a_strict_one_is_found_with_a_request() -> None:
    """The reader sees at once what is meant."""
    assert found("methods: [GET, POST], paths: [/v1/*]", "methods: [POST], paths: [/v1/**], ask: {}") == [
        '"r1" asks, and "r0" above it lets some of its requests pass, such as POST https://x.example/v1/any'
    ]
    assert found(
        "methods: [GET, POST], paths: [/v1/*]", "methods: [POST], paths: [/v1/**], limits: {requests: 1/hour}"
    ) == [
        '"r1" limits, and "r0" above it lets some of its requests pass, such as POST https://x.example/v1/any'
    ]


def test_exceptions_and_equal_terms_are_clean() -> None:
    """So is what is narrow and stands first, as it should."""
    strict = "methods: [POST], paths: [/v1/**], ask: {}, limits: {requests: 60/minute}"
    assert found("methods: [POST], paths: [/v1/status]", strict) == []
    assert found("methods: [GET, POST], paths: [/v1/*], ask: {}, limits: {requests: 60/minute}", strict) == []
    assert found("methods: [GET, POST], paths: [/v1/*], ask: {}, limits: {requests: 61/minute}", strict) != []
    assert found(strict, "methods: [GET, POST]") == []
