"""Terms: every field of a rule, a credential and a policy is compared, in the right direction."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.approval import Asking, Same, Whose
from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.injection import Injector
from coatcheck.decision.observation import Observation
from coatcheck.decision.policy import (
    Credential,
    HandlesInBody,
    HostPattern,
    Limit,
    LimitKind,
    LimitScope,
    Policy,
    Rule,
    SecretRef,
    Shape,
)
from coatcheck.injectors.basic import BasicInjection
from coatcheck.injectors.body import BodyInjection
from coatcheck.injectors.header import HeaderInjection
from coatcheck.injectors.path import PathInjection
from coatcheck.injectors.query import QueryInjection
from coatcheck.injectors.sigv4 import SigV4Injection
from coatcheck.policy.diff.terms import (
    credential_terms,
    exceeds,
    filesystem_terms,
    observe_terms,
    rule_terms,
)
from tests.policy.diff.test_cells import UNHURRIED

RULE = Rule("r", (HostPattern("x"),), frozenset({"GET"}), ())
KEY = Credential("k", SecretRef("vault", "a", "b", "c"), (HostPattern("x"),), HeaderInjection("x-key"))


def limit(count: int, period: float, burst: int, kind: LimitKind = LimitKind.REQUESTS) -> Limit:
    return Limit(kind, count, period, burst, LimitScope.SESSION)


LIMITS = st.lists(
    st.builds(limit, st.integers(1, 6), st.sampled_from([1.0, 60.0]), st.integers(1, 6)), max_size=3
)
MOMENTS = [0.0, *(2.0**exponent for exponent in range(-8, 24))]


@UNHURRIED
@given(LIMITS, LIMITS)
def test_limits_let_through_more_exactly_when_some_moment_shows_it(
    some: list[Limit], others: list[Limit]
) -> None:
    """Against the least that all of them let through, at moments from a split second to a year, and where any
    two of their lines cross."""

    def most(limits: list[Limit], t: float) -> float:
        return min((each.burst + each.count / each.period * t for each in limits), default=float("inf"))

    lines = [(each.burst, each.count / each.period) for each in (*some, *others)]
    crossings = [(b[0] - a[0]) / (a[1] - b[1]) for a in lines for b in lines if a[1] != b[1]]
    moments = [*MOMENTS, *(t for t in crossings if t >= 0)]
    seen = any(most(some, t) > most(others, t) * (1 + 1e-9) for t in moments)
    assert exceeds(some, others) == seen


def directions(found: object) -> list[str]:
    return [term.direction.value for term in found]  # type: ignore[attr-defined]


RULE_TERMS: dict[str, list[tuple[object, list[str]]]] = {
    "limits": [
        ((limit(1, 60.0, 1),), ["narrows"]),
        ((limit(3, 1.0, 3, LimitKind.CONCURRENT),), ["narrows"]),
    ],
    "max_request_bytes": [(1024, ["narrows"])],
    "max_response_bytes": [(1024, ["narrows"])],
    "handles_in_body": [(HandlesInBody.MASK, ["narrows"]), (HandlesInBody.REFUSE, ["narrows"])],
    "http2": [(True, ["changes"])],
    "scrub": [(False, ["widens"])],
    "compression": [(True, ["widens"])],
    "asking": [(Asking(), ["narrows"])],
}
BY_REQUESTS = {
    "name",
    "hosts",
    "methods",
    "paths",
    "ports",
    "credentials",
    "plain_http",
    "websocket",
    "tunnel",
    "further",  # never in a file: rules whose terms hold for a request of several readings
}


def test_no_field_of_a_rule_is_forgotten() -> None:
    """A new one has to be put into one of the two groups, or reviewers would not see it change."""
    assert {field.name for field in fields(Rule)} == set(RULE_TERMS) | BY_REQUESTS
    for name, cases in RULE_TERMS.items():
        for value, expected in cases:
            changed = replace(RULE, **{name: value})  # type: ignore[arg-type]
            assert directions(rule_terms(RULE, changed)) == expected
            back = [{"narrows": "widens", "widens": "narrows"}.get(word, word) for word in expected]
            assert directions(rule_terms(changed, RULE)) == back
    assert list(rule_terms(RULE, replace(RULE, name="other", methods=frozenset({"PUT"})))) == []


CREDENTIAL_TERMS: dict[str, tuple[object, list[str], list[str]]] = {
    "secret": (SecretRef("vault", "a", "other", "c"), ["widens"], ["widens"]),
    "inject": (QueryInjection("key"), ["widens", "narrows"], ["widens", "narrows"]),
    "other_injectors": ((BasicInjection(),), ["widens"], ["narrows"]),
    "env": ("KEY", ["changes"], ["changes"]),
    "shape": (Shape("sk-"), ["changes"], ["changes"]),
    "keep_set_cookie": (True, ["widens"], ["narrows"]),
    "scrub": (False, ["widens"], ["narrows"]),
    "revoke_on_theft": (True, ["narrows"], ["widens"]),
    "inherit": (False, ["narrows"], ["widens"]),
}
BY_REQUEST_OR_SESSION = {
    "name",
    "hosts",
    "methods",
    "paths",
    "handle_required",
    "origins",
    "isolation",
    "plain_http",
}


def test_no_field_of_a_credential_is_forgotten() -> None:
    """As above; in both directions."""
    assert {field.name for field in fields(Credential)} == set(CREDENTIAL_TERMS) | BY_REQUEST_OR_SESSION
    for name, (value, there, back) in CREDENTIAL_TERMS.items():
        changed = replace(KEY, **{name: value})  # type: ignore[arg-type]
        assert directions(credential_terms(KEY, changed)) == there, name
        assert directions(credential_terms(changed, KEY)) == back, name


def test_no_field_of_a_policy_is_forgotten() -> None:
    """The digest and the index follow from the rest; rules and credentials are looked at one by one."""
    looked_at = {"name", "owner", "sha256", "credentials", "rules", "filesystem", "observe", "index"}
    assert {field.name for field in fields(Policy)} == looked_at


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (HeaderInjection("a", "Bearer {secret}"), HeaderInjection("a", "token {secret}"), ["changes"]),
        (BasicInjection("me"), BasicInjection(), ["changes"]),
        (PathInjection("bot"), PathInjection("but"), ["widens", "narrows"]),
        (BodyInjection("f", max_bytes=10), BodyInjection("f", max_bytes=20), ["widens"]),
        (BodyInjection("f", max_bytes=20), BodyInjection("f", max_bytes=10), ["narrows"]),
        (SigV4Injection(frozenset({"s3"})), SigV4Injection(), ["widens"]),
        (SigV4Injection(), SigV4Injection(frozenset({"s3"})), ["narrows"]),
        (SigV4Injection(frozenset({"s3"})), SigV4Injection(frozenset({"s3", "sqs"})), ["widens"]),
        (SigV4Injection(frozenset({"s3"})), SigV4Injection(frozenset({"sqs"})), ["widens", "narrows"]),
        (
            SigV4Injection(regions=frozenset({"a", "b"})),
            SigV4Injection(regions=frozenset({"a"})),
            ["narrows"],
        ),
    ],
)
def test_the_same_place_in_another_way(old: Injector, new: Injector, expected: list[str]) -> None:
    """What a place lets through more of widens; how it is written does not."""
    assert directions(credential_terms(replace(KEY, inject=old), replace(KEY, inject=new))) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, None, []),
        (None, Filesystem((), ()), ["narrows"]),
        (Filesystem((), ()), None, ["widens"]),
        (Filesystem(("/a/b",), ()), Filesystem(("/a",), ()), ["widens"]),
        (Filesystem(("/a",), ()), Filesystem(("/a/b",), ()), ["narrows"]),
        (Filesystem(("/a", "/a/b"), ()), Filesystem(("/a",), ()), []),
        (Filesystem((), ("/a",)), Filesystem((), ("/a/b",)), ["widens"]),
        (Filesystem((), ("/a",)), Filesystem((), ("/b",)), ["widens", "narrows"]),
    ],
)
def test_places_of_the_sandbox_s_files(
    old: Filesystem | None, new: Filesystem | None, expected: list[str]
) -> None:
    """A place stands for all below it."""
    assert directions(filesystem_terms(old, new)) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Asking(remember=60.0), ["widens"]),
        (Asking(same=Same.RULE), ["widens"]),
        (Asking(whose=Whose.SUBJECT), ["widens"]),
        (Asking(wait=1.0), ["changes"]),
        (Asking(remember=60.0, whose=Whose.TENANT), ["widens", "widens"]),
    ],
)
def test_a_yes_that_covers_more_widens(other: Asking, expected: list[str]) -> None:
    """For longer, for other requests, for other people; and the opposite narrows."""
    asked, otherwise = replace(RULE, asking=Asking()), replace(RULE, asking=other)
    assert directions(rule_terms(asked, otherwise)) == expected
    back = [{"widens": "narrows"}.get(word, word) for word in expected]
    assert directions(rule_terms(otherwise, asked)) == back


def test_a_policy_that_observes_longer_widens() -> None:
    """Whatever no rule allows passes meanwhile; the reason for it is no permission."""
    january, february = Observation("learning", 1_800_000_000.0), Observation("still", 1_802_000_000.0)
    (begun,) = observe_terms(None, january)
    assert (begun.direction, begun.before, begun.after) == ("widens", "no", "until 2027-01-15 08:00 UTC")
    assert directions(observe_terms(january, february)) == ["widens"]
    assert directions(observe_terms(february, january)) == ["narrows"]
    assert directions(observe_terms(january, None)) == ["narrows"]
    assert directions(observe_terms(january, replace(january, reason="other"))) == []


def test_amounts_are_said_as_people_write_them() -> None:
    """So that the line can be found in the file."""
    old = replace(RULE, limits=(Limit(LimitKind.BYTES_UP, 10 << 20, 3600.0, 10 << 20, LimitScope.TENANT),))
    new = replace(RULE, max_request_bytes=1536)
    said = [(term.what, term.before, term.after) for term in rule_terms(old, new)]
    assert said == [
        ("bytes sent of one tenant", "10MiB/hour", "no limit"),
        ("bytes of one request", "no limit", "1536B"),
    ]
