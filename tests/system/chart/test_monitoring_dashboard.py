"""templates/monitoring/dashboard.yaml, and the dashboard itself (charts/coatcheck/files/dashboard.json)."""

import json
import re
from pathlib import Path

import pytest

from tests.system.chart.helm import CHART, Helm
from tests.system.chart.test_alerts import promtool
from tests.system.chart.test_monitoring_prometheusrule import unknown
from tests.system.chart.values import GATEWAY, given

DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text())


def test_by_default_there_is_none(helm: Helm) -> None:
    """It needs a Grafana that looks for it."""
    assert not any("dashboard" in each["metadata"]["name"] for each in helm.install(GATEWAY).all("ConfigMap"))


def test_it_is_shipped_whole_under_the_label_that_grafana_looks_for(helm: Helm) -> None:
    """JSON, as it stands in the file."""
    made = helm.install(given(GATEWAY, monitoring={"dashboard": {"enabled": True}}))
    shipped = made.of("ConfigMap", "cc-dashboard")
    assert json.loads(shipped["data"]["coatcheck.json"]) == DASHBOARD
    assert shipped["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_every_panel_shows_metrics_and_labels_that_exist() -> None:
    """A legend's, too; no two panels in one place."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            assert unknown(target["expr"]) == set(), panel["title"]
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), panel["title"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.needs_debian("promtool")
def test_prometheus_can_read_every_panel_s_question(tmp_path: Path) -> None:
    """As rules, which it checks; a panel that asks in vain is as empty as one where all is well."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel:{at}", "expr": expression} for at, expression in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")
