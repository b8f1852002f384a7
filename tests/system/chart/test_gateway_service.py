"""templates/gateway/service.yaml."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import GATEWAY, given


def test_by_default_one_service_leads_to_the_one_replica(helm: Helm) -> None:
    """Proxy and control API; the headless one gives the replicas their names."""
    made = helm.install(GATEWAY)
    service = made.of("Service", "cc-0")["spec"]
    assert service["selector"]["statefulset.kubernetes.io/pod-name"] == "cc-0"
    assert {each["port"] for each in service["ports"]} == {8080, 9900} and "clusterIP" not in service
    assert made.of("Service", "cc-replicas")["spec"]["clusterIP"] == "None"


def test_it_has_the_address_that_it_is_given(helm: Helm) -> None:
    """Sandboxes have no DNS to find it by."""
    made = helm.install(given(GATEWAY, gateway={"clusterIPs": ["10.96.0.7"]}))
    assert made.of("Service", "cc-0")["spec"]["clusterIP"] == "10.96.0.7"
    assert len(made.all("Service")) == 2
