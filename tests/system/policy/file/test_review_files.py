"""What policies/review and the pre-commit hooks ship does what it says, in a repository of policies."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coatcheck.policy.file.reading import read

ROOT = Path(__file__).parents[4]
WORKFLOW: dict[str, Any] = read((ROOT / "policies/review/github-workflow.yaml").read_bytes()).data  # type: ignore[assignment]
STEPS = {step["name"]: step for step in WORKFLOW["jobs"]["review"]["steps"] if "name" in step}
HOOKS: list[dict[str, Any]] = read((ROOT / ".pre-commit-hooks.yaml").read_bytes()).data  # type: ignore[assignment]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout of a branch from `main` of an origin, both with a policy and its samples."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    for folder in ("policies", "policies/samples"):
        (origin / folder).mkdir(parents=True)
        shutil.copy(ROOT / folder / "default.yaml", origin / folder)
    git(origin, "init", "-q", "-b", "main")
    commit(origin)
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    git(clone, "checkout", "-q", "-b", "change")
    return clone


def git(where: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *words], cwd=where, check=True, capture_output=True)


def commit(where: Path) -> None:
    git(where, "add", ".")
    git(where, "commit", "-q", "-m", "a change")


def shell(where: Path, script: str) -> subprocess.CompletedProcess[str]:
    """As a runner does it, with this environment's command."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    environment = {"PATH": path, "HOME": str(where), "BASE": "main", "GITHUB_STEP_SUMMARY": "summary.md"}
    words = ["bash", "-e", "-o", "pipefail", "-c", script]
    return subprocess.run(words, cwd=where, env=environment, capture_output=True, text=True, check=False)


def run(where: Path, step: str) -> int:
    return shell(where, STEPS[step]["run"]).returncode


def change(repository: Path, old: str, new: str) -> None:
    file = repository / "policies/default.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    commit(repository)


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


def test_a_change_that_narrows_passes(repository: Path) -> None:
    """And is told as well."""
    change(repository, "paths: [/v1/models/**]", "paths: [/v1/models]")
    assert run(repository, "meaning") == 0 and "narrows" in (repository / "comment.md").read_text()
    assert run(repository, "widening") == 0


def test_a_wildcard_that_is_too_wide_is_stopped_by_the_linter(repository: Path) -> None:
    """Where anybody can be a customer."""
    change(repository, "    hosts: [api.github.com]\n    methods", '    hosts: ["*.github.io"]\n    methods')
    assert run(repository, "lint") == 1


def test_the_first_policies_of_a_repository_widen(repository: Path) -> None:
    """There is nothing to compare them with, which is no error and no pass."""
    git(repository, "rm", "-rq", "policies")
    commit(repository)
    git(repository, "push", "-q", "origin", "change:refs/heads/bare")
    git(repository, "revert", "--no-edit", "HEAD")
    bare = {name: step["run"].replace("$BASE", "bare") for name, step in STEPS.items() if "run" in step}
    assert shell(repository, bare["meaning"]).returncode == 0
    assert "policy `default` is new" in (repository / "comment.md").read_text()
    assert shell(repository, bare["widening"]).returncode == 1


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


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_stops_a_commit_that_should_not_be(repository: Path, hook: dict[str, Any]) -> None:
    """And no other."""
    command = " ".join([hook["entry"], *hook["args"]])
    assert shell(repository, command).returncode == 0
    change(repository, "paths: [/user, /repos/**, /search/**]", "paths: [/user]")
    change(repository, "owner: platform-security", "owner: TODO")
    assert shell(repository, command).returncode == 1
