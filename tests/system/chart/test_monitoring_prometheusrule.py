"""templates/monitoring/prometheusrule.yaml, and the rules themselves (charts/coatcheck/files/alerts.yaml)."""

import re

from ruamel.yaml import YAML

from coatcheck.telemetry.metrics.table import describe
from tests.system.chart.helm import CHART, Helm
from tests.system.chart.values import GATEWAY, SIDECAR, given

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


SCRAPED = {"namespace", "pod", "le"}
"""Labels that Prometheus adds, or a histogram's buckets have."""


def unknown(expression: str) -> set[str]:
    """Metrics that are not exported, and labels that those named do not have: both are empty for ever."""
    exported = {each.name: set(each.labels) for each in describe()}
    named = {name.removesuffix("_bucket") for name in re.findall(r"coatcheck_[a-z_]+", expression)}
    labels = {label for name in named & exported.keys() for label in exported[name]}
    used = set(re.findall(r'(\w+) *(?:=~|!~|!=|=) *"', expression))
    used |= {each.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for each in group.split(",")}
    return (named - exported.keys()) | (used - labels - SCRAPED) | (set() if named else {"no metric"})


def test_every_rule_is_about_metrics_and_labels_that_exist() -> None:
    """A renamed one would leave an alert that never fires."""
    for rule in RULES["groups"][0]["rules"]:
        assert unknown(rule["expr"]) == set(), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
