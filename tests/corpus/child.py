"""The corpus, run by a process of its own: it lives in other namespaces than the tests do."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import known_secrets
from tests.corpus.proxies import secrets

SECONDS = 600


def results(state: Path, *options: str) -> dict[str, list[str]]:
    """What is wrong, by the run's id. What daemons write goes below `state`."""
    secrets()  # so that this process knows what to look for in it
    state.mkdir(parents=True)
    out = state / "results.json"
    command = [sys.executable, "-m", "tests.corpus", "--json", str(out), "--state", str(state), *options]
    environment = os.environ | {"PYTEST_XDIST_TESTRUNUID": known_secrets.RUN}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[str]] = json.loads(out.read_text())
    return found
