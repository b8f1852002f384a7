"""One thing that changes between two policies, as a value: what it does, to whom, where."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coatcheck.decision.message import OriginClass
from coatcheck.decision.policy import Credential
from coatcheck.decision.session import Isolation, isolation_at_least
from coatcheck.policy.diff.sets import Reach

ALL_ORIGINS: Final = frozenset(OriginClass)
ALL_ISOLATIONS: Final = frozenset(Isolation)


class Direction(StrEnum):
    """What a change does to what sandboxes may do."""

    WIDENS = "widens"
    NARROWS = "narrows"
    CHANGES = "changes"
    """Neither more nor less is allowed."""


class Subject(StrEnum):
    """What a change is about."""

    BARE = "bare"
    """Requests that leave without a credential."""
    HANDLE = "handle"
    """Requests that may carry a credential whose handle they show."""
    UNASKED = "unasked"
    """Requests that get a credential without showing a handle."""
    TUNNEL = "tunnel"
    TERMS = "terms"
    """How much, how often and how a rule lets through what old and new both allow."""
    CREDENTIAL = "credential"
    """Which secret a credential is, where it stands, and how it is guarded."""
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Sessions:
    """Classes of sessions: those that any of `origins` proves, under any of `isolations`."""

    origins: frozenset[OriginClass] = ALL_ORIGINS
    isolations: frozenset[Isolation] = ALL_ISOLATIONS

    @classmethod
    def of(cls, credential: Credential) -> "Sessions":
        """Those for which `credential` counts."""
        enough = frozenset(have for have in Isolation if isolation_at_least(have, credential.isolation))
        return cls(credential.origins, enough)

    def minus(self, other: "Sessions") -> tuple["Sessions", ...]:
        """Those that `other` is without, as at most two products."""
        found = (
            Sessions(self.origins - other.origins, self.isolations),
            Sessions(self.origins & other.origins, self.isolations - other.isolations),
        )
        return tuple(each for each in found if each.origins and each.isolations)

    def __str__(self) -> str:
        """Empty when all are meant."""
        parts = []
        if self.origins != ALL_ORIGINS:
            parts.append(f"proven by {_or(origin.value for origin in OriginClass if origin in self.origins)}")
        if self.isolations != ALL_ISOLATIONS:
            words = _or(level.value for level in Isolation if level in self.isolations)
            parts.append(f"with isolation {words}")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a comparison. Names in `text` stand in backticks, in Markdown's way."""

    direction: Direction
    policy: str
    subject: Subject
    text: str
    credential: str = ""
    rule: str = ""
    sessions: Sessions = Sessions()
    reaches: tuple[Reach, ...] = ()
    before: str = ""
    after: str = ""


def quoted(name: str) -> str:
    """A name as code that nothing in it can leave (CommonMark 6.1): in a comment it stays a name."""
    fence = "`"
    while fence in name:
        fence += "`"
    return f"{fence} {name} {fence}" if "`" in name else f"{fence}{name}{fence}"


def _or(words: Iterable[str]) -> str:
    listed = list(words)
    return " or ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)
