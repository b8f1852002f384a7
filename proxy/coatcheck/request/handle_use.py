"""The handles that a request showed, and what they say while it runs: its session's, and its ancestors'"""

import math
from collections.abc import Mapping

from coatcheck.decision.decide import DecisionContext
from coatcheck.decision.handle import Claims, judge
from coatcheck.decision.message import RequestHead
from coatcheck.decision.policy import Credential
from coatcheck.decision.search import find
from coatcheck.decision.session import Session
from coatcheck.decision.verdict import Inject, Pass
from coatcheck.state.genuine import GenuineHandles


def foreign(session: Session | None, head: RequestHead, context: DecisionContext) -> tuple[Claims, ...]:
    """The genuine handles in `head` of sessions that are neither this one nor its ancestors."""
    line = {session.id, *session.ancestors} if session is not None else set()
    claims = (context.claims_of(item.text) for item in find(head, context.references, context.known))
    return tuple(each for each in claims if isinstance(each, Claims) and each.sid not in line)


def counts(claims: Claims, session: Session, credential: Credential, context: DecisionContext) -> bool:
    """Whether the handle would count in its own session, shown there now."""
    return judge(claims, session, credential, context.now, context.by_id) is None


def ancestor_shown(session: Session | None, verdict: Pass | Inject | None, known: GenuineHandles) -> str:
    """The ancestors whose strings were shown and counted, for the record; nearly always none, or one."""
    if session is None or not session.ancestors:
        return ""
    said = _claims(verdict, known) or []
    return ",".join(sorted({each.sid for each in said if each.sid != session.id}))


def one_revoked(
    session: Session, verdict: Pass | Inject | None, known: GenuineHandles, by_id: Mapping[str, Session]
) -> bool:
    """Whether somebody revoked one of the handles, or one can no longer be read."""
    ancestors = (by_id.get(each) for each in session.ancestors)
    revoked = session.revoked_handles.union(*(each.revoked_handles for each in ancestors if each is not None))
    if not revoked:
        return False
    claims = _claims(verdict, known)
    return claims is None or any(each.jti in revoked for each in claims)


def counts_until(
    session: Session | None, verdict: Pass | Inject | None, known: GenuineHandles
) -> float | None:
    """When the first of the session's own handles expires (Unix seconds). An ancestor's string ends with the
    session that it counts in, not at its own end. None: one of them says nothing any more."""
    claims = _claims(verdict, known)
    if claims is None:
        return None
    mine = session.id if session is not None else ""
    return min((each.expires_at for each in claims if each.sid == mine), default=math.inf)


def _claims(verdict: Pass | Inject | None, known: GenuineHandles) -> list[Claims] | None:
    """What the handles that were shown say; None when one of them says nothing any more."""
    injections = verdict.injections if isinstance(verdict, Inject) else ()
    said = [known.claims_of(shown.handle) for shown in injections if shown.handle is not None]
    claims = [each for each in said if isinstance(each, Claims)]
    return claims if len(claims) == len(said) else None
