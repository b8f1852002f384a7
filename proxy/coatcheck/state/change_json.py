"""Changes as JSON: for the shared state, where they are sealed, and for the outbox in our own database."""

import json
from dataclasses import astuple
from typing import Any, Final

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
)
from coatcheck.state.database import IssuedHandle, Status
from coatcheck.state.fleet_approvals import (
    ApprovalAnswered,
    ApprovalGone,
    ApprovalRemembered,
    ApprovalWaiting,
)

_APPROVALS: Final = {
    ApprovalWaiting: "Asked",
    ApprovalGone: "AskedNoMore",
    ApprovalAnswered: "Answered",
    ApprovalRemembered: "Allowed",
}
"""As daemons of every release write them."""


def written(change: Change) -> str:
    """One change as one line; the same for the same change."""
    return json.dumps(_plain(change), separators=(",", ":"), sort_keys=True)


def read(text: str) -> Change:
    """What `written` wrote. ValueError for anything else: it was sealed by a newer coatcheck, or damaged."""
    try:
        return _change(json.loads(text))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"this is not a known change ({type(error).__name__})") from None


def _plain(change: Change) -> list[Any]:
    match change:
        case Opened(session, until):
            return ["opened", _plain_session(session), until]
        case Minted(handle):
            claims, shape = handle.claims, handle.shape
            plain_claims = [claims.sid, claims.cred, claims.generation, claims.issued_at, claims.expires_at]
            plain_shape = [shape.prefix, shape.length] if shape is not None else None
            return ["minted", [*plain_claims, claims.jti], handle.digest.hex(), plain_shape, handle.revoked]
        case Rebound(session_id, generation):
            return ["rebound", session_id, generation]
        case KeysChanged(keys):
            return ["keys", keys]
        case Renewed(session_id, seconds, until):
            return ["renewed", session_id, seconds, until]
        case Closed(session_id, status, at):
            return ["closed", session_id, status.value, at]
        case HandleRevoked(session_id, jti):
            return ["handle", session_id, jti]
        case CredentialsLeft(session_id, credentials):
            return ["credentials", session_id, sorted(credentials)]
        case ApprovalWaiting() | ApprovalGone() | ApprovalAnswered() | ApprovalRemembered():
            return [_APPROVALS[type(change)], *astuple(change)]


def _change(plain: list[Any]) -> Change:
    match plain:
        case ["opened", session, until]:
            return Opened(_session(session), float(until))
        case ["minted", claims, digest, shape, revoked]:
            issued = Claims(*claims)
            kept = Shape(*shape) if shape is not None else None
            return Minted(IssuedHandle(issued, bytes.fromhex(digest), kept, bool(revoked)))
        case ["rebound", str(session_id), int(generation)]:
            return Rebound(session_id, generation)
        case ["keys", dict(keys)]:
            return KeysChanged(keys)
        case ["renewed", str(session_id), seconds, until]:
            return Renewed(session_id, float(seconds), float(until))
        case ["closed", str(session_id), status, at]:
            return Closed(session_id, Status(status), float(at))
        case ["handle", str(session_id), str(jti)]:
            return HandleRevoked(session_id, jti)
        case ["credentials", str(session_id), list(names)]:
            return CredentialsLeft(session_id, frozenset(names))
        case ["Asked", name, session, at, until, request, rule, list(credentials), *rest] if len(rest) == 8:
            method, destination, path, wait, remember, same, whose, readings = rest
            who = (name, session, float(at), float(until), request, rule, tuple(credentials))
            what = (method, destination, path, float(wait), float(remember), same, whose)
            return ApprovalWaiting(*who, *what, tuple(readings))
        case ["AskedNoMore", str(name)]:
            return ApprovalGone(name)
        case ["Answered", str(name), bool(yes), str(approver), remember]:
            return ApprovalAnswered(name, yes, approver, float(remember))
        case ["Allowed", str(question), until, str(approver)]:
            return ApprovalRemembered(question, float(until), approver)
        case _:
            raise ValueError("this is not a known change")


def _plain_session(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "tenant": session.tenant,
        "subject": session.subject,
        "policy": session.policy,
        "origin": [session.origin.kind.value, session.origin.value],
        "credentials": sorted(session.credentials),
        "isolation": session.isolation.value,
        "generation": session.generation,
        "opened_at": session.opened_at,
        "expires_at": session.expires_at,
        "lease_seconds": session.lease_seconds,
        "opened_by": session.opened_by,
        "ancestors": sorted(session.ancestors),
        "born": session.born,
    }


def _session(plain: dict[str, Any]) -> Session:
    """Without a lease: what is left of that is known where it is applied."""
    kind, value = plain["origin"]
    return Session(
        id=plain["id"],
        tenant=plain["tenant"],
        subject=plain["subject"],
        policy=plain["policy"],
        origin=Origin(OriginClass(kind), value),
        credentials=frozenset(plain["credentials"]),
        isolation=Isolation(plain["isolation"]),
        generation=plain["generation"],
        opened_at=plain["opened_at"],
        expires_at=plain["expires_at"],
        lease_seconds=plain["lease_seconds"],
        lease_deadline=float("-inf"),
        opened_by=plain["opened_by"],
        ancestors=frozenset(plain["ancestors"]),
        # An earlier coatcheck did not write it, and its snapshots hold generations that were raised since.
        born=plain.get("born", 0),
    )
