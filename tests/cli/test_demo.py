"""`coatcheck demo` runs the repository's demo, and says where it is when only the package is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from coatcheck.cli import demo as command
from coatcheck.cli.errors import CommandError


def test_arguments_reach_the_demo() -> None:
    """From a directory elsewhere: it takes none, and says so."""
    coatcheck = Path(sys.executable).with_name("coatcheck")
    done = subprocess.run(
        [coatcheck, "demo", "faster"], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "error: the demo takes no arguments, not faster" in done.stderr


def test_an_installed_package_says_where_the_demo_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel does not contain it."""
    monkeypatch.setattr(command, "CHECKOUT", tmp_path)
    with pytest.raises(CommandError, match="not part of the installed package") as refused:
        command.demo()
    assert "make demo" in refused.value.hint
