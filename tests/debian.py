"""A pytest plugin: tests that need Debian programs say which, and are skipped by name without them.

With CI=true there is no skipping: a machine that lacks a package would pass without testing.
"""

import os
import shutil
from pathlib import Path

import pytest

_LIST = Path(__file__).parent.parent / "scripts" / "debian-packages"


def packages() -> dict[str, str]:
    """Command -> the Debian package that brings it, as scripts/setup installs them."""
    lines = (line.split() for line in _LIST.read_text().splitlines() if not line.startswith("#"))
    return {fields[1]: fields[0] for fields in lines if fields}


def find(command: str) -> str | None:
    """Where the command is, /usr/sbin included: it is not on everybody's PATH. A path is itself."""
    if command.startswith("/"):
        return command if Path(command).exists() else None
    return shutil.which(command, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def need(*commands: str) -> None:
    """Skips the calling test, or fails it when CI=true, unless every command is there."""
    by_command = packages()
    for command in commands:
        if command not in by_command:
            raise ValueError(f"{command} is not in scripts/debian-packages: a new machine would lack it")
    missing = [command for command in commands if find(command) is None]
    if not missing:
        return
    install = " ".join(sorted({by_command[command] for command in missing}))
    message = f"needs {', '.join(missing)}: apt-get install {install}"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{message} (CI=true, so this is not skipped)", pytrace=False)
    pytest.skip(message)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs_debian"):
        need(*marker.args)
