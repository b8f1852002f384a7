"""templates/gateway/networkpolicy.yaml."""

from tests.system.chart.cluster import Json
from tests.system.chart.helm import Helm
from tests.system.chart.values import GATEWAY, given

FENCED = given(
    GATEWAY, gateway={"sandboxes": {"namespaces": ["agents"]}, "control": {"from": [{"podSelector": {}}]}}
)


def test_by_default_nobody_reaches_the_gateway(helm: Helm) -> None:
    """But for the pod of `helm test`; and a cloud's metadata service is out of its own reach."""
    policy: Json = helm.install(GATEWAY).of("NetworkPolicy")["spec"]
    [test] = policy["ingress"]
    [peer] = test["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "169.254.0.0/16" in str(policy["egress"])


def test_a_fenced_namespace_reaches_the_proxy_and_nothing_else(helm: Helm) -> None:
    """All its pods, whatever their labels; no DNS, no neighbours, not the control API."""
    made = helm.install(FENCED)
    fence = made.of("NetworkPolicy", namespace="agents")["spec"]
    assert (
        fence["podSelector"] == {} and fence["policyTypes"] == ["Ingress", "Egress"] and not fence["ingress"]
    )
    [way_out] = fence["egress"]
    assert way_out["ports"] == [{"protocol": "TCP", "port": 8080}]
    [to] = way_out["to"]
    assert to["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "coatcheck"}
    labels = made.of("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert to["podSelector"]["matchLabels"].items() <= labels.items()


def test_the_gateway_is_reached_by_fenced_namespaces_and_by_callers(helm: Helm) -> None:
    """Each at its own port."""
    _, proxy, control = helm.install(FENCED).of("NetworkPolicy", "cc")["spec"]["ingress"]
    assert proxy["ports"][0]["port"] == 8080 and control["ports"][0]["port"] == 9900
    [term] = proxy["from"][0]["namespaceSelector"]["matchExpressions"]
    assert term == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["agents"]}
    assert control["from"] == [{"podSelector": {}}]
