"""The system's DNS is down, silent, fails, is slow, and moves to another address."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import debian


@pytest.fixture
def told(output_dir: Path) -> dict[str, Any]:
    debian.need("ip")
    program = [sys.executable, "-m", "tests.exhaustive.faults.in_dns_namespace", str(output_dir)]
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--map-root-user", *program],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_each_state_of_dns(told: dict[str, Any]) -> None:
    """Refused with its reason while it lasts, nothing at the origin, others served; no restart after it."""
    served, silent, failed = [200, ""], [502, "upstream_timeout"], [502, "upstream_unreachable"]
    expected = {
        "down": [silent, failed],  # which of the two is a matter of who gives up first
        "up again": [served],
        "silent": [silent, failed],
        "servfail": [failed],
        "slow": [served],
        "well": [served],
        "elsewhere": [served],
    }
    for state, may_be in expected.items():
        assert told[state]["told"] in may_be, state
        assert told[state]["arrived"] == (1 if may_be == [served] else 0), state
        assert told[state]["beside"] == 200, state
    outcomes = told["outcomes"]
    assert outcomes.count("pass") == 7, "each was allowed, and recorded so, before a name was looked up"
    assert outcomes.count("deny") == 3, "those that did not leave are recorded as refused, too"
