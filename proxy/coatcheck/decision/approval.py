"""What a rule wants somebody to be asked before a request leaves, and which later ones an answer covers."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from coatcheck.decision.session import Session


class Same(StrEnum):
    """Which later request an answer covers."""

    REQUEST = "request"
    """Of the same method, host, path and query, with the same credentials. Its body may be another."""
    RULE = "rule"
    """Any request of the rule."""


class Whose(StrEnum):
    """For whom an answer counts."""

    SESSION = "session"
    SUBJECT = "subject"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Asking:
    """Somebody must say yes before a request of the rule leaves. Silence is no."""

    wait: float = 120.0
    """Seconds that a request is held for an answer."""
    remember: float = 0.0
    """Seconds for which a yes may be remembered, if whoever says it wants that; 0: each request asks anew."""
    same: Same = Same.REQUEST
    whose: Whose = Whose.SESSION


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked, as a key: two requests with the same one have the same answer.

    It holds the policy's hash, so that after a change of policy everything is asked again.
    """

    of: tuple[str, ...]
    policy_hash: str
    rule: str
    credentials: tuple[str, ...]
    method: str = ""
    host: str = ""
    target: bytes = b""
    """SHA-256 of path and query, which may be long and may hold a handle."""


def question(
    session: Session,
    policy_hash: str,
    rule: str,
    asking: Asking,
    credentials: tuple[str, ...],
    method: str,
    url: str,
    target: str,
) -> Question:
    """The key of a request that `rule`, which has `asking`, lets leave after a yes.

    `url`: scheme, host and port. `target`: path and query, as the client wrote them.
    """
    of = _whose(session, asking.whose)
    if asking.same is Same.RULE:
        return Question(of, policy_hash, rule, credentials)
    digest = hashlib.sha256(target.encode("utf-8", "surrogateescape")).digest()
    return Question(of, policy_hash, rule, credentials, method, url, digest)


def _whose(session: Session, whose: Whose) -> tuple[str, ...]:
    match whose:
        case Whose.SESSION:
            return ("session", session.id, str(session.generation))
        case Whose.SUBJECT:
            return ("subject", session.tenant, session.subject)
        case Whose.TENANT:
            return ("tenant", session.tenant)


def shown_target(target: str) -> str:
    """Path and the names of a query's parameters: their values may be credentials, and most are too long."""
    path, mark, query = target.partition("?")
    if not mark:
        return path
    names = dict.fromkeys(pair.partition("=")[0] for pair in query.split("&"))
    return f"{path}?{'&'.join(f'{name}=…' for name in names)}"
