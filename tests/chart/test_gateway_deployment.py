"""templates/gateway/deployment.yaml: replicas on shared state."""

from tests.chart.cluster import Json
from tests.chart.helm import Helm
from tests.chart.values import GATEWAY, SHARED, given


def test_by_default_there_is_none(helm: Helm) -> None:
    """Without shared state a replica is what its volume is: a StatefulSet."""
    assert helm.install(GATEWAY).all("Deployment") == []


def test_replicas_share_one_state_and_one_ca(helm: Helm) -> None:
    """The CA is copied from the Secret before the first start; no volume outlives a pod."""
    made = helm.install(SHARED)
    assert made.all("StatefulSet") == []
    spec: Json = made.of("Deployment")["spec"]
    assert spec["replicas"] == 2 and spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = spec["template"]["spec"]
    [ca] = pod["initContainers"]
    assert "umask 077" in ca["args"][0] and ca["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["shared-state"]["secret"] == {"secretName": "fleet", "defaultMode": 0o440}
    assert "emptyDir" in volumes["state"]
    said = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert said["COATCHECK_SHARED_STATE"] == "rediss://coatcheck@redis.example:6379"
    assert said["COATCHECK_SHARED_STATE_KEY"] == "/etc/coatcheck-shared/fleet.key"
    assert said["COATCHECK_CONTROL_NAMES"] == '["cc.coatcheck.svc","$(POD_IP)"]'
    assert pod["containers"][0]["env"][0]["name"] == "POD_IP"


def test_one_service_leads_to_all_and_a_budget_keeps_one(helm: Helm) -> None:
    """Each knows every session; Prometheus asks each by its address."""
    shared = {"monitoring": {"serviceMonitor": {"enabled": True, "tokenSecret": "t", "caSecret": "c"}}}
    made = helm.install(given(SHARED, **shared, gateway={"clusterIPs": ["10.96.0.7"]}))
    service = made.of("Service")
    assert service["metadata"]["name"] == "cc" and service["spec"]["clusterIP"] == "10.96.0.7"
    labels = made.of("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    budget = made.of("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1 and budget["selector"]["matchLabels"].items() <= labels.items()
    [endpoint] = made.of("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] == "cc.coatcheck.svc" and "relabelings" not in endpoint
