"""One request under two policies: how the verdicts differ."""

from dataclasses import dataclass
from enum import StrEnum

from coatcheck.decision.approval import Asking
from coatcheck.decision.decide import Identified, NeedBody
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.policy import Credential
from coatcheck.decision.session import Session
from coatcheck.decision.verdict import Inject, Injection, Pass

type Judged = Deny | Identified | Pass | Inject | NeedBody | Session
"""What `decide` and `decide_connect` answer."""


class Comparison(StrEnum):
    """What the candidate does with a request, beside the policy in force."""

    SAME = "same"
    ALLOWS = "allows"
    """The policy in force refuses it."""
    REFUSES = "refuses"
    """The policy in force allows it."""
    CREDENTIALS = "credentials"
    """Both allow it, with other secrets, or in other places."""
    ASKS = "asks"
    """Both allow it, but differ in whether, or for how long, an approval is needed."""
    RULE = "rule"
    """Both allow it alike, by rules of different names."""
    REASON = "reason"
    """Both refuse it, for different reasons."""
    FAILED = "failed"
    """The candidate came to no verdict, through a fault of ours."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict as a record tells it."""

    reason: Reason | None
    """None: allowed."""
    rule: str
    credentials: tuple[str, ...]
    """By name; those that a body may still show are among them."""

    def __str__(self) -> str:
        said = f"refused, {self.reason}" if self.reason is not None else "allowed"
        rule = f", rule {self.rule}" if self.rule else ""
        return said + rule + (f", with {', '.join(self.credentials)}" if self.credentials else "")


def session_of(judged: Judged) -> Session | None:
    """Whose request it was; None when that was not known, and no policy was asked."""
    match judged:
        case Session():
            return judged
        case Deny():
            return None
        case _:
            return judged.session


def answer_of(judged: Judged) -> Answer:
    """`judged` without what only the request path needs."""
    match judged:
        case Identified():
            return answer_of(judged.denial)
        case Deny():
            return Answer(judged.reason, judged.rule or "", ())
        case Session():
            return Answer(None, "", ())
        case Pass():
            return Answer(None, judged.rule.name, ())
        case Inject():
            return Answer(None, judged.rule.name, tuple(i.credential.name for i in judged.injections))
        case NeedBody():
            shown = (i.credential.name for i in judged.injections)
            return Answer(None, judged.rule.name, (*shown, *(c.name for c in judged.credentials)))


def compare(active: Judged, candidate: Judged) -> Comparison:
    """What `candidate`, the verdict of another policy on the same request, would change.

    Where both wait for the body, all that its verdict depends on is compared instead.
    """
    one, other = answer_of(active), answer_of(candidate)
    if one.reason is not None and other.reason is not None:
        return Comparison.SAME if one.reason is other.reason else Comparison.REASON
    if one.reason is not None:
        return Comparison.ALLOWS
    if other.reason is not None:
        return Comparison.REFUSES
    if _given(active) != _given(candidate):
        return Comparison.CREDENTIALS
    if _asking(active) != _asking(candidate):
        return Comparison.ASKS
    return Comparison.SAME if one.rule == other.rule else Comparison.RULE


def _given(judged: Judged) -> object:
    """Which secrets go where."""
    match judged:
        case Inject():
            return sorted(map(_put_in, judged.injections), key=str)
        case NeedBody():
            shown = sorted(map(_put_in, judged.injections), key=str)
            return shown, judged.limit, [(_kind(c), c.origins, c.isolation) for c in judged.credentials]
        case _:
            return []


def _asking(judged: Judged) -> Asking | None:
    return judged.rule.asking if isinstance(judged, Pass | Inject | NeedBody) else None


def _put_in(injection: Injection) -> object:
    return injection.handle, _kind(injection.credential)


def _kind(credential: Credential) -> object:
    return credential.name, credential.secret, credential.inject
