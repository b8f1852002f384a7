"""templates/gateway/poddisruptionbudget.yaml."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import GATEWAY, SHARED


def test_by_default_there_is_none(helm: Helm) -> None:
    """With one replica it would keep nodes from being drained for ever."""
    assert helm.install(GATEWAY).all("PodDisruptionBudget") == []


def test_several_replicas_go_one_after_another(helm: Helm) -> None:
    """It selects the gateway's pods and no others."""
    made = helm.install(SHARED)
    budget = made.of("PodDisruptionBudget")["spec"]
    labels = made.of("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= labels.items()
