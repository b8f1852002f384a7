"""templates/monitoring/prometheusrule.yaml, and the rules themselves (charts/coatcheck/files/alerts.yaml)."""

import re

from ruamel.yaml import YAML

from coatcheck.telemetry.metrics_table import describe
from tests.chart.helm import CHART, Helm
from tests.chart.values import GATEWAY, SIDECAR, given

RULES = YAML(typ="safe", pure=True).load(CHART / "files/alerts.yaml")


def test_by_default_there_is_none(helm: Helm) -> None:
    """It needs prometheus-operator."""
    assert helm.install(GATEWAY).all("PrometheusRule") == []


def test_both_shapes_ship_the_rules_as_they_stand_in_the_file(helm: Helm) -> None:
    """With the labels by which an operator's Prometheus chooses them."""
    for values in (GATEWAY, SIDECAR):
        monitoring = {"rules": {"enabled": True, "labels": {"release": "prometheus"}}}
        rule = helm.install(given(values, monitoring=monitoring)).of("PrometheusRule")
        assert rule["spec"] == RULES and rule["metadata"]["labels"]["release"] == "prometheus"


def test_every_rule_is_about_metrics_that_exist() -> None:
    """A renamed metric would leave an alert that never fires."""
    known = {each.name for each in describe()}
    for rule in RULES["groups"][0]["rules"]:
        named = set(re.findall(r"coatcheck_[a-z_]+", rule["expr"]))
        assert named and named <= known, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
