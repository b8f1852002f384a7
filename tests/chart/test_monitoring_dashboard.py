"""templates/monitoring/dashboard.yaml, and the dashboard itself (charts/coatcheck/files/dashboard.json)."""

import json
import re

from coatcheck.telemetry.metrics_table import describe
from tests.chart.helm import CHART, Helm
from tests.chart.values import GATEWAY, given

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


def test_every_panel_shows_metrics_that_exist() -> None:
    """Histograms by their buckets; no two panels in one place."""
    known = {each.name for each in describe()}
    known |= {f"{each.name}_bucket" for each in describe()}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            named = set(re.findall(r"coatcheck_[a-z_]+", target["expr"]))
            assert named and named <= known, panel["title"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
