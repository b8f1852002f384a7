"""templates/gateway/configmap.yaml, and the volume that shows it to the daemon."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import GATEWAY, POLICY, given


def test_by_default_it_holds_policies_grants_and_the_platforms_keys(helm: Helm) -> None:
    """Nothing secret: login material and keys come in Secrets and projected tokens."""
    data = helm.install(GATEWAY).of("ConfigMap")["data"]
    assert data == {"policy-default.yaml": POLICY, "jwks.json": '{"keys": []}', "grants.toml": "# nobody\n"}


def test_every_key_has_its_place_in_the_volume(helm: Helm) -> None:
    """Policies alone in their directory: the daemon reads all files there."""
    values = given(
        GATEWAY,
        policies={"web.yaml": "x"},
        upstreamCa="U",
        vault={"ca": "V"},
        gateway={"control": {"clientCa": "C"}},
    )
    made = helm.install(values)
    volumes = made.of("StatefulSet")["spec"]["template"]["spec"]["volumes"]
    items = next(each["configMap"]["items"] for each in volumes if each["name"] == "coatcheck-config")
    assert {each["key"]: each["path"] for each in items} == {
        "policy-default.yaml": "policies/default.yaml",
        "policy-web.yaml": "policies/web.yaml",
        "grants.toml": "control/grants.toml",
        "jwks.json": "trust/jwks.json",
        "upstream-ca.pem": "trust/upstream-ca.pem",
        "vault-ca.pem": "trust/vault-ca.pem",
        "callers-ca.pem": "trust/callers-ca.pem",
    }
    assert made.of("ConfigMap")["data"].keys() == {each["key"] for each in items}
