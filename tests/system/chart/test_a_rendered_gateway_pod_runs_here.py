"""A replica of the gateway as the chart renders its pod: its user, volumes and init container, run here.

In a network namespace of its own, with PostgreSQL, Vault and the internet behind addresses of its loopback.
"""

import secrets
import signal
from pathlib import Path

import pytest
import trustme

from coatcheck.certificates.authority import Authority
from coatcheck.client.control import ControlClient
from coatcheck.fleet.schema import MIGRATOR, roles_sql
from coatcheck.secrets.embedded import EmbeddedVault
from tests.planes.platform import ISSUER, Platform
from tests.system.chart.helm import Helm
from tests.system.chart.kubelet import RunningPod, running
from tests.system.chart.origin import an_origin
from tests.system.chart.passage import passage
from tests.system.chart.schemas import check_one
from tests.system.chart.stage import KEY, UID, api_server, prepare, server_tls, token
from tests.system.chart.test_a_rendered_gateway_serves_here import GRANTS, LAUNCHER, MODELS
from tests.system.chart.values import POLICY, SHARED, given
from tests.system.redirect.world import BOX, namespace
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("ip", "nft", "iptables", "bwrap", "curl", "/usr/lib/postgresql"),
]

LOCAL = "127.0.0.1"


def secret_files(directory: Path, password: str) -> dict[str, str]:
    """What gateway.sharedState.secret holds."""
    Authority.create(directory)
    pair = {name: (directory / name).read_text() for name in ("ca.pem", "ca-key.pem")}
    return {"fleet.key": secrets.token_hex(32), "postgres-password": password, **pair}


def test_a_replica_runs_as_its_user_on_its_volumes_and_serves(
    helm: Helm, bao: EmbeddedVault, upstream_tls: UpstreamTls, tmp_path: Path
) -> None:
    """Secrets are its group's to read, the fleet's tables are made, the CA is copied, Vault is logged in to
    by the pod's token, and a pod that shows its own gets the real key's answer. SIGTERM ends it in order."""
    from tests.system.fleet.postgres_server import postgres_server

    platform, password = Platform(tmp_path / "jwks.json"), secrets.token_hex(16)
    tls, vault_ca = server_tls(LOCAL)
    bao_port = int(bao.url.rpartition(":")[2])
    with (
        api_server(platform) as server,
        postgres_server(password=password) as database,
        an_origin(upstream_tls, KEY) as (_, origin_port),
        namespace() as box,
        passage(box, LOCAL, bao_port, tls) as vault_port,
        passage(box, LOCAL, origin_port) as upstream_port,
        passage(box, LOCAL, database.port) as database_port,
    ):
        box.ip(f"addr add {BOX}/32 dev lo")
        prepare(bao, "kubernetes", server, "gateways")
        database.psql(roles_sql("web"))
        database.psql(f"CREATE ROLE carpenter LOGIN PASSWORD '{password}' IN ROLE {MIGRATOR}")
        control = trustme.CA()
        made = helm.install(
            given(
                SHARED,
                policies={"default.yaml": POLICY.replace("secret/openai#", "secret/rendered#")},
                platform={"jwks": platform.file.read_text(), "issuer": ISSUER},
                vault={"url": f"https://{LOCAL}:{vault_port}", "ca": vault_ca, "mount": "gateways"},
                upstreamCa=upstream_tls.ca.read_text(),
                settings={
                    "connect_to": {"api.openai.com:443": f"{LOCAL}:{upstream_port}"},
                    "allowed_networks": ["127.0.0.0/8"],
                },
                gateway={
                    "control": {"grants": GRANTS},
                    "sharedState": {
                        "url": f"postgresql://coatcheck@{LOCAL}:{database_port}/coatcheck",
                        "name": "web",
                        "migrator": "carpenter",
                    },
                },
            )
        )
        template = made.of("Deployment")["spec"]["template"]
        metadata = {**template["metadata"], "name": "cc-0", "namespace": "coatcheck", "uid": UID}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        check_one(pod)
        issued = control.issue_cert(BOX).private_key_and_cert_chain_pem.bytes().decode()
        given_secrets = {
            "fleet": secret_files(tmp_path / "made", password),
            "control-tls": {"control.pem": issued},
            "carpenter": {"username": "carpenter", "password": password},
        }
        configmaps = {each["metadata"]["name"]: each for each in made.all("ConfigMap", "coatcheck")}
        tokens = {"vault": token(platform, "vault", "coatcheck", "cc-0", "cc")}
        with running(pod, box, configmaps, tokens, given_secrets) as here:
            here.begin("coatcheck")
            (tmp_path / "control-ca.pem").write_bytes(control.cert_pem.bytes())
            client = ControlClient(
                url=f"https://{BOX}:9900", token=LAUNCHER, ca_file=tmp_path / "control-ca.pem"
            )
            serves(here, client, token(platform, "coatcheck", "agents", "agent-0", "default"))
            ca = here.directory / "volumes/state/proxy/state/ca/ca-key.pem"
            assert (ca.stat().st_uid, ca.stat().st_mode & 0o077) == (9990, 0)
            assert ca.read_text() == given_secrets["fleet"]["ca-key.pem"]
            assert here.stop(signal.SIGTERM) == {"coatcheck": 0}, here.log("coatcheck")


def serves(here: RunningPod, client: ControlClient, shown: str) -> None:
    opened = here.namespace.do(
        lambda: client.open_session(
            tenant="agents", subject="agent-0", policy="default", isolation="namespace",
            origin={"class": "token", "value": f"{ISSUER}|{UID}"},
        )
    )  # fmt: skip
    authority = here.directory / "sandbox-ca.pem"
    authority.write_text(here.run("coatcheck", "cat", opened["proxy"]["ca_bundle"]).stdout)
    asked = here.namespace.run(
        "curl", "--silent", "--show-error", "--max-time", "60", "--cacert", authority,
        "--proxy", f"http://{BOX}:8080", "--proxy-header", f"Proxy-Authorization: Bearer {shown}",
        "--header", f"Authorization: Bearer {opened['handles']['openai']['value']}", MODELS,
    )  # fmt: skip
    assert "gpt-" in asked.stdout, asked.stdout + asked.stderr + here.log("coatcheck")
