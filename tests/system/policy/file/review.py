"""A repository of policies, and the steps of the workflow that reviews a change to them."""

import os
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
