"""A rule's `ask`: a person must approve a request before it leaves. Also which later requests that covers."""

import hashlib
from collections.abc import Iterable
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
    """Seconds for which a yes may be remembered, if the person who says it wants that; 0: never."""
    same: Same = Same.REQUEST
    whose: Whose = Whose.SESSION


def strictest_asking(terms: Iterable[Asking | None]) -> Asking | None:
    """What holds if several rules apply: one `ask` is enough, and an answer covers the least of them."""
    asked = [asking for asking in terms if asking is not None]
    if len(asked) < 2:
        return asked[0] if asked else None
    return Asking(
        wait=min(asking.wait for asking in asked),
        remember=min(asking.remember for asking in asked),
        same=min((asking.same for asking in asked), key=list(Same).index),
        whose=min((asking.whose for asking in asked), key=list(Whose).index),
    )


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
    readings: bytes = b""
    """SHA-256 of what else the request may be taken for (`steering.describe`)."""


def question(
    session: Session,
    policy_hash: str,
    rule: str,
    asking: Asking,
    credentials: tuple[str, ...],
    method: str,
    url: str,
    target: str,
    readings: tuple[str, ...] = (),
) -> Question:
    """The key of a request that `rule`, which has `asking`, lets leave after a yes.

    `rule`: every rule that has a say. `url`: scheme, host and port. `target`: path and query, as the client
    wrote them. `readings`: what else the request may be taken for. A yes to a whole rule is one to requests
    that are what they seem: with other readings each one is asked about by itself.
    """
    of = _whose(session, asking.whose)
    if asking.same is Same.RULE and not readings:
        return Question(of, policy_hash, rule, credentials)
    digest, others = (
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (target, repr(readings))
    )
    return Question(of, policy_hash, rule, credentials, method, url, digest, others if readings else b"")


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
