"""A pod as the chart and its webhook make it, run in a network namespace: only its proxy gets out.

Everything is real but the API server, the kubelet and the internet: the chart by Helm, the webhook as a
process over TLS, the redirect, the daemon with the rendered arguments, environment, user and mounts, OpenBao,
which verifies the pod's token by the JWKS that is served here, and curl.
"""

import asyncio
import base64
import http.server
import json
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from coatcheck.stores.embedded import EmbeddedVault
from tests.admission.pods import patched, pod, review
from tests.admission.webhook import running_webhook
from tests.chart.cluster import Json
from tests.chart.helm import Helm
from tests.chart.kubelet import RunningPod, running
from tests.chart.origin import an_origin
from tests.chart.passage import passage
from tests.chart.schemas import check_one
from tests.chart.values import POLICY, SIDECAR, given
from tests.known_secrets import known_secret
from tests.planes.platform import ISSUER, Platform
from tests.redirect.world import AGENT_UID, HOST, INTERNET, World, rules_of, world
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("nft", "iptables", "ip", "bwrap", "curl"), pytest.mark.slow]

UID = "0d3b7e0c-2a5f-4f0e-9a51-5b6a1b2c3d4e"
KEY = known_secret("the key that a rendered pod uses", prefix="sk-proj-")
CURL = "curl --silent --show-error --max-time 30 --write-out ' %{http_code} %header{coatcheck-reason}'"
MODELS = "curl_() { " + CURL + ' "$@"; }; curl_ --header "Authorization: Bearer $OPENAI_API_KEY"'


@dataclass(frozen=True, slots=True)
class Stage:
    world: World
    running: RunningPod
    origin: "subprocess.Popen[str]" = field(repr=False)

    def shell(self, script: str) -> str:
        """What a program of the workload, with its handles, prints."""
        ran = self.running.run("agent", "/run/coatcheck/with-handles", "sh", "-c", script)
        return ran.stdout + ran.stderr


@contextmanager
def jwks(platform: Platform) -> Iterator[str]:
    """The URL of the platform's keys."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = platform.file.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *said: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="jwks")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/openid/v1/jwks"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def prepare(bao: EmbeddedVault, keys: str) -> None:
    """A login for pods of `agents`, by their tokens for Vault's audience, and the secret."""

    def work(client: Any) -> None:
        client.sys.enable_auth_method("jwt", path="pods")
        client.auth.jwt.configure(jwks_url=keys, path="pods")
        client.sys.create_or_update_policy("pods", 'path "secret/data/rendered" { capabilities = ["read"] }')
        client.auth.jwt.create_role(
            "coatcheck", "sub", [], role_type="jwt", bound_audiences=["vault"], path="pods",
            bound_subject="system:serviceaccount:agents:default", token_policies=["pods"],
        )  # fmt: skip

    asyncio.run(bao.call(work))
    asyncio.run(bao.put("rendered", {"api_key": KEY}))


def admitted(made: Json, author: Json, directory: Path) -> Json:
    """What the real webhook, started as the Deployment says, makes of an author's pod."""
    (directory / "etc").mkdir()
    (directory / "ca").mkdir()
    configuration = made["configuration"]
    (directory / "etc/admission.yaml").write_text(configuration)
    for name, value in made["secret"].items():
        (directory / "ca" / name).write_bytes(base64.b64decode(value))
    places = {"/etc/coatcheck-admission": directory / "etc", "/etc/coatcheck-ca": directory / "ca"}
    arguments = made["args"]
    for place, there in places.items():
        arguments = [word.replace(place, str(there)) for word in arguments]
    ca = base64.b64decode(made["secret"]["ca.crt"])
    with running_webhook(arguments, ca, directory / "webhook.log") as webhook:
        answer = webhook.review("/mutate", review(author))
        assert answer["allowed"], answer
        pod = patched(author, json.loads(base64.b64decode(answer["patch"])))
        assert webhook.review("/validate", review(pod))["allowed"]
    return pod


