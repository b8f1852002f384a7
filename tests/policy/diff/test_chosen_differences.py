"""Pairs of policies in which one thing differs, each against brute force: what a drawn pair seldom has."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from coatcheck.decision.message import OriginClass
from coatcheck.decision.policy import (
    Credential,
    HostPattern,
    Limit,
    LimitKind,
    LimitScope,
    PathPattern,
    Policy,
    Rule,
    SecretRef,
)
from coatcheck.decision.session import Isolation
from coatcheck.injectors.header import HeaderInjection
from coatcheck.policy import load_policy
from coatcheck.policy.diff.change import Direction, Subject
from coatcheck.policy.diff.difference import compare
from tests.policy.diff.test_difference import (
    BASE,
    SESSIONS,
    WAYS,
    Concrete,
    leaves,
    said,
    says,
    written_otherwise,
)

HOSTS = ("x", "a.x", "c.x")
PATHS = ("/", "/a", "/a/", "/b", "/a/b", "/a/c", "/b/b", "/a/b/c", "/a//b", "/c;b")
DOORS = (("https", 443), ("https", 8443), ("http", 80))


def universe() -> Iterator[Concrete]:
    for host, door, method, websocket, path, session in product(
        HOSTS, DOORS, ("GET", "PUT"), (False, True), PATHS, SESSIONS
    ):
        yield Concrete(*door, host, method, websocket, path, *session)


def host(text: str) -> HostPattern:
    return HostPattern(text.removeprefix("*."), text.startswith("*."))


def path(text: str) -> PathPattern:
    segments = tuple(text[1:].split("/"))
    return PathPattern(segments[:-1], True) if segments[-1] == "**" else PathPattern(segments)


ONE = Credential(
    "one", SecretRef("vault", "a", "b", "c"), (host("x"), host("*.x")), HeaderInjection("x-key"),
    origins=frozenset(OriginClass),
)  # fmt: skip
TWO = replace(ONE, name="two", inject=HeaderInjection("x-2"))
GET = frozenset({"GET"})
BOTH = frozenset({"GET", "PUT"})
CLEAR = frozenset({80, 443})
PLAIN = Rule("plain", (host("x"),), GET, (path("/a"),))
USING = replace(PLAIN, name="using", credentials=("one",))
ALL = replace(USING, name="all", paths=(), methods=BOTH)


def policy(*rules: Rule, one: Credential = ONE, two: Credential = TWO) -> Policy:
    return Policy("p", "o", "0", {"one": one, "two": two}, rules)


PAIRS = {
    "an upgrade": (policy(USING), policy(replace(USING, websocket=True))),
    "a rule with upgrades": (policy(), policy(replace(USING, websocket=True))),
    "a slash at the end": (
        policy(replace(PLAIN, paths=(path("/a"), path("/a/*/**")))),
        policy(replace(PLAIN, paths=(path("/a/**"),))),
    ),
    "an upgrade elsewhere": (
        policy(USING, replace(PLAIN, paths=(path("/b"),))),
        policy(USING, replace(PLAIN, paths=(path("/b"),), websocket=True)),
    ),
    "no handle is needed": (policy(ALL), policy(ALL, one=replace(ONE, handle_required=False))),
    "no handle is needed, where it may go": (
        policy(ALL, one=replace(ONE, paths=(path("/a"),))),
        policy(ALL, one=replace(ONE, paths=(path("/a"),), handle_required=False)),
    ),
    "no handle of the other is needed": (
        policy(replace(ALL, credentials=("two", "one"))),
        policy(replace(ALL, credentials=("two", "one")), one=replace(ONE, handle_required=False)),
    ),
    "a credential's paths": (
        policy(ALL, one=replace(ONE, paths=(path("/a"),))),
        policy(ALL, one=replace(ONE, paths=(path("/a/**"),))),
    ),
    "a credential's methods": (policy(ALL, one=replace(ONE, methods=GET)), policy(ALL)),
    "a credential's hosts": (
        policy(replace(ALL, hosts=(host("*.x"),)), one=replace(ONE, hosts=(host("a.x"),))),
        policy(replace(ALL, hosts=(host("*.x"),))),
    ),
    "no credential counts any more": (policy(ALL), policy(ALL, one=replace(ONE, hosts=(host("y"),)))),
    "plain http of one rule": (
        policy(PLAIN, replace(PLAIN, name="b", paths=(path("/b"),))),
        policy(PLAIN, replace(PLAIN, name="b", paths=(path("/b"),), plain_http=True, ports=CLEAR)),
    ),
    "plain http of a credential": (
        policy(replace(ALL, plain_http=True, ports=CLEAR)),
        policy(replace(ALL, plain_http=True, ports=CLEAR), one=replace(ONE, plain_http=True)),
    ),
    "a port of the second rule": (
        policy(PLAIN, replace(PLAIN, name="b", paths=(path("/b"),))),
        policy(PLAIN, replace(PLAIN, name="b", paths=(path("/b"),), ports=frozenset({443, 8443}))),
    ),
    "a method of the first rule": (
        policy(PLAIN, replace(PLAIN, name="b", paths=(path("/b"),))),
        policy(replace(PLAIN, methods=BOTH), replace(PLAIN, name="b", paths=(path("/b"),))),
    ),
    "a segment more": (
        policy(replace(PLAIN, paths=(path("/a/*"),))), policy(replace(PLAIN, paths=(path("/a/**"),)))
    ),
    "any segment": (
        policy(replace(PLAIN, paths=(path("/a/b"),))), policy(replace(PLAIN, paths=(path("/*/b"),)))
    ),
    "every path, and every odd one": (
        policy(replace(PLAIN, paths=(path("/**"),))), policy(replace(PLAIN, paths=()))
    ),
    "paths that overlap": (
        policy(replace(PLAIN, paths=(path("/a/**"), path("/*/b")))),
        policy(replace(PLAIN, paths=(path("/a/**"),))),
    ),
    "names below": (policy(ALL), policy(replace(ALL, hosts=(host("x"), host("*.x"))))),
    "names below, but for one": (
        policy(replace(ALL, hosts=(host("a.x"),))), policy(replace(ALL, hosts=(host("*.x"),)))
    ),
    "an earlier rule without it": (policy(ALL), policy(PLAIN, ALL)),
    "other sessions": (
        policy(ALL, one=replace(ONE, origins=frozenset({OriginClass.SOCKET}))),
        policy(ALL, one=replace(ONE, isolation=Isolation.EMULATED)),
    ),
    "other sessions and more requests": (
        policy(USING, one=replace(ONE, isolation=Isolation.HARDWARE)),
        policy(ALL, one=replace(ONE, isolation=Isolation.EMULATED)),
    ),
    "another credential": (policy(ALL), policy(replace(ALL, credentials=("two",)))),
    "nothing": (policy(ALL), policy()),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_one_thing_that_differs_is_said_exactly(name: str) -> None:
    """Both ways round, for each request of a small universe."""
    one, other = PAIRS[name]
    before = {request: leaves(one, request) for request in universe()}
    after = {request: leaves(other, request) for request in universe()}
    assert before != after, "they are the same"
    there, back = compare("p", one, other), compare("p", other, one)
    plainly = [request for request in universe() if not written_otherwise(request.path, one, other)]
    for request, way in product(plainly, WAYS):
        gained, lost = way in after[request] - before[request], way in before[request] - after[request]
        assert says(there, Direction.WIDENS, way, request) == gained, (request, way)
        assert says(there, Direction.NARROWS, way, request) == lost, (request, way)
        assert says(back, Direction.NARROWS, way, request) == gained, (request, way)
        assert says(back, Direction.WIDENS, way, request) == lost, (request, way)


# --- what reads alike and is counted apart ----------------------------------------------------------------


def limited(*names: str, per: LimitScope = LimitScope.SESSION) -> Policy:
    """A rule for each name, on paths that are all below `/a`, each with a limit of its own."""
    limit = Limit(LimitKind.REQUESTS, 60, 60.0, 60, per)
    whole = (path("/a/**"),)
    return policy(
        *(
            replace(
                USING, name=name, limits=(limit,), paths=(path(f"/a/{name}"),) if name != "rest" else whole
            )
            for name in names
        )
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (limited("rest"), limited("b", "rest"), [(Direction.WIDENS, "rest")]),
        (limited("b", "rest"), limited("rest"), [(Direction.NARROWS, "rest")]),
        (limited("rest"), limited("rest"), []),
        (limited("rest", per=LimitScope.CREDENTIAL), limited("b", "rest", per=LimitScope.CREDENTIAL), []),
    ],
)
def test_a_limit_that_counts_twice_lets_more_through(
    old: Policy, new: Policy, expected: list[tuple[Direction, str]]
) -> None:
    """One count cut in two is twice as much; a credential's count stays one."""
    changes = [change for change in compare("p", old, new) if change.subject is Subject.TERMS]
    assert [(change.direction, change.rule) for change in changes] == expected


