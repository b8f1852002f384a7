"""templates/gateway/statefulset.yaml."""

from tests.system.chart.cluster import Json
from tests.system.chart.helm import Helm
from tests.system.chart.values import GATEWAY, Values, given


def pod(helm: Helm, values: Values = GATEWAY) -> Json:
    template: Json = helm.install(values).of("StatefulSet")["spec"]["template"]["spec"]
    return template


def env(spec: Json) -> dict[str, str]:
    return {each["name"]: each["value"] for each in spec["containers"][0]["env"]}


def test_by_default_one_replica_runs_as_nobody_with_nothing(helm: Helm) -> None:
    """No root, no capability, no writable image, no token of the API server, no service's variables."""
    made = helm.install(GATEWAY).of("StatefulSet")
    spec = pod(helm)
    assert made["spec"]["replicas"] == 1 and made["spec"]["serviceName"] == "cc-replicas"
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["command"] + container["args"] == ["coatcheck", "serve"]
    assert container["image"] == "coatcheck:0.1.0"


def test_the_origin_is_a_token_and_the_control_api_has_tls(helm: Helm) -> None:
    """Never an address alone; and the daemon logs in at Vault by its own projected token."""
    said = env(pod(helm))
    assert said["COATCHECK_TOKEN_AUDIENCE"] == "coatcheck" and "COATCHECK_PROXY_TRUST_ADDRESSES" not in said
    assert said["COATCHECK_CONTROL_TLS_CERTIFICATE"] == "/etc/coatcheck-tls/control"
    assert said["COATCHECK_CONTROL_NAMES"] == '["cc-0.coatcheck.svc"]'
    assert said["COATCHECK_VAULT_LOGIN"] == "kubernetes"
    [token] = next(v for v in pod(helm)["volumes"] if v["name"] == "vault-token")["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "vault"
    mounts = {each["name"]: each["mountPath"] for each in pod(helm)["containers"][0]["volumeMounts"]}
    assert said["COATCHECK_VAULT_JWT_FILE"].startswith(mounts["vault-token"])
    assert said["COATCHECK_STATE_DIR"].startswith(mounts["state"])


def test_probes_name_a_host_that_the_control_api_answers_to(helm: Helm) -> None:
    """A kubelet asks by address, which it would refuse."""
    [container] = pod(helm)["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["scheme"] == "HTTPS" and asked["httpHeaders"] == [{"name": "Host", "value": "localhost"}]


def test_with_certificates_there_is_no_token(helm: Helm) -> None:
    """The listener's certificate comes from its Secret, the sandboxes' CA from the ConfigMap."""
    values = given(
        GATEWAY, gateway={"origin": "certificate", "proxyTls": {"secret": "tls", "clientCa": "PEM"}}
    )
    said = env(pod(helm, values))
    assert "COATCHECK_TOKEN_ISSUER" not in said
    assert said["COATCHECK_PROXY_CLIENT_CA"] == "/etc/coatcheck/trust/sandboxes-ca.pem"
    volumes = {each["name"]: each for each in pod(helm, values)["volumes"]}
    assert volumes["proxy-tls"]["secret"]["secretName"] == "tls"


def test_settings_of_ones_own_are_added_in_the_daemons_own_form(helm: Helm) -> None:
    """Lists as JSON, whole numbers whole, truth in small letters."""
    settings = {
        "allowed_networks": ["10.0.0.0/8"],
        "secret_ttl": 30,
        "session_ca": True,
        "connect_to": {"a:1": "b:2"},
    }
    said = env(pod(helm, given(GATEWAY, settings=settings)))
    assert said["COATCHECK_ALLOWED_NETWORKS"] == '["10.0.0.0/8"]' and said["COATCHECK_SECRET_TTL"] == "30"
    assert said["COATCHECK_SESSION_CA"] == "true" and said["COATCHECK_CONNECT_TO"] == '{"a:1":"b:2"}'


def test_a_digest_wins_over_the_tag(helm: Helm) -> None:
    """Production names what it runs."""
    digest = f"sha256:{'0' * 64}"
    made = pod(helm, given(GATEWAY, image={"digest": digest, "tag": "x", "repository": "r/c"}))
    assert made["containers"][0]["image"] == f"r/c@{digest}"


def test_the_replica_has_a_name_and_a_volume_of_its_own(helm: Helm) -> None:
    """Sessions, keys and the audit log outlive its pod."""
    made = helm.install(given(GATEWAY, gateway={"state": {"storageClass": "fast"}}))
    [claim] = made.of("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert "initContainers" not in pod(helm)


def test_a_signed_bundle_is_all_that_is_read(helm: Helm) -> None:
    """From the chart's own ConfigMap, or from one that somebody else keeps; the trust root is the chart's."""
    signed = {**GATEWAY, "policies": {}, "signedPolicies": {"bundle": "B", "trustRoot": "P"}}
    said = env(pod(helm, signed))
    assert said["COATCHECK_POLICY"] == "/etc/coatcheck/policies/release.bundle"
    assert said["COATCHECK_POLICY_TRUST_ROOT"] == "/etc/coatcheck/trust/trust-root.pem"
    kept = pod(helm, {**signed, "signedPolicies": {"configMap": "release", "trustRoot": "P"}})
    assert env(kept)["COATCHECK_POLICY"] == "/etc/coatcheck-bundle/release.bundle"
    mounts = {each["name"]: each["mountPath"] for each in kept["containers"][0]["volumeMounts"]}
    [volume] = [each["configMap"] for each in kept["volumes"] if each["name"] == "policy-bundle"]
    assert mounts["policy-bundle"] == "/etc/coatcheck-bundle" and volume["name"] == "release"
    assert "COATCHECK_POLICY_TRUST_ROOT" not in env(pod(helm))


def test_a_private_registry_is_named(helm: Helm) -> None:
    """By default there is none."""
    assert "imagePullSecrets" not in pod(helm)
    made = pod(helm, given(GATEWAY, image={"pullSecrets": ["registry"]}))
    assert made["imagePullSecrets"] == [{"name": "registry"}]
