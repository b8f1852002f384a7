"""What policies/review and the pre-commit hooks ship does what it says, in a repository of policies."""

import re
from pathlib import Path

from tests.system.policy.file.review import ROOT, STEPS, WORKFLOW, change, repository, run

__all__ = ["repository"]


def test_it_comes_from_a_commit_that_somebody_chose() -> None:
    """A name alone is whatever an index has under it, and the next run may get something else."""
    assert re.fullmatch(r'pip install "coatcheck @ git\+https://\S+@[0-9a-f]{40}"', STEPS["install"]["run"])


def test_a_change_that_widens_is_told_and_stopped(repository: Path) -> None:
    """One more method on the API that was read only."""
    change(repository, "    methods: [GET, HEAD]\n", "    methods: [GET, HEAD, DELETE]\n")
    assert run(repository, "lint") == 0 and (repository / "findings.sarif").is_file()
    assert run(repository, "samples") == 1, "a sample says that nothing is deleted"
    assert run(repository, "meaning") == 0
    assert "DELETE" in (repository / "comment.md").read_text() == (repository / "summary.md").read_text()
    assert run(repository, "widening") == 1


def test_a_label_is_about_what_was_there_when_it_was_set() -> None:
    """A push after it is judged again: otherwise a small widening would open the way for a large one."""
    gate = STEPS["widening"]["if"]
    assert "github.event.action == 'labeled' && github.event.label.name == 'policy-widens'" in gate
    assert "labels.*" not in gate, "a label that stays would count for every later push"
    assert {"synchronize", "labeled", "unlabeled"} <= set(WORKFLOW["on"]["pull_request"]["types"])


def test_somebody_owns_whatever_decides() -> None:
    """The policies, their samples, and the workflow that judges them; the last line that fits counts."""
    lines = (ROOT / "policies/review/CODEOWNERS").read_text().splitlines()
    owned = [line.split() for line in lines if line and not line.startswith("#")]
    assert all(owners and all(owner.startswith("@") for owner in owners) for _, *owners in owned)

    def owners(path: str) -> list[str]:
        return next((who for where, *who in reversed(owned) if f"/{path}".startswith(where)), [])

    for path in ("policies/default.yaml", "policies/samples/default.yaml", ".github/workflows/policy.yaml"):
        assert owners(path) == ["@acme/platform-security"], path
    assert "@acme/payments-security" in owners("policies/stripe.yaml")
    assert owners(".github/CODEOWNERS"), "whoever edits it would choose who reviews"


def test_no_expression_stands_in_a_script() -> None:
    """What a stranger names (a branch, a title) would be run; in `env` it is text."""
    assert [name for name, step in STEPS.items() if "${{" in step.get("run", "")] == []
