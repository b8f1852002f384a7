"""templates/sidecar/injection.yaml: what the webhook adds to pods, as it reads it."""

from pathlib import Path

import pytest

from coatcheck.kubernetes.webhook.configuration import Admission, load
from tests.system.chart.cluster import Json
from tests.system.chart.helm import Helm
from tests.system.chart.values import FLEET, SIDECAR, Values, given


@pytest.fixture
def admission(helm: Helm, tmp_path: Path) -> Admission:
    return rendered(helm, tmp_path)


def rendered(helm: Helm, directory: Path, values: Values = SIDECAR) -> Admission:
    """The configuration as the webhook loads it from the rendered ConfigMap."""
    file = directory / "admission.yaml"
    file.write_text(helm.install(values).of("ConfigMap", "cc-admission")["data"]["admission.yaml"])
    return load(file)


def container(admission: Admission, name: str) -> Json:
    [found] = [each for each in admission.fragment.initContainers if each["name"] == name]
    return found


def test_by_default_the_redirect_comes_first_and_alone_has_a_capability(admission: Admission) -> None:
    """It ends before the proxy begins; the proxy runs as a user of its own, with nothing."""
    first, second = admission.fragment.initContainers
    assert (first["name"], second["name"]) == ("coatcheck-redirect", "coatcheck-proxy")
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert "restartPolicy" not in first and second["restartPolicy"] == "Always"
    assert second["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert second["securityContext"]["runAsUser"] == admission.proxy_uid == 9990
    for each in (first, second):
        assert each["securityContext"]["readOnlyRootFilesystem"] is True
        assert each["securityContext"]["allowPrivilegeEscalation"] is False


def test_both_containers_mean_the_same_ports_and_the_same_user(helm: Helm, tmp_path: Path) -> None:
    """Else connections would be led where nobody listens."""
    values = given(SIDECAR, sidecar={"proxyUid": 7000, "transparentPort": 2000, "dnsPort": 2001})
    made = rendered(helm, tmp_path, values)
    words = container(made, "coatcheck-redirect")["args"]
    proxy = container(made, "coatcheck-proxy")
    said = {each["name"]: each.get("value") for each in proxy["env"]}
    assert words == [
        "redirect",
        "apply",
        "--inside",
        "--proxy-uid",
        "7000",
        "--port",
        "2000",
        "--dns-port",
        "2001",
    ]
    assert (said["COATCHECK_TRANSPARENT_PORT"], said["COATCHECK_DNS_PORT"]) == ("2000", "2001")
    assert proxy["securityContext"]["runAsUser"] == made.proxy_uid == 7000


def test_tokens_and_control_socket_are_on_volumes_that_only_the_proxy_mounts(admission: Admission) -> None:
    """The workload gets one of ours, to read: trust and handles."""
    proxy = container(admission, "coatcheck-proxy")
    mounts = {each["mountPath"]: each["name"] for each in proxy["volumeMounts"]}
    said = {each["name"]: each.get("value", "") for each in proxy["env"]}
    assert mounts[admission.workload_dir] == admission.workload_volume
    for name in ("COATCHECK_RUNTIME_DIR", "COATCHECK_STATE_DIR", "COATCHECK_VAULT_JWT_FILE"):
        [volume] = [mounts[path] for path in mounts if said[name].startswith(f"{path}/")]
        assert volume != admission.workload_volume
    tokens = next(each for each in admission.fragment.volumes if each["name"] == "coatcheck-tokens")
    audiences = [each["serviceAccountToken"]["audience"] for each in tokens["projected"]["sources"]]
    assert audiences == ["coatcheck", "vault"]
    assert "COATCHECK_CONTROL_PORT" not in said


def test_a_sidecar_asks_the_cluster_for_its_keys_with_a_token_that_the_workload_never_sees(
    helm: Helm, tmp_path: Path
) -> None:
    """Unless they are given: projected beside the other two, on the volume that only the proxy mounts."""
    made = rendered(helm, tmp_path, given(SIDECAR, platform={"jwks": ""}))
    said = {each["name"]: each.get("value", "") for each in container(made, "coatcheck-proxy")["env"]}
    assert said["COATCHECK_TOKEN_JWKS_URL"] == "https://kubernetes.default.svc/openid/v1/jwks"
    assert "COATCHECK_TOKEN_JWKS_FILE" not in said
    [tokens] = [each for each in made.fragment.volumes if each["name"] == "coatcheck-tokens"]
    *_, token, roots = tokens["projected"]["sources"]
    assert token == {"serviceAccountToken": {"path": "cluster-token", "expirationSeconds": 3600}}
    assert roots["configMap"]["name"] == "kube-root-ca.crt"
    for name, file in (("BEARER", "cluster-token"), ("CA", "cluster-ca.pem")):
        assert said[f"COATCHECK_TOKEN_JWKS_{name}_FILE"] == f"/var/run/secrets/coatcheck/{file}"


def test_every_volume_is_mounted_and_every_mount_has_a_volume(helm: Helm, tmp_path: Path) -> None:
    """By name."""
    for values in (SIDECAR, FLEET):
        made = rendered(helm, tmp_path, values).fragment
        mounted = {m["name"] for each in made.initContainers for m in each.get("volumeMounts", ())}
        assert mounted == {each["name"] for each in made.volumes}


def test_by_default_a_sidecar_shares_its_state_with_nobody(admission: Admission) -> None:
    """And no Secret is kept from workloads."""
    assert len(admission.fragment.initContainers) == 2 and admission.protected_secrets == ()
    assert "SHARED_STATE" not in str(admission.fragment)


def test_a_sidecar_of_a_fleet_has_its_key_from_a_secret_that_no_workload_may_have(
    helm: Helm, tmp_path: Path
) -> None:
    """Copied by a container of the proxy's user, as no fsGroup is ours to choose; of the Secret two keys."""
    made = rendered(helm, tmp_path, FLEET)
    assert made.protected_secrets == ("fleet",)
    assert [each["name"] for each in made.fragment.initContainers] == [
        "coatcheck-redirect",
        "coatcheck-fleet-key",
        "coatcheck-proxy",
    ]
    copying, proxy = container(made, "coatcheck-fleet-key"), container(made, "coatcheck-proxy")
    assert copying["securityContext"] == proxy["securityContext"] and "restartPolicy" not in copying
    [volume] = [each["secret"] for each in made.fragment.volumes if each["name"] == "coatcheck-shared"]
    assert volume["secretName"] == "fleet" and volume["defaultMode"] == 0o444
    assert [each["key"] for each in volume["items"]] == ["fleet.key", "postgres-password"]
    said = {each["name"]: each.get("value", "") for each in proxy["env"]}
    assert said["COATCHECK_SHARED_STATE"] == "postgresql://coatcheck@db.example:5432/fleet"
    assert said["COATCHECK_SHARED_STATE_NAME"] == "agents"
    assert said["COATCHECK_SHARED_STATE_KEY"].startswith("/var/lib/coatcheck/")
    assert said["COATCHECK_SHARED_STATE_PASSWORD_FILE"] == "/etc/coatcheck-shared/postgres-password"
    assert said["COATCHECK_SHARED_STATE_CA_FILE"] == "/etc/coatcheck/trust/postgres-ca.pem"
    read = helm.install(FLEET).of("ConfigMap", namespace="agents")["data"]
    assert read["postgres-ca.pem"] == "PEM"


def test_database_credentials_of_a_sidecar_that_rotate_are_a_secret_that_no_workload_may_have(
    helm: Helm, tmp_path: Path
) -> None:
    """Vault's database engine gives them; the daemon reads both files for each connection."""
    url = "postgresql://db.example/fleet"
    made = rendered(helm, tmp_path, given(FLEET, sidecar={"sharedState": {"url": url, "credentials": "pg"}}))
    assert made.protected_secrets == ("fleet", "pg")
    volumes = {each["name"]: each.get("secret", {}) for each in made.fragment.volumes}
    assert volumes["coatcheck-database"]["secretName"] == "pg"
    assert [each["key"] for each in volumes["coatcheck-shared"]["items"]] == ["fleet.key"]
    proxy = container(made, "coatcheck-proxy")
    said = {each["name"]: each.get("value", "") for each in proxy["env"]}
    assert said["COATCHECK_SHARED_STATE_USER_FILE"] == "/etc/coatcheck-database/username"
    assert said["COATCHECK_SHARED_STATE_PASSWORD_FILE"] == "/etc/coatcheck-database/password"
    assert "/etc/coatcheck-database" in {each["mountPath"] for each in proxy["volumeMounts"]}
