"""Whose request it is. Does not mint, does not store: `state` does."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Origin, OriginClass, Peer

MAX_ANCESTORS: Final = 128
"""Lives that a session may come after. Each is some hundred bytes that are kept for as long as the youngest
lives; a sandbox that sleeps and wakes four times a day reaches it after a month."""


class Isolation(StrEnum):
    """What stands between the agent and the host, weakest last."""

    HARDWARE = "hardware"
    EMULATED = "emulated"
    GVISOR = "gvisor"
    NAMESPACE = "namespace"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Session:
    """One sandbox's life with us. Times are seconds: `*_at` on the wall clock (Unix time),
    `lease_deadline` on the monotonic clock of this daemon."""

    id: str
    tenant: str
    subject: str
    policy: str
    origin: Origin
    credentials: frozenset[str]
    """Names of the policy's credentials that this session was granted."""
    isolation: Isolation
    generation: int
    """Which life of its sandbox the session is of: later than every ancestor's, and raised by a rebind. A
    handle counts only in the generation in which it was issued (I4)."""
    opened_at: float
    expires_at: float
    lease_seconds: float
    lease_deadline: float
    revoked: bool = False
    opened_by: str = ""
    """The caller that opened it."""
    revoked_handles: frozenset[str] = frozenset()
    """Ids (`jti`) of handles that were revoked one by one."""
    ancestors: frozenset[str] = frozenset()
    """Ids of the sessions whose strings this one's processes may hold, because it was forked, restored or
    woken from what those were: here such a string names *this* session's grant, nothing of theirs (I10)."""
    born: int = 0
    """The generation that it was opened with, which no rebind raises: what an ancestor was given from that
    one on came after the fork. 0: not known, so nothing of an ancestor counts."""


@dataclass(frozen=True, slots=True)
class Now:
    """One reading of both clocks, taken once a request. `wall` never goes back."""

    wall: float
    monotonic: float


def alive(session: Session, now: Now) -> Deny | None:
    """None while the session may act, else why not. Revocation first: it is the strongest word."""
    if session.revoked:
        return Deny(Reason.SESSION_REVOKED)
    if now.wall >= session.expires_at:
        return Deny(Reason.SESSION_EXPIRED)
    if now.monotonic >= session.lease_deadline:
        return Deny(Reason.LEASE_LAPSED)
    return None


def identify(peer: Peer, by_origin: Mapping[Origin, Session], now: Now) -> Session | Deny:
    """The live session that the peer's strongest matching origin proves.

    Two origins that prove two different sessions are a contradiction, and refused.
    """
    found: Session | None = None
    for origin in peer.origins:
        session = by_origin.get(origin)
        if session is None:
            continue
        if found is not None and session.id != found.id:
            return Deny(Reason.ORIGIN_UNKNOWN, "origins name different sessions", alarm=True)
        found = session
    if found is None:
        return Deny(Reason.ORIGIN_UNKNOWN, f"listener {peer.listener}")
    return alive(found, now) or found


def isolation_at_least(have: Isolation, want: Isolation) -> bool:
    order = (
        Isolation.NONE,
        Isolation.NAMESPACE,
        Isolation.GVISOR,
        Isolation.EMULATED,
        Isolation.HARDWARE,
    )
    return order.index(have) >= order.index(want)


DEFAULT_ORIGIN_CLASSES = frozenset(OriginClass) - {OriginClass.BEARER}
"""What a credential accepts unless its policy says otherwise: `bearer` does not stop theft."""
