"""Changes as values."""

from dataclasses import replace

from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Shape
from coatcheck.decision.session import Isolation, Session
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
    session_of,
)
from coatcheck.state.database import IssuedHandle, Status
from coatcheck.state.fleet_approvals import (
    ApprovalAnswered,
    ApprovalGone,
    ApprovalRemembered,
    ApprovalWaiting,
)

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
    ApprovalWaiting(
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
    ApprovalGone("apr_1"),
    ApprovalAnswered("apr_1", True, "alice", 900.0),
    ApprovalRemembered("ab" * 32, 3.5, "alice"),
)


def test_each_change_says_whose_it_is() -> None:
    """Keys are nobody's, and so is what approval is required."""
    assert {session_of(change) for change in ALL} == {"ses_1", ""}
