"""What `coatcheck policy check` finds in files and directories: values for a command to print."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from coatcheck.decision.policy import Policy
from coatcheck.policy.checking import read_bytes
from coatcheck.policy.file.codes import EXPLANATIONS, Code
from coatcheck.policy.file.loading import load_directory
from coatcheck.policy.file.problem import Level, PolicyError
from coatcheck.policy.lint.lint import Linted, lint, located
from coatcheck.policy.samples.files import samples_beside
from coatcheck.policy.samples.samples import Sample


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file, and everything found in it. `policy` None: the daemon would not load it."""

    path: Path
    policy: Policy | None
    findings: tuple[Linted, ...]

    def fails(self, on: Level) -> bool:
        """Whether something was found that nobody accepts: an error, or a warning where those count."""
        return any(
            not found.accepted and (on is Level.WARNING or found.problem.level is Level.ERROR)
            for found in self.findings
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "ok": not self.fails(Level.WARNING),
            "loads": self.policy is not None,
            "sha256": self.policy.sha256 if self.policy else None,
            "findings": [_as_json(found) for found in self.findings],
        }


def _as_json(found: Linted) -> dict[str, Any]:
    problem = found.problem
    return {
        "code": found.code.value,
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "level": problem.level.value,
        "message": problem.message,
        "why": EXPLANATIONS[found.code].why,
        "instead": problem.instead,
        "accepted": found.accepted or None,
    }


def lint_path(path: Path, today: date) -> Iterator[FileCheck]:
    """Check the file, or every policy file of the directory as the daemon would read them.

    Raises OSError when it cannot be read.
    """
    if not path.is_dir():
        yield _lint(path, today)
        return
    try:
        load_directory(path)
    except PolicyError as error:
        whole = [problem for problem in error.problems if not problem.line]
        if whole:  # about names, modes and links: nothing in the files can be trusted before
            found = [Linted(replace(problem, line=1, column=1), Code.NOT_LOADED) for problem in whole]
            yield FileCheck(path, None, tuple(found))
            return
    for file in sorted(path.glob("*.yaml")):
        yield _lint(file, today)


def _lint(path: Path, today: date) -> FileCheck:
    data = read_bytes(path)
    samples: list[Sample] | None = None
    broken: list[Linted] = []
    try:
        beside = samples_beside(path)
        samples = None if beside is None else [sample for _, sample in beside]
    except PolicyError as error:
        samples = []
        broken = [Linted(problem, Code.NOT_LOADED) for problem in error.problems]
    policy, found = lint(path.stem, data, today, samples)
    return FileCheck(path, policy, (*(located(each, str(path)) for each in found), *broken))
