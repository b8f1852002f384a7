"""The workflow and the pre-commit hooks that review policies: more changes, and what each step says."""

from pathlib import Path
from typing import Any

import pytest

from coatcheck.policy.file.reading import read
from tests.system.policy.file.review import ROOT, STEPS, change, commit, git, repository, run, shell

__all__ = ["repository"]

HOOKS: list[dict[str, Any]] = read((ROOT / ".pre-commit-hooks.yaml").read_bytes()).data  # type: ignore[assignment]


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


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_stops_a_commit_that_should_not_be(repository: Path, hook: dict[str, Any]) -> None:
    """And no other."""
    command = " ".join([hook["entry"], *hook["args"]])
    assert shell(repository, command).returncode == 0
    change(repository, "paths: [/user, /repos/**, /search/**]", "paths: [/user]")
    change(repository, "owner: platform-security", "owner: TODO")
    assert shell(repository, command).returncode == 1
