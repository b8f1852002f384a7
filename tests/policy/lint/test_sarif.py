"""SARIF as code hosts read it. The fields that SARIF 2.1.0 requires are named from its sections."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from coatcheck.policy.file.codes import Code
from coatcheck.policy.lint.lint import lint, located
from coatcheck.policy.lint.sarif import sarif

POLICY = b"""version: 1
owner: security
rules:
  - {name: a, hosts: [a.example], methods: [GET], plain_http: true}
accepted:
  - {finding: plain-http, rule: a, reason: until the printer is gone, until: 2027-01-31}
"""


def run(file: str = "policies/a b.yaml", data: bytes = POLICY) -> dict[str, Any]:
    found = [located(each, file) for each in lint("a", data, date(2027, 1, 1), None)[1]]
    log = sarif(found, "1.2.3")
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)  # 3.13.2, 3.13.4
    run: dict[str, Any] = log["runs"][0]
    return run


def test_every_rule_of_the_linter_is_described() -> None:
    """3.49.3: each has an id; hosts show the rest beside the line."""
    driver = run()["tool"]["driver"]
    assert driver["name"] == "coatcheck" and driver["semanticVersion"] == "1.2.3"
    assert [rule["id"] for rule in driver["rules"]] == [code.value for code in Code]
    assert all(rule["shortDescription"]["text"] and rule["help"]["text"] for rule in driver["rules"])


def test_a_result_points_to_its_rule_and_place() -> None:
    """3.27: rule, level, message, location, with the file as a relative reference (RFC 3986)."""
    first = run()["results"][0]
    assert (
        first["ruleId"] == "no-sample"
        and run()["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "no-sample"
    )
    assert first["level"] == "warning" and first["message"]["text"]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "policies/a%20b.yaml"
    assert place["region"] == {"startLine": 3, "startColumn": 1}
    assert run(file="/srv/x.yaml")["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"][
        "uri"
    ] == ("file:///srv/x.yaml")


def test_what_is_accepted_is_suppressed_with_its_reason() -> None:
    """3.27.23 and 3.35: the host shows it as dismissed, and by whom in the file."""
    first, second = run()["results"]
    assert "suppressions" not in first
    assert second["suppressions"] == [
        {"kind": "inSource", "status": "accepted", "justification": "until the printer is gone"}
    ]


def test_an_error_of_the_whole_file_has_a_line_that_exists() -> None:
    """3.30.5: lines and columns count from 1."""
    (only,) = run(data=b"#" * (1 << 21))["results"]
    assert (only["ruleId"], only["level"]) == ("not-loaded", "error")
    assert only["locations"][0]["physicalLocation"]["region"] == {"startLine": 1, "startColumn": 1}


@pytest.mark.parametrize("change", [b"\n\n", b"# moved\n"])
def test_a_finding_that_moved_is_the_same(change: bytes) -> None:
    """3.27.16: otherwise each edit above it would be a new alert."""
    prints = [each["partialFingerprints"] for each in run()["results"]]
    moved = run(data=change + POLICY)["results"]
    assert [each["partialFingerprints"] for each in moved] == prints
    assert len({each["coatcheckFinding/v1"] for each in prints}) == 2


def test_a_path_never_leaves_its_field() -> None:
    """A file may be called anything; in a URI it is escaped."""
    uri = run(file=str(Path("odd") / '"#?%.yaml'))["results"][0]["locations"][0]["physicalLocation"]
    assert uri["artifactLocation"]["uri"] == "odd/%22%23%3F%25.yaml"
