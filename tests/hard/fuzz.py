"""Every property of the suite with three times its examples, new ones each round, until the time is over."""

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.hard.failed import Failed

ROOT = Path(__file__).parent.parent.parent
FIRST = (
    *("tests/system/fuzz/test_proxy.py", "tests/fuzz/test_channel.py"),
    "tests/system/launcher/guest/test_fuzz.py",
    *("tests/launcher/test_mux.py", "tests/launcher/test_frames.py", "tests/fuzz/test_handles.py"),
)
"""The whole proxy over sockets, what a guest may say to its host, and what decides about a secret."""
NO_PROPERTY = 5
"""pytest's exit code when nothing was run: the file only speaks of hypothesis."""
_NAME = re.compile(r"^(tests/\S+::\S+):$")
_COUNT = re.compile(r"- (\d+) passing(?: test cases)?, (\d+) failing")


def run(minutes: float) -> str:
    """Raises Failed with the reproducing lines when a property does not hold."""
    deadline = time.monotonic() + minutes * 60
    passing: Counter[str] = Counter()
    rounds, failures = 0, []
    while time.monotonic() < deadline:
        for path in files():
            if time.monotonic() >= deadline:
                break
            said, failed = _round(path)
            _count(said, passing)
            if failed:
                failures.append(f"{path}\n\n```\n{_what(said)}\n```")
        rounds += 1
        if failures:
            break
    body = _table(passing, rounds)
    if failures:
        raise Failed(body + "\n\n## Found\n\n" + "\n\n".join(failures))
    return body + "\n\nNothing was found in this run."


def files() -> list[str]:
    """Those with properties, one after the other."""
    found = (path for path in (ROOT / "tests").rglob("test_*.py") if "hypothesis" in path.read_text())
    names = sorted(str(path.relative_to(ROOT)) for path in found)
    return [*FIRST, *(name for name in names if name not in FIRST)]


def _round(path: str) -> tuple[str, bool]:
    command = [
        *("nice", "-n", "10", sys.executable, "-m", "pytest", "-q", "-W", "ignore"),
        *("-p", "tests.hard.profile", "-m", "hypothesis", "--hypothesis-show-statistics", path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout, done.returncode not in (0, NO_PROPERTY)


def _what(said: str) -> str:
    """From the first failure on, or where there is none, how it ended."""
    places = [at for at in map(said.find, ("= ERRORS", "= FAILURES")) if at >= 0]
    return said[min(places) :][:8000] if places else said[-2000:]


def _count(said: str, passing: Counter[str]) -> None:
    name = ""
    for line in said.splitlines():
        if found := _NAME.match(line):
            name = found[1]
        elif found := _COUNT.search(line):
            passing[name] += int(found[1])


def _table(passing: Counter[str], rounds: int) -> str:
    head = f"{passing.total():,} examples of {len(passing)} properties; {rounds} rounds, the last cut short."
    rows = [f"| `{name.removeprefix('tests/')}` | {count:,} |" for name, count in sorted(passing.items())]
    return "\n".join([head, "", "| property | examples |", "|---|---:|", *rows])