OBSERVING = BASE + "observe: {reason: to learn what it needs, until: 2027-01-31}\n"


def test_observing_longer_widens() -> None:
    """And less long narrows."""
    (longer,) = said(("2027-01-31", "2027-02-28"), base=OBSERVING)
    (shorter,) = said(("2027-01-31", "2027-01-01"), base=OBSERVING)
    assert longer.startswith("widens: policy `web`: what no rule allows passes")
    assert shorter.startswith("narrows: policy `web`: what no rule allows passes")


def test_a_new_policy_that_observes_says_so() -> None:
    """It allows more than its rules, and nobody compares it with anything."""
    said = [change.text for change in compare("web", None, load_policy("web", OBSERVING.encode()))]
    assert any("what no rule allows passes" in text for text in said)
    assert not any(
        "passes" in change.text for change in compare("web", None, load_policy("web", BASE.encode()))
    )


def test_sessions_are_told_when_they_are_not_the_usual_ones() -> None:
    """More requests, for sessions with a stronger isolation only; the usual origins are not recited."""
    strict = BASE.replace("    inject:", "    isolation: hardware\n    inject:")
    (widened,) = said(("methods: [GET]", "methods: [GET, PUT]"), base=strict)
    assert "with isolation hardware" in widened
    (usual,) = said(("methods: [GET]", "methods: [GET, PUT]"))
    assert "proven by" not in usual


