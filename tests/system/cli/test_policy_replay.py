"""`coatcheck policy replay` and `learn` as a person sees them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.policy import load_policy
from tests.cli.transcript import coatcheck
from tests.policy.bundle.bundles import YAML, put
from tests.policy.test_replay import ALLOWED, REFUSED
from tests.telemetry.audit.test_requests import written

EVIL = replace(
    REFUSED, destination="https://x.evil.example", path="/\x1b[31m", reason=Reason.HOST_NOT_ALLOWED
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A log, the policy under which it was written, and a new one."""
    (tmp_path / "log").mkdir(mode=0o700)
    written(tmp_path / "log/audit.jsonl", ALLOWED, REFUSED, EVIL)
    put(tmp_path / "default.yaml", YAML)
    put(tmp_path / "new.yaml", YAML.replace(b"/v1/models", b"/v1/models/**"))
    return tmp_path


def test_replay_tells_what_would_change_and_can_fail_a_pipeline(place: Path) -> None:
    """As text and as JSON; terminal escapes of a sandbox stay escaped."""
    wanted = ["policy", "replay", "log/audit.jsonl", "--policy", "new.yaml", "--of", "default"]
    said = coatcheck(*wanted, cwd=place)
    assert said.code == 0 and not said.err
    lines = said.out.splitlines()
    assert lines[0] == "allows: GET https://api.openai.com/v1/models/gpt (default, r-2)"
    assert lines[1:3] == ["  now: refused, path_not_allowed, rule models", "  then: allowed, rule models"]
    assert "3 requests: 2 same, 1 allows, 0 refuses" in said.out and "\x1b" not in said.out
    assert "note: limits are not simulated" in said.out
    assert coatcheck(*wanted, "--fail-on", "refuses", cwd=place).code == 0
    failed = coatcheck(*wanted, "--fail-on", "refuses", "--fail-on", "allows", "--json", cwd=place)
    assert failed.code == 1 and json.loads(failed.out)["changes"]["allows"] == 1


def test_replay_says_what_it_lacks(place: Path) -> None:
    """No policy, no log, options that contradict, a policy that is bad."""
    said = coatcheck("policy", "replay", "log/audit.jsonl", cwd=place)
    assert said.code == 2 and "--policy NEW" in said.error
    said = coatcheck("policy", "replay", "gone.jsonl", "--policy", "new.yaml", cwd=place)
    assert said.code == 3 and "gone.jsonl" in said.error
    said = coatcheck("policy", "replay", "log/audit.jsonl", "--policy", ".", "--of", "default", cwd=place)
    assert said.code == 2 and "--of" in said.error
    put(place / "bad.yaml", b"version: 1\n")
    said = coatcheck("policy", "replay", "log/audit.jsonl", "--policy", "bad.yaml", cwd=place)
    assert said.code == 1 and "owner" in said.error


def test_learn_writes_a_draft_that_a_daemon_would_load(place: Path) -> None:
    """From a log to a file that a daemon would load."""
    said = coatcheck("policy", "learn", "log/audit.jsonl", "--owner", "team-a", "--refused", cwd=place)
    assert said.code == 0 and not said.err and "\x1b" not in said.out
    assert '"/v1/models/gpt"' in said.out and "x.evil.example" in said.out
    assert len(load_policy("draft", said.out.encode()).rules) == 1  # the other path is not printable
    said = coatcheck("policy", "learn", "log/audit.jsonl", "--owner", " ", cwd=place)
    assert said.code == 2 and "--owner" in said.error
