"""The alert rules by Prometheus' own tools: they parse, and each fires when it should and not otherwise."""

import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.system.chart.helm import CHART

pytestmark = pytest.mark.needs_debian("promtool")

RULES = CHART / "files/alerts.yaml"
CASES = Path(__file__).parent / "alerts.yaml"


def promtool(*words: str | Path) -> str:
    ran = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_rules_are_rules() -> None:
    """Also to promtool's linter."""
    assert "SUCCESS: 9 rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_each_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    """What happens once is told and then forgotten; what lasts is told while it lasts."""
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES.read_text().replace("ALERTS", str(RULES)))
    promtool("test", "rules", cases)


def test_every_alert_is_among_the_cases_both_ways() -> None:
    """Raised at least once, and expected not to be at least once."""
    yaml = YAML(typ="safe", pure=True)
    wanted = {rule["alert"] for rule in yaml.load(RULES)["groups"][0]["rules"]}
    asked = [each for test in yaml.load(CASES)["tests"] for each in test["alert_rule_test"]]
    assert {each["alertname"] for each in asked if each.get("exp_alerts")} == wanted
    assert {each["alertname"] for each in asked if not each.get("exp_alerts")} == wanted
