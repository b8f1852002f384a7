"""What the daemons of a fleet tell each other about requests that wait for approval. In memory only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_KNOWN: Final = 10_000
"""Requests, and answers that count for later ones; the oldest goes first, and is asked for again."""


@dataclass(frozen=True, slots=True)
class ApprovalWaiting:
    """A request waits at one of them. The fields are those of `approvals.Waiting`."""

    id: str
    session: str
    asked_at: float
    until: float
    """Unix seconds."""
    request_id: str
    rule: str
    credentials: tuple[str, ...]
    method: str
    destination: str
    path: str
    wait: float
    remember: float
    same: str
    whose: str
    readings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalGone:
    """It was answered, or went away."""

    id: str


@dataclass(frozen=True, slots=True)
class ApprovalAnswered:
    """Somebody's word, said at another daemon than where the request waits."""

    id: str
    yes: bool
    approver: str
    remember: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class ApprovalRemembered:
    """A yes that counts for later requests."""

    question: str
    """SHA-256 of `decision.approval.Question`."""
    until: float
    """Unix seconds."""
    approver: str


type ApprovalChange = ApprovalWaiting | ApprovalGone | ApprovalAnswered | ApprovalRemembered


class FleetApprovals:
    """Changed while `State` shows; read without it, one step at a time."""

    def __init__(self) -> None:
        self.waiting: dict[str, ApprovalWaiting] = {}
        self.remembered: dict[str, ApprovalRemembered] = {}
        self.on_answered: Callable[[ApprovalAnswered], None] = lambda answered: None
        """Called in the thread that reads the shared state. It must not block."""

    def show(self, change: ApprovalChange, wall: float) -> None:
        match change:
            case ApprovalWaiting():
                self.waiting[change.id] = change
                self.waiting = _young(self.waiting, wall)
            case ApprovalGone(name):
                self.waiting.pop(name, None)
            case ApprovalAnswered():
                self.on_answered(change)
            case ApprovalRemembered():
                self.remembered[change.question] = change
                self.remembered = _young(self.remembered, wall)

    def changes(self, wall: float) -> list[ApprovalChange]:
        """What a daemon that begins now must know."""
        known: list[ApprovalChange] = [*self.waiting.values(), *self.remembered.values()]
        return [
            each
            for each in known
            if not isinstance(each, ApprovalWaiting | ApprovalRemembered) or wall < each.until
        ]

    def clear(self) -> None:
        self.waiting, self.remembered = {}, {}


def _young[T: (ApprovalWaiting, ApprovalRemembered)](known: dict[str, T], wall: float) -> dict[str, T]:
    """The same; when there are too many, without what is over, and without the oldest half."""
    if len(known) <= MAX_KNOWN:
        return known
    left = [(name, each) for name, each in known.items() if wall < each.until]
    return dict(left[-MAX_KNOWN // 2 :])
