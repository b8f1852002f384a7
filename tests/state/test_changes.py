"""Which changes may follow others that their maker did not know of."""

from dataclasses import replace

from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Shape
from coatcheck.decision.session import Isolation, Session
from coatcheck.state.asked import Allowed, Answered, Asked, AskedNoMore
from coatcheck.state.changes import (
    Change,
    Closed,
    CredentialsLeft,
    HandleRevoked,
    KeysChanged,
    Minted,
    Opened,
    Rebound,
    Renewed,
    conflict,
    session_of,
)
from coatcheck.state.database import IssuedHandle, Status

SESSION = Session(
    id="ses_1",
    tenant="acme",
    subject="agent é",
    policy="agents",
    origin=Origin(OriginClass.TOKEN, "issuer|1"),
    credentials=frozenset({"openai", "github"}),
    isolation=Isolation.NAMESPACE,
    generation=2,
    opened_at=1.5,
    expires_at=43_201.5,
    lease_seconds=120.0,
    lease_deadline=float("-inf"),
    opened_by="launcher",
    ancestors=frozenset({"ses_0"}),
    born=1,
)
OTHER = replace(SESSION, id="ses_2", origin=Origin(OriginClass.TOKEN, "issuer|2"))
HANDLE = IssuedHandle(
    Claims("ses_1", "openai", 2, 1, 43_201, "jti-1"), b"\1" * 32, Shape("sk-", 48), revoked=True
)
ALL: tuple[Change, ...] = (
    Opened(SESSION, 121.5),
    Minted(HANDLE),
    Minted(replace(HANDLE, shape=None, revoked=False)),
    Rebound("ses_1", 3),
    KeysChanged({"active": {"private": "00", "created_at": 1.0}, "retired": []}),
    Renewed("ses_1", 120.0, 240.5),
    Closed("ses_1", Status.REVOKED, 99.25),
    HandleRevoked("ses_1", "jti-1"),
    CredentialsLeft("ses_1", frozenset({"github"})),
    Asked(
        "apr_1",
        "ses_1",
        1.5,
        2.5,
        "r1",
        "merge",
        ("github",),
        "PUT",
        "https://a",
        "/x",
        60.0,
        0.0,
        "rule",
        "tenant",
    ),
    AskedNoMore("apr_1"),
    Answered("apr_1", True, "alice", 900.0),
    Allowed("ab" * 32, 3.5, "alice"),
)


def test_each_change_says_whose_it_is() -> None:
    """Keys are nobody's, and so is what approval is required."""
    assert {session_of(change) for change in ALL} == {"ses_1", ""}


def test_an_origin_is_given_once() -> None:
    """To whoever was first in the log; another origin is nobody's concern."""
    same = Opened(replace(OTHER, origin=SESSION.origin), 1.0)
    assert conflict([same], [Opened(SESSION, 1.0)]) == "its origin proves session ses_1 already"
    assert conflict([Opened(OTHER, 1.0)], [Opened(SESSION, 1.0)]) is None


def test_nothing_is_given_to_what_was_changed_meanwhile() -> None:
    """Its maker judged a session that is no longer like that."""
    for theirs in (
        Closed("ses_1", Status.ENDED, 1.0),
        Rebound("ses_1", 3),
        CredentialsLeft("ses_1", frozenset()),
    ):
        assert "ses_1" in (conflict([Minted(HANDLE)], [theirs]) or "")
        assert "ses_1" in (conflict([Rebound("ses_1", 4)], [theirs]) or "")
        assert conflict([Opened(OTHER, 1.0), Rebound("ses_2", 2)], [theirs]) is None


def test_keys_are_changed_by_one_at_a_time() -> None:
    """Else what the first signed would count nowhere."""
    keys = KeysChanged({})
    assert conflict([keys], [keys]) is not None
    assert conflict([keys], [Opened(SESSION, 1.0)]) is None


def test_a_child_is_not_opened_of_what_something_was_taken_from_meanwhile() -> None:
    """It has what its maker knew its parent to have. That its parent ended, or began anew, is no matter."""
    for theirs in (Closed("ses_0", Status.REVOKED, 1.0), CredentialsLeft("ses_0", frozenset())):
        assert "ses_0" in (conflict([Opened(SESSION, 1.0)], [theirs]) or "")
        assert conflict([Opened(replace(OTHER, ancestors=frozenset()), 1.0)], [theirs]) is None
    for harmless in (Closed("ses_0", Status.ENDED, 1.0), Rebound("ses_0", 3)):
        assert conflict([Opened(SESSION, 1.0)], [harmless]) is None