PINNED = "  - name: pinned\n    hosts: [pinned.example]\n    tunnel: true\n    max_request: 10MiB\n"


def test_a_tunnel_that_opens_widens_and_so_does_a_wider_one() -> None:
    """Nothing in it is seen but how many bytes there are."""
    last = "    limits: {requests: 60/minute}\n"
    opened = "sessions of policy `web` may now open uninspected tunnels to 1 host"
    assert said((last, last + PINNED)) == [f"widens: {opened}"]
    assert said((PINNED, ""), base=BASE + PINNED) == [
        f"narrows: {opened.replace('may now', 'may no longer')}"
    ]
    assert said(("10MiB", "20MiB"), base=BASE + PINNED) == [
        "widens: rule `pinned`: bytes of one request from `10MiB` to `20MiB`"
    ]


def test_a_limit_of_what_is_refused_anyway_is_no_change() -> None:
    """A rule none of whose credentials counts lets nothing through, however often."""
    nowhere = replace(ONE, hosts=(host("y"),))
    once, twice = (Limit(LimitKind.REQUESTS, count, 60.0, count, LimitScope.SESSION) for count in (60, 120))
    old, new = (policy(replace(ALL, limits=(limit,)), one=nowhere) for limit in (once, twice))
    assert compare("p", old, new) == []
