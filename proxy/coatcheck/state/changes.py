"""What may change in the sessions of a fleet, as values: one daemon notes them, the others apply them.

Each may be applied twice, and what takes may be applied in any order: a session that is over stays over,
credentials and handles only go, a generation only grows.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from coatcheck.decision.session import Session
from coatcheck.state.database import IssuedHandle, Status
from coatcheck.state.fleet_approvals import (
    ApprovalAnswered,
    ApprovalChange,
    ApprovalGone,
    ApprovalRemembered,
    ApprovalWaiting,
)


@dataclass(frozen=True, slots=True)
class Opened:
    session: Session
    lease_until: float
    """Unix seconds: of the monotonic clock each daemon has its own."""


@dataclass(frozen=True, slots=True)
class Minted:
    handle: IssuedHandle


@dataclass(frozen=True, slots=True)
class Rebound:
    session: str
    generation: int


@dataclass(frozen=True, slots=True)
class KeysChanged:
    """The keys that sign handles from now on, as `SigningKeys.exported` gives them."""

    keys: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Renewed:
    session: str
    seconds: float
    until: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Closed:
    session: str
    status: Status
    at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class HandleRevoked:
    session: str
    jti: str


@dataclass(frozen=True, slots=True)
class CredentialsLeft:
    """All but these were taken from a session that goes on."""

    session: str
    credentials: frozenset[str]


type SessionsChange = (
    Opened | Minted | Rebound | KeysChanged | Renewed | Closed | HandleRevoked | CredentialsLeft
)
type Change = SessionsChange | ApprovalChange

TAKING: Final = (Closed, HandleRevoked, CredentialsLeft)
"""These are in force here before anybody else knows of them."""


def session_of(change: Change) -> str:
    """The session that a change is about; empty for keys, and for approvals."""
    match change:
        case ApprovalWaiting() | ApprovalGone() | ApprovalAnswered() | ApprovalRemembered():
            return ""
        case Opened(session):
            return session.id
        case Minted(handle):
            return handle.claims.sid
        case KeysChanged():
            return ""
        case _:
            return change.session
