import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# What a bare Debian brings and scripts/setup calls: without Python, uv or apt-get.
COREUTILS = ("bash", "cat", "cksum", "dirname", "env", "flock", "grep", "id", "mkdir", "sed", "tail")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A fresh checkout's files that setup reads."""
    project = tmp_path / "project"
    shutil.copytree(ROOT / "scripts", project / "scripts")
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, project / name)
    return project


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without a usable Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in COREUTILS:
        (programs / name).symlink_to(shutil.which(name) or "")
    return {"PATH": str(programs), "HOME": str(tmp_path)}


def setup(project: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(project / "scripts/setup")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_usable_python_there_is_one_clear_error(project: Path, bare: dict[str, str]) -> None:
    """It says what was looked for and what to install, and leaves no half-made environment."""
    result = setup(project, bare)
    assert result.returncode == 1
    assert result.stderr.startswith("error: no Python 3.12 or 3.13 ")
    assert "hint: install one" in result.stderr
    assert result.stderr.count("error:") == 1
    assert not (project / ".venv").exists()


def test_a_python_that_is_too_old_is_not_used(project: Path, bare: dict[str, str], tmp_path: Path) -> None:
    """Debian 12's own python3 is 3.11: it is passed over, not tried and failed with."""
    old = tmp_path / "bin/python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # what our version question answers there
    old.chmod(0o755)
    assert "no Python 3.12 or 3.13" in setup(project, bare).stderr


def test_missing_debian_packages_are_named_in_one_line(project: Path, bare: dict[str, str]) -> None:
    """Without root or apt-get the reader gets the line to run, and setup goes on."""
    lines = [line for line in setup(project, bare).stdout.splitlines() if "apt-get install" in line]
    assert len(lines) == 1
    assert "bubblewrap" in lines[0] and "wrk" in lines[0]


def test_a_second_run_changes_nothing(project: Path) -> None:
    """What setup left is recognised by content: no file is touched, nothing is installed again."""
    if (ROOT / ".venv/setup-stamp").is_file() is False:
        pytest.skip("this environment was not made by scripts/setup")
    before = (
        (ROOT / ".venv/setup-stamp").stat().st_mtime_ns,
        (ROOT / ".venv/bin/coatcheck").stat().st_mtime_ns,
    )
    result = setup(ROOT, dict(os.environ))
    assert (result.returncode, result.stdout) == (0, "")
    after = (ROOT / ".venv/setup-stamp").stat().st_mtime_ns, (ROOT / ".venv/bin/coatcheck").stat().st_mtime_ns
    assert after == before
