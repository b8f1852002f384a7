"""templates/monitoring/servicemonitor.yaml."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import GATEWAY, given

SCRAPED = given(
    GATEWAY,
    monitoring={
        "serviceMonitor": {"enabled": True, "tokenSecret": "t", "caSecret": "c", "labels": {"a": "b"}}
    },
)


def test_by_default_there_is_none(helm: Helm) -> None:
    """It needs prometheus-operator."""
    assert helm.install(GATEWAY).all("ServiceMonitor") == []


def test_prometheus_proves_itself_and_asks_by_a_name_that_is_answered(helm: Helm) -> None:
    """The control API answers to no address; one target a replica, by its Service's name."""
    made = helm.install(SCRAPED)
    monitor = made.of("ServiceMonitor")
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "t", "key": "token"}
    assert endpoint["scheme"] == "https" and monitor["metadata"]["labels"]["a"] == "b"
    [address] = endpoint["relabelings"]
    assert address["targetLabel"] == "__address__" and address["replacement"] == "$1.svc:9900"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    chosen = [each for each in made.all("Service") if wanted <= each["metadata"]["labels"].items()]
    assert [each["metadata"]["name"] for each in chosen] == ["cc-0"]
