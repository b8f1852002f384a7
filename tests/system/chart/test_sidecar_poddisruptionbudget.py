"""templates/sidecar/poddisruptionbudget.yaml."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import SIDECAR, given


def test_by_default_one_webhook_stays_while_a_node_is_drained(helm: Helm) -> None:
    """Without any, no pod of the namespaces starts."""
    assert helm.install(SIDECAR).of("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_one_alone_has_none(helm: Helm) -> None:
    """It would keep its node from being drained for ever."""
    assert helm.install(given(SIDECAR, admission={"replicas": 1})).all("PodDisruptionBudget") == []