@pytest.fixture(scope="module")
def stage(
    helm: Helm, bao: EmbeddedVault, upstream_tls: UpstreamTls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """The chart installed, a pod admitted and started, and afterwards gone without a trace."""
    directory = tmp_path_factory.mktemp("rendered")
    platform = Platform(directory / "jwks.json")
    vault_ca = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    vault_ca.issue_cert(HOST).configure_cert(tls)
    bao_port = int(bao.url.rpartition(":")[2])
    with (
        jwks(platform) as keys,
        an_origin(upstream_tls, KEY) as (origin, origin_port),
        world() as there,
        passage(there.host, HOST, bao_port, tls) as vault_port,
        passage(there.host, HOST, origin_port) as upstream_port,
    ):
        prepare(bao, keys)
        objects = helm.install(
            given(
                SIDECAR,
                policies={"default.yaml": POLICY.replace("secret/openai#", "secret/rendered#")},
                platform={"jwks": platform.file.read_text(), "issuer": ISSUER},
                vault={
                    "url": f"https://{HOST}:{vault_port}",
                    "ca": vault_ca.cert_pem.bytes().decode(),
                    "login": "jwt",
                    "mount": "pods",
                },
                upstreamCa=upstream_tls.ca.read_text(),
                settings={
                    "connect_to": {"api.openai.com:443": f"{HOST}:{upstream_port}"},
                    "allowed_networks": ["10.77.0.0/24"],
                },
            )
        )
        made = {
            "configuration": objects.of("ConfigMap", "cc-admission")["data"]["admission.yaml"],
            "secret": objects.of("Secret")["data"],
            "args": objects.of("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"],
        }
        author = pod({"name": "agent", "command": ["/run/coatcheck/with-handles", "env"]})
        admitted_pod = admitted(made, author, directory)
        check_one(admitted_pod)
        admitted_pod["metadata"]["uid"] = UID  # the API server's, when it stores the pod
        configmaps = {each["metadata"]["name"]: each for each in objects.all("ConfigMap", "agents")}
        tokens = {audience: platform.token(UID, aud=[audience]) for audience in ("coatcheck", "vault")}
        with running(admitted_pod, there.box, configmaps, tokens) as pod_here:
            yield Stage(there, pod_here, origin)
        assert there.internet.read() == []


def test_a_program_is_served_with_a_key_that_the_pod_never_sees(stage: Stage) -> None:
    """curl, told of no proxy: its handle in the header, the real key at the origin."""
    said = stage.shell(f"{MODELS} https://api.openai.com/v1/models")
    assert "gpt-" in said and " 200 " in said, said + stage.running.log("coatcheck-proxy")
    assert stage.origin.stdout is not None
    assert json.loads(stage.origin.stdout.readline())["genuine"] == "openai"
    environment = stage.running.run("agent").stdout  # its own command: env
    assert "OPENAI_API_KEY=" in environment and "SSL_CERT_FILE=/run/coatcheck/ca-bundle.pem" in environment
    assert KEY not in environment


def test_everything_else_is_refused(stage: Stage) -> None:
    """Another host in words; other ports, DNS to others and QUIC by the rules. Nothing was seen outside."""
    said = stage.shell(f"{MODELS} https://elsewhere.example/")
    assert said.endswith(" 403 host_not_allowed"), said
    wanted = (f"tcp {INTERNET} 8080", f"udp {INTERNET} 443", f"udp {INTERNET} 9999", f"ping {INTERNET}")
    came = stage.world.attempts(*wanted, f"tcp {HOST} 9900", uid=AGENT_UID)
    assert "answered" not in came.values()
    assert (stage.world.internet.read(), stage.world.services.read()) == ([], [])


def test_the_session_is_the_pods_by_its_token(stage: Stage) -> None:
    """Tenant and subject as the platform signed them."""
    said = stage.running.run("coatcheck-proxy", "coatcheck", "session", "list", "--json")
    assert said.returncode == 0, said.stderr
    [session] = json.loads(said.stdout)
    assert (session["tenant"], session["subject"]) == ("agents", "pod/agent-0")


def test_the_workload_reaches_nothing_of_the_proxys(stage: Stage) -> None:
    """No token, no state, no socket, no capability, no way to its user, and trust that it cannot write."""
    agent = stage.shell(
        "ls /var/run/secrets /var/lib/coatcheck /etc/coatcheck; id; grep Cap /proc/self/status"
    )
    assert agent.count("No such file or directory") == 3, agent
    assert "uid=1000" in agent and "CapBnd:\t0000000000000000" in agent
    written = stage.shell("touch /run/coatcheck/new; echo mine > /run/coatcheck/ca-bundle.pem")
    assert written.count("Read-only file system") + written.count("Permission denied") == 2, written
    assert "not permitted" in stage.shell("setpriv --reuid 9990 --clear-groups id")
    assert "not permitted" in stage.shell("nft flush ruleset").lower()


def test_the_proxy_runs_as_nobody_with_nothing(stage: Stage) -> None:
    """As the kernel says it of the process that the rendered container is."""
    status = Path(f"/proc/{stage.running.inside('coatcheck-proxy')}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["9990"] * 4 and facts["NoNewPrivs"] == "1"
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}


def test_when_the_pod_goes_nothing_is_left(stage: Stage) -> None:
    """Last: SIGTERM ends the session and the proxy in order. What it cut off stays cut off until the
    namespace, and with it the rules, is gone."""
    assert rules_of(stage.world.box)
    assert stage.running.stop(signal.SIGTERM) == {"coatcheck-proxy": 0}, stage.running.log("coatcheck-proxy")
    audit = stage.running.directory / "volumes/coatcheck-state/proxy/state/audit/audit.jsonl"
    changes = [each["change"] for each in map(json.loads, audit.read_text().splitlines()) if "change" in each]
    assert changes[-1] == "ended"
    said = stage.shell(f"{MODELS} https://api.openai.com/v1/models")
    assert " 000 " in said
    of_the_pod = [each for each in Path("/proc").glob("[0-9]*/ns/net") if _same(each, stage)]
    assert [each.parent.parent.name for each in of_the_pod] == [str(stage.world.box.pid)]
    assert KEY not in "".join(each.read_text() for each in stage.running.directory.glob("*.log"))


def _same(link: Path, stage: Stage) -> bool:
    try:
        return link.readlink() == Path(f"/proc/{stage.world.box.pid}/ns/net").readlink()
    except OSError:
        return False
