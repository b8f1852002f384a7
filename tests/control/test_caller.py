"""Grants as values: what each covers."""

import pytest

from coatcheck.control.caller import Action, Caller, Role, owner
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.session import Isolation, Session

LAUNCHER = Caller(
    "ci",
    Role.LAUNCHER,
    frozenset({"acme"}),
    frozenset({"default"}),
    frozenset({Isolation.EMULATED}),
    frozenset({OriginClass.SOCKET}),
)


def session(tenant: str, opened_by: str) -> Session:
    origin = Origin(OriginClass.SOCKET, "ses_1")
    return Session(
        "ses_1",
        tenant,
        "a",
        "default",
        origin,
        frozenset(),
        Isolation.NONE,
        1,
        0,
        1,
        1,
        1,
        opened_by=opened_by,
    )


@pytest.mark.parametrize(
    ("tenant", "policy", "isolation", "origin", "lacks"),
    [
        ("acme", "default", Isolation.EMULATED, OriginClass.SOCKET, None),
        ("globex", "default", Isolation.EMULATED, OriginClass.SOCKET, "this tenant"),
        ("acme", "other", Isolation.EMULATED, OriginClass.SOCKET, "this policy"),
        ("acme", "default", Isolation.HARDWARE, OriginClass.SOCKET, "isolation hardware"),
        ("acme", "default", Isolation.EMULATED, OriginClass.BEARER, "origin class bearer"),
        ("", "", Isolation.NONE, OriginClass.MTLS, "this tenant"),
    ],
)
def test_a_launcher_gives_what_its_grant_names(
    tenant: str, policy: str, isolation: Isolation, origin: OriginClass, lacks: str | None
) -> None:
    """Each of tenant, policy, isolation and origin must be there; stronger isolation is no substitute."""
    assert LAUNCHER.may_give(tenant, policy, isolation, origin) == lacks


def test_a_launcher_sees_its_own_sessions_only() -> None:
    """Not those of its tenant that somebody else opened."""
    assert LAUNCHER.sees(session("acme", "ci"))
    assert not LAUNCHER.sees(session("acme", "uid:0"))


def test_an_operator_sees_its_tenants() -> None:
    """Whichever caller opened the session."""
    operator = Caller("ops", Role.OPERATOR, frozenset({"acme"}))
    assert operator.sees(session("acme", "ci"))
    assert not operator.sees(session("globex", "ci"))
    assert operator.may_give("acme", "default", Isolation.NONE, OriginClass.SOCKET) == "the role operator"


def test_metrics_are_for_those_who_see_all_tenants() -> None:
    """They count everybody's requests together."""
    assert Caller("a", Role.AUDITOR, frozenset({"*"})).may(Action.MEASURE)
    assert not Caller("a", Role.AUDITOR, frozenset({"acme"})).may(Action.MEASURE)


def test_a_caller_without_grants_may_do_nothing_that_gives_or_shows_sessions() -> None:
    """Default deny."""
    empty = Caller("x", Role.LAUNCHER)
    assert empty.may_give("acme", "default", Isolation.NONE, OriginClass.SOCKET) is not None
    assert not empty.sees(session("acme", "ci"))


def test_the_owner_may_do_everything() -> None:
    """It could read the daemon's memory anyway."""
    caller = owner("uid:0")
    assert all(caller.may(action) for action in Action)
    assert all(
        caller.may_give("any", "any", each, kind) is None for each in Isolation for kind in OriginClass
    )
