"""Audit logs held against new policies."""

from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.replay import Change
from coatcheck.policy import load_policy
from coatcheck.policy import replay as module
from coatcheck.policy.replay import replay_logs
from coatcheck.telemetry.events import Decision, Outcome, Repeated
from tests.policy.bundle.bundles import YAML
from tests.telemetry.audit.test_requests import written
from tests.telemetry.samples import DECISION

OLD = load_policy("default", YAML)
NEW = load_policy("default", YAML.replace(b"/v1/models", b"/v1/models/**"))
NARROW = load_policy("default", YAML.replace(b"/v1/models", b"/v1/others"))
ALLOWED = replace(
    DECISION, policy="default", policy_hash=OLD.sha256, outcome=Outcome.PASS, rule="models", credentials=(),
    method="GET", destination="https://api.openai.com", path="/v1/models",
)  # fmt: skip
REFUSED = replace(
    ALLOWED, outcome=Outcome.DENY, reason=Reason.PATH_NOT_ALLOWED, path="/v1/models/gpt", request_id="r-2"
)


def test_what_would_change_is_grouped_with_an_example(tmp_path: Path) -> None:
    """The gravest first; requests that differ in path only are one line."""
    more = [replace(REFUSED, path=f"/v1/models/{number}") for number in range(9)]
    log = written(tmp_path / "audit.jsonl", ALLOWED, REFUSED, *more)
    report = replay_logs([log], {"default": NEW}, whole=False)
    assert report.counts[Change.SAME] == 1 and report.counts[Change.ALLOWS] == 10
    (group,) = report.told()
    assert (group.count, group.example, group.request_id) == (10, "/v1/models/gpt", "r-2")
    assert (group.now, group.then) == ("refused, path_not_allowed, rule models", "allowed, rule models")
    report = replay_logs([log], {"default": NARROW}, whole=False)
    assert [(each.change, each.count) for each in report.told()] == [(Change.REFUSES, 1)]


def test_the_same_policy_changes_nothing(tmp_path: Path) -> None:
    """It is known by its hash, also where the log holds too little to judge again."""
    odd = replace(ALLOWED, path="/v1/cch_***")
    report = replay_logs([written(tmp_path / "audit.jsonl", ALLOWED, odd)], {"default": OLD}, whole=False)
    assert report.counts[Change.SAME] == 2
    report = replay_logs([tmp_path / "audit.jsonl"], {"default": NEW}, whole=False)
    assert report.counts[Change.UNKNOWN] == 1


def test_a_file_speaks_for_one_policy_and_a_directory_for_all(tmp_path: Path) -> None:
    """What is not judged is counted and said."""
    log = written(tmp_path / "audit.jsonl", ALLOWED, replace(ALLOWED, policy="other"))
    assert replay_logs([log], {"default": OLD}, whole=False).other_policies == 1
    report = replay_logs([log], {"default": OLD}, whole=True)
    assert report.other_policies == 0 and report.counts[Change.REFUSES] == 1


def test_what_the_log_does_not_hold_is_said(tmp_path: Path) -> None:
    """Refusals that were only counted, lines that cannot be read, and what no replay can know."""
    counted = Repeated(ALLOWED.at, "decision", "s-1", "acme", Reason.HOST_NOT_ALLOWED, 40, ALLOWED.at)
    log = written(tmp_path / "audit.jsonl", ALLOWED, counted)
    with log.open("ab") as file:
        file.write(b"{}\n")
    said = replay_logs([log], {"default": NEW}, whole=False).as_json()
    assert (said["repeated_refusals"], said["unreadable_lines"]) == (40, 1)
    assert said["not_exact"] and said["changes"]["same"] == 1


def test_requests_of_nobody_and_of_no_host_are_untouched(tmp_path: Path) -> None:
    """No policy was asked."""
    nobody = replace(REFUSED, policy="", session="", reason=Reason.ORIGIN_UNKNOWN)
    formless = replace(REFUSED, destination="-", reason=Reason.HOST_FORM_REFUSED)
    report = replay_logs([written(tmp_path / "a.jsonl", nobody, formless)], {"default": NEW}, whole=False)
    assert (report.counts[Change.UNTOUCHED], report.other_policies) == (1, 1)
    assert replay_logs([tmp_path / "a.jsonl"], {"default": NEW}, whole=True).counts[Change.UNTOUCHED] == 2


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox chooses hosts; beyond the bound they are counted."""
    monkeypatch.setattr(module, "MAX_GROUPS", 3)
    made: list[Decision] = [
        replace(ALLOWED, destination=f"https://h{number}.example.org") for number in range(8)
    ]
    report = replay_logs([written(tmp_path / "audit.jsonl", *made)], {"default": NEW}, whole=False)
    assert (len(report.groups), report.ungrouped, report.counts[Change.REFUSES]) == (3, 5, 8)
