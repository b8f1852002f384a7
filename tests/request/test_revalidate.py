"""Whether a verdict stands under other policies, and for a method that only the body named."""

from dataclasses import replace
from typing import Any

import pytest

from coatcheck.decision.approval import Asking
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, Origin, OriginClass, RequestHead
from coatcheck.decision.policy import HostPattern, Policy, Rule
from coatcheck.decision.session import Isolation, Session
from coatcheck.decision.verdict import Pass
from coatcheck.request.revalidate import revalidate, revalidate_as

HERE = Destination("https", "api.example.org", 443)
HEAD = RequestHead("POST", "/x", ())
SESSION = Session(
    "s", "t", "u", "p", Origin(OriginClass.SOCKET, "o"), frozenset(), Isolation.NONE, 1, 0.0, 9.0, 9.0, 9.0
)
RULE = Rule("both", (HostPattern("api.example.org"),), frozenset({"POST", "DELETE"}), ())


def policy(*rules: Rule) -> Policy:
    return Policy("p", "o", "0", rules=rules)


def after(rule: Rule) -> Pass:
    return Pass(SESSION, rule)


def test_a_method_in_a_form_is_allowed_under_the_same_terms_alone() -> None:
    """By the very rule that let the request out, and if nobody was asked, who could not have seen it."""
    assert revalidate_as(policy(RULE), HERE, HEAD, after(RULE), "DELETE") is None
    deletes = replace(RULE, name="deletes", methods=frozenset({"DELETE"}))
    posts = replace(RULE, name="posts", methods=frozenset({"POST"}))
    asked = replace(RULE, asking=Asking())
    cases: list[tuple[Policy | None, Rule]] = [
        (policy(deletes, posts), posts), (policy(posts), posts), (policy(asked), asked), (None, RULE),
    ]  # fmt: skip
    for of, rule in cases:
        refused = revalidate_as(of, HERE, HEAD, after(rule), "DELETE")
        assert isinstance(refused, Deny) and "DELETE" in (refused.detail or "DELETE")


@pytest.mark.parametrize(
    ("now", "stands"),
    [({}, True), ({"name": "another"}, False), ({"limits": ()}, True), ({"asking": Asking(wait=5.0)}, True)],
)
def test_an_approval_is_one_under_the_rules_that_asked(now: dict[str, Any], stands: bool) -> None:
    """What is in force now may ask for something else than the person was asked about."""
    asked = replace(RULE, asking=Asking())
    found = revalidate(policy(replace(asked, **now)), HERE, HEAD, after(asked), 1.0)
    if stands:
        assert isinstance(found, Rule)
    else:
        assert isinstance(found, Deny) and found.reason is Reason.APPROVAL_TIMEOUT
