"""Policy files read for a command, and what `coatcheck policy explain` says of one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coatcheck.decision.denial import EXPLANATIONS, Reason
from coatcheck.decision.explain import PolicyExplanation, explain, render
from coatcheck.decision.message import RequestHead
from coatcheck.decision.policy import Policy
from coatcheck.injectors.spelling import Wrong
from coatcheck.policy.file.loading import check_policy
from coatcheck.policy.file.problem import PolicyError, Problem
from coatcheck.policy.file.reading import MAX_BYTES
from coatcheck.policy.samples.samples import sample_request


@dataclass(frozen=True, slots=True)
class Explained:
    """The answer for one request, as a session with every credential of the policy would get it."""

    allowed: bool
    reason: str
    text: str
    explanation: PolicyExplanation | None

    def as_json(self) -> dict[str, Any]:
        found = self.explanation
        rules = found.rules if found else ()
        return {
            "allowed": self.allowed,
            "reason": self.reason or None,
            "rule": next((view.name for view in rules if view.chosen), None),
            "rules": [
                {"name": view.name, "chosen": view.chosen, "reason": view.reason, "why": view.why}
                for view in rules
            ],
            "credentials": [
                {"name": view.name, "usable": view.usable, "why": view.why}
                for view in (found.credentials if found else ())
            ],
        }


def explain_request(
    file: Path, method: str, url: str, headers: tuple[tuple[str, str], ...] = ()
) -> Explained:
    """Why the policy in `file` answers as it does. Raises PolicyError, OSError."""
    policy = load_file(file)
    try:
        request = sample_request(f"{method} {url}")
    except Wrong as wrong:
        raise PolicyError([Problem(0, 0, wrong.message, wrong.instead)]) from None
    if request.destination is None:
        reason = Reason.HOST_FORM_REFUSED
        return Explained(
            False, reason, f"{method} {url}: refused: {reason}\n  {EXPLANATIONS[reason].message}\n", None
        )
    head = RequestHead(request.method, request.target, headers)
    found = explain(policy, frozenset(policy.credentials), request.destination, head)
    reason_text = found.denied.reason.value if found.denied else ""
    return Explained(found.denied is None, reason_text, render(found), found)


def load_file(path: Path) -> Policy:
    """The policy in `path`; its problems carry the file's name. Raises PolicyError, OSError."""
    try:
        return check_policy(path.stem, read_bytes(path)).policy
    except PolicyError as error:
        raise in_file(error, path) from None


def in_file(error: PolicyError, path: Path) -> PolicyError:
    """The same problems, with the file's name."""
    return PolicyError(replace(problem, file=str(path)) for problem in error.problems)


def read_bytes(path: Path) -> bytes:
    """The file, and at most one byte more than a policy may have."""
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)  # the reader refuses what is longer
