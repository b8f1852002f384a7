"""templates/sidecar/namespaces.yaml: what proxies read in their own namespaces."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import POLICY, SIDECAR, given


def test_by_default_the_namespace_has_policies_and_the_platforms_keys(helm: Helm) -> None:
    """Under the name that the pods' volume and the webhook's guard know."""
    made = helm.install(SIDECAR)
    data = made.of("ConfigMap", namespace="agents")
    assert data["metadata"]["name"] == "coatcheck-sidecar"
    assert data["data"] == {"policy-default.yaml": POLICY, "jwks.json": '{"keys": []}'}


def test_every_namespace_has_the_same(helm: Helm) -> None:
    """And nobody's grants: a sidecar's control API has one caller, itself."""
    made = helm.install(given(SIDECAR, sidecar={"namespaces": ["agents", "web"]}, vault={"ca": "PEM"}))
    one, other = (made.of("ConfigMap", namespace=each)["data"] for each in ("agents", "web"))
    assert one == other and "grants.toml" not in one and one["vault-ca.pem"] == "PEM"
