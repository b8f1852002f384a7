"""Every property of the suite with ten times its examples, new ones in each round, until the time is over."""

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.hard.failed import Failed

ROOT = Path(__file__).parent.parent.parent
TESTS = (
    *(f"tests/fuzz/{path.name}" for path in sorted((ROOT / "tests/fuzz").glob("test_*.py"))),
    *("tests/launcher/guest/test_fuzz.py", "tests/launcher/test_frames.py"),
    *("tests/launcher/test_mux.py", "tests/planes/test_dns_message.py", "tests/planes/test_client_hello.py"),
    *(
        "tests/policyfile/test_loading.py",
        "tests/policyfile/test_fields.py",
        "tests/policyfile/test_overlap.py",
    ),
    *(
        "tests/decision/test_scrub.py",
        "tests/decision/test_body_scrubber.py",
        "tests/decision/test_search.py",
    ),
    *("tests/decision/test_handle.py", "tests/decision/test_host.py", "tests/decision/test_path.py"),
    *("tests/decision/test_head.py", "tests/decision/test_response.py"),
    *("tests/decision/test_substitute.py", "tests/decision/test_substitute_body.py"),
    *("tests/decision/test_content_coding.py", "tests/decision/test_host_index.py"),
)
"""Files with properties, one after the other."""
_NAME = re.compile(r"^(tests/\S+::\S+):$")
_COUNT = re.compile(r"- (\d+) passing(?: test cases)?, (\d+) failing")


def run(minutes: float) -> str:
    """Raises Failed with the reproducing lines when a property does not hold."""
    deadline = time.monotonic() + minutes * 60
    passing: Counter[str] = Counter()
    rounds, failures = 0, []
    while time.monotonic() < deadline:
        for path in TESTS:
            if time.monotonic() >= deadline:
                break
            said, failed = _round(path)
            _count(said, passing)
            if failed:
                failures.append(f"```\n{said[said.find('= FAILURES') :][:8000]}\n```")
        rounds += 1
        if failures:
            break
    body = _table(passing, rounds)
    if failures:
        raise Failed(body + "\n\n## Found\n\n" + "\n\n".join(failures))
    return body + "\n\nNothing was found in this run."


def _round(path: str) -> tuple[str, bool]:
    command = [
        *("nice", "-n", "10", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"),
        *("-p", "tests.hard.profile", "-m", "", "--hypothesis-show-statistics", path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout, done.returncode != 0


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
