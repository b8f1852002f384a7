"""What one look finds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from coatcheck.decision.policy import Policy
from coatcheck.settings.daemon import Settings


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, and somebody should know."""
    PROBLEM = "problem"
    """The daemon will not start, or will refuse what should work, or a promise does not hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact, and what to do about it. Holds no secret."""

    check: str
    level: Level
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at: the daemon's settings, its environment, and what was found out so far."""

    settings: Settings
    environment: Mapping[str, str] = field(repr=False)
    control_socket: Path
    policies: Mapping[str, Policy]
    daemon_pid: int | None
    """Of the daemon that answers at the control socket; None: none does."""


type Check = Callable[[Subject], list[Finding]]


def ok(check: str, message: str) -> list[Finding]:
    return [Finding(check, Level.OK, message)]


def warning(check: str, message: str, hint: str) -> list[Finding]:
    return [Finding(check, Level.WARNING, message, hint)]


def problem(check: str, message: str, hint: str) -> list[Finding]:
    return [Finding(check, Level.PROBLEM, message, hint)]
