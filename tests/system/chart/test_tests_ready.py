"""templates/tests/ready.yaml: `helm test`."""

import pytest

from tests.system.chart.helm import Helm
from tests.system.chart.schemas import check_one
from tests.system.chart.values import GATEWAY, SHARED, SIDECAR, Values


@pytest.mark.parametrize(
    ("values", "url"),
    [
        (GATEWAY, "https://cc-0.coatcheck.svc:9900/readyz"),
        (SHARED, "https://cc.coatcheck.svc:9900/readyz"),
        (SIDECAR, "https://cc-admission.coatcheck.svc/healthz"),
    ],
    ids=["gateway", "replicas", "sidecar"],
)
def test_by_default_it_asks_whether_the_service_is_ready(helm: Helm, values: Values, url: str) -> None:
    """By a pod that the network policy lets in, as confined as the others."""
    made = helm.install(values)
    [pod] = made.tests
    check_one(pod)
    [container] = pod["spec"]["containers"]
    assert container["args"][-1] == url
    assert pod["spec"]["securityContext"]["runAsNonRoot"] and not pod["spec"]["automountServiceAccountToken"]
    if values is not SIDECAR:
        [way_in] = made.of("NetworkPolicy")["spec"]["ingress"]
        [peer] = way_in["from"]
        assert peer["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert [each["port"] for each in way_in["ports"]] == [9900]
