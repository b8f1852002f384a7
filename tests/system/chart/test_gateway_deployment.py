"""templates/gateway/deployment.yaml: replicas on shared state."""

import os
import subprocess
from pathlib import Path

import pytest

from coatcheck.certificates.authority import Authority
from coatcheck.certificates.leaf import LeafIssuer
from coatcheck.certificates.succession import trusted
from coatcheck.settings.daemon import Settings
from tests.certificates.openssl_ca import made_with_openssl
from tests.system.chart.cluster import Json
from tests.system.chart.helm import Helm
from tests.system.chart.values import GATEWAY, ROTATING, SHARED, given


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
    assert said["COATCHECK_SHARED_STATE"] == "postgresql://coatcheck@db.example:5432/fleet"
    assert said["COATCHECK_SHARED_STATE_KEY"] == "/etc/coatcheck-shared/fleet.key"
    assert said["COATCHECK_CONTROL_NAMES"] == '["cc.coatcheck.svc","$(POD_IP)"]'
    assert pod["containers"][0]["env"][0]["name"] == "POD_IP"


def test_tables_are_migrated_before_a_replica_starts(helm: Helm) -> None:
    """By a user of its own, whom the daemon's container does not see; without one, an operator does it."""
    made = helm.install(given(SHARED, gateway={"sharedState": {"migrator": "carpenter", "ca": "-----"}}))
    pod = made.of("Deployment")["spec"]["template"]["spec"]
    tables = pod["initContainers"][-1]
    assert tables["command"] == ["coatcheck", "fleet", "migrate"]
    assert tables["args"] == [
        "--url=postgresql://db.example:5432/fleet",
        "--name=coatcheck",
        "--user-file=/etc/coatcheck-migrator/username",
        "--password-file=/etc/coatcheck-migrator/password",
        "--ca-file=/etc/coatcheck/trust/postgres-ca.pem",
    ]
    assert tables["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "migrator" not in {each["name"] for each in pod["containers"][0]["volumeMounts"]}
    assert "migrator" not in {
        each["name"] for each in helm.install(SHARED).of("Deployment")["spec"]["template"]["spec"]["volumes"]
    }


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


def test_a_replica_that_goes_serves_until_no_node_leads_to_it(helm: Helm) -> None:
    """Else an upgrade would refuse connections; and there is time left for it to drain."""
    [container] = (pod := helm.install(SHARED).of("Deployment")["spec"]["template"]["spec"])["containers"]
    [word, seconds] = container["lifecycle"]["preStop"]["exec"]["command"]
    drains = Settings.model_fields["drain_seconds"].default
    assert word == "sleep" and pod["terminationGracePeriodSeconds"] > int(seconds) + drains
    alone = helm.install(GATEWAY).of("StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert "lifecycle" not in alone  # it would be away for longer, and nobody else is there


def copy_ca(helm: Helm, secret: Path, volume: Path) -> None:
    """The init container's command, with its two places here, and with as little power as it has there."""
    [container] = helm.install(SHARED).of("Deployment")["spec"]["template"]["spec"]["initContainers"]
    [script] = container["args"]
    script = script.replace("/etc/coatcheck-shared/", f"{secret}/").replace(
        "/var/lib/coatcheck/", f"{volume}/"
    )
    powers = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    ran = subprocess.run(
        [*powers, *container["command"], script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr


def write_secret(made: Path, secret: Path, prefix: str = "") -> None:
    """Its pair, as a Secret's volume has it: read-only."""
    secret.mkdir(exist_ok=True)
    for name in ("ca.pem", "ca-key.pem"):
        (secret / f"{prefix}{name}").unlink(missing_ok=True)
        (secret / f"{prefix}{name}").write_bytes((made / name).read_bytes())
        (secret / f"{prefix}{name}").chmod(0o440)


def test_the_ca_is_copied_again_when_the_pod_is_made_anew_on_its_old_volume(
    helm: Helm, tmp_path: Path
) -> None:
    """A reboot of the node runs init containers again, and an emptyDir is still there then."""
    secret, volume = tmp_path / "secret", tmp_path / "volume"
    volume.mkdir()
    for name in ("First CA", "Second CA"):
        made = Authority.create(tmp_path / name, name)
        write_secret(tmp_path / name, secret)
        copy_ca(helm, secret, volume)
        assert Authority.load(volume / "proxy/state/ca").fingerprint == made.fingerprint


@pytest.mark.needs_debian("openssl")
def test_a_replica_takes_the_ca_that_the_template_makes(helm: Helm, tmp_path: Path) -> None:
    """certs/README.md: where `coatcheck ca new` is not at hand, openssl makes the Secret's CA."""
    directory = made_with_openssl(tmp_path / "made")
    (tmp_path / "volume").mkdir()
    write_secret(directory, tmp_path / "secret")
    copy_ca(helm, tmp_path / "secret", tmp_path / "volume")
    made = Authority.load(tmp_path / "volume/proxy/state/ca")
    assert made.pem == (directory / "ca.pem").read_bytes()
    assert LeafIssuer(made).issue("api.openai.com").host == "api.openai.com"


def test_replicas_change_their_ca_by_two_rolls_and_every_step_trusts_both(helm: Helm, tmp_path: Path) -> None:
    """docs/kubernetes.md: the new one beside the old, then swapped, then the old one is gone."""
    first = Authority.create(tmp_path / "first", "First CA")
    second = Authority.create(tmp_path / "second", "Second CA")
    secret, steps = tmp_path / "secret", [("first", "second"), ("second", "first"), ("second", "")]
    said = []
    for number, (own, other) in enumerate(steps):
        write_secret(tmp_path / own, secret)
        if other:
            write_secret(tmp_path / other, secret, "next-")
        else:
            (secret / "next-ca.pem").unlink()
            (secret / "next-ca-key.pem").unlink()
        for volume in (tmp_path / f"new-{number}", tmp_path / "old"):
            volume.mkdir(exist_ok=True)
            copy_ca(helm, secret, volume)
            ca = volume / "proxy/state/ca"
            said.append(trusted(ca, Authority.load(ca)))
    both = (first.pem + second.pem, second.pem + first.pem)
    assert said == [both[0]] * 2 + [both[1]] * 2 + [second.pem] * 2


def test_database_credentials_that_rotate_are_read_from_their_own_secret(helm: Helm) -> None:
    """Each connection reads both files anew."""
    pod = helm.install(ROTATING).of("Deployment")["spec"]["template"]["spec"]
    said = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert said["COATCHECK_SHARED_STATE_USER_FILE"] == "/etc/coatcheck-database/username"
    assert said["COATCHECK_SHARED_STATE_PASSWORD_FILE"] == "/etc/coatcheck-database/password"
    [volume] = [each["secret"] for each in pod["volumes"] if each["name"] == "database"]
    assert volume == {"secretName": "database-credentials", "defaultMode": 0o440}
    mounted = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert "/etc/coatcheck-database" in mounted
