"""What is wrong with a policy file, where, and what to write instead."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from coatcheck.platform.errors import CoatcheckError

type Location = tuple[str | int, ...]
"""The keys and indexes that lead to a value, e.g. ("rules", 0, "hosts", 1)."""


class Level(StrEnum):
    ERROR = "error"
    """The file is not loaded."""
    WARNING = "warning"
    """The file is loaded; a reviewer should look."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One finding. `line` and `column` count from 1; 0 means the file as a whole."""

    line: int
    column: int
    message: str
    instead: str = ""
    level: Level = Level.ERROR
    file: str = ""
    code: str = ""
    """Which of `codes.Code` it is, for warnings."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        hint = f"; {self.instead}" if self.instead else ""
        return f"{place}: {self.level}: {self.message}{hint}" if place else f"{self.message}{hint}"


class PolicyError(CoatcheckError):
    """A policy file, or a directory of them, cannot be used. A daemon that holds an older one keeps it."""

    exit_code = 1

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda found: (found.file, found.line, found.column)))
        super().__init__(f"the policy cannot be used\n{self}", "coatcheck policy check --help")

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem whose place is a location in the data, not yet a line."""

    location: Location
    message: str
    instead: str = ""
    level: Level = Level.ERROR
    code: str = ""
    """Which of `codes.Code` it is, for warnings."""
