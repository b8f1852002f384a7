"""A pod as the chart and its webhook make it, in a network namespace of its own, with all that is around it.

Everything is real but the API server, the kubelet and the internet: the chart by Helm, the webhook as a
process over TLS, the redirect, the daemon with the rendered arguments, environment, user and mounts, and
OpenBao, which verifies the pod's token by what is served here (a JWKS, or the API server's TokenReview).
"""

import asyncio
import base64
import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import trustme

from coatcheck.secrets.embedded import EmbeddedVault
from tests.known_secrets import known_secret
from tests.kubernetes.webhook.pods import API_MOUNT, API_TOKEN, patched, pod, review
from tests.kubernetes.webhook.webhook import running_webhook
from tests.planes.platform import ISSUER, Platform
from tests.system.chart.cluster import Json
from tests.system.chart.helm import Helm
from tests.system.chart.kubelet import RunningPod, running
from tests.system.chart.origin import an_origin
from tests.system.chart.passage import passage
from tests.system.chart.schemas import check_one
from tests.system.chart.values import POLICY, SIDECAR, given
from tests.system.redirect.world import HOST, World, world
from tests.upstreams import UpstreamTls

UID = "0d3b7e0c-2a5f-4f0e-9a51-5b6a1b2c3d4e"
KEY = known_secret("the key that a rendered pod uses", prefix="sk-proj-")
AUTHORS = pod(
    {
        "name": "agent",
        "command": ["/run/coatcheck/with-handles", "sh", "-c", "env; cat /etc/agent/colour /etc/pod/name"],
        "env": [{"name": "COLOUR", "valueFrom": {"secretKeyRef": {"name": "agent", "key": "colour"}}}],
        "volumeMounts": [
            API_MOUNT,
            {"name": "agent", "mountPath": "/etc/agent", "readOnly": True},
            {"name": "pod", "mountPath": "/etc/pod", "readOnly": True},
        ],
    },
    volumes=[
        API_TOKEN,
        {"name": "agent", "secret": {"secretName": "agent", "defaultMode": 420}},
        {
            "name": "pod",
            "downwardAPI": {
                "defaultMode": 420,
                "items": [
                    {"path": "name", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
                ],
            },
        },
    ],
)
"""A pod as its author writes it, with a Secret of its own."""
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


@dataclass(frozen=True, slots=True)
class SharedState:
    """A PostgreSQL on this machine's loopback, its CA, and what the namespace's Secret has for it."""

    port: int
    ca: str
    secret: Mapping[str, str] = field(repr=False)


@contextmanager
def api_server(platform: Platform) -> Iterator[str]:
    """Where the platform's keys are (GET, whatever the path), and where it says whose a token is (POST)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, platform.file.read_bytes())

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._say(201, json.dumps(asked | {"status": reviewed(platform, asked["spec"])}).encode())

        def _say(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *said: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="api-server")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reviewed(platform: Platform, spec: Json) -> Json:
    """A TokenReview's status: the signature, the issuer and the audiences that the asker wants."""
    key, wanted = platform.keys["ES256"].public_key(), spec.get("audiences", [])
    try:
        claims = jwt.decode(spec["token"], key, ["ES256"], audience=wanted, issuer=ISSUER)
    except jwt.InvalidTokenError:
        return {"authenticated": False}
    account = claims["kubernetes.io"]["serviceaccount"]
    return {
        "authenticated": True,
        "audiences": wanted,
        "user": {"username": claims["sub"], "uid": account["uid"]},
    }


def prepare(bao: EmbeddedVault, login: str, server: str, mount: str) -> None:
    """A login for pods by their tokens for Vault's audience, and the secret. `kubernetes` as
    docs/kubernetes.md has it."""

    def work(client: Any) -> None:
        client.sys.create_or_update_policy("pods", 'path "secret/data/rendered" { capabilities = ["read"] }')
        if login == "kubernetes":
            client.sys.enable_auth_method("kubernetes", path=mount)
            client.auth.kubernetes.configure(
                server,
                token_reviewer_jwt="of-nobody",
                kubernetes_ca_cert=trustme.CA().cert_pem.bytes().decode(),
                disable_local_ca_jwt=True,
                mount_point=mount,
            )
            client.write_data(
                f"auth/{mount}/role/coatcheck",
                data={
                    "audience": "vault", "token_policies": "pods",
                    "bound_service_account_names": "default,cc",
                    "bound_service_account_namespaces": "agents,coatcheck",
                },
            )  # fmt: skip
            return
        client.sys.enable_auth_method("jwt", path=mount)
        client.auth.jwt.configure(jwks_url=f"{server}/openid/v1/jwks", path=mount)
        client.auth.jwt.create_role(
            "coatcheck", "sub", [], role_type="jwt", bound_audiences=["vault"], path=mount,
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


def token(platform: Platform, audience: str, namespace: str, name: str, account: str) -> str:
    """As the API server projects it into the pod of this name."""
    who = {
        "namespace": namespace,
        "pod": {"name": name, "uid": UID},
        "serviceaccount": {"name": account, "uid": "9c1d"},
    }
    claims: Json = {"sub": f"system:serviceaccount:{namespace}:{account}", "kubernetes.io": who}
    return platform.token(aud=[audience], **claims)


def server_tls(address: str) -> tuple[ssl.SSLContext, str]:
    """For Vault at that address, and the CA that its clients are to trust."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(address).configure_cert(context)
    return context, authority.cert_pem.bytes().decode()


def certificate_of(address: str) -> tuple[bytes, str]:
    """PEM with its key, and the CA that clients are to trust."""
    authority = trustme.CA()
    issued = authority.issue_cert(address).private_key_and_cert_chain_pem.bytes()
    return issued, authority.cert_pem.bytes().decode()


@contextmanager
def staged(
    helm: Helm,
    bao: EmbeddedVault,
    upstream_tls: UpstreamTls,
    directory: Path,
    login: str = "kubernetes",
    shared: SharedState | None = None,
) -> Iterator[Stage]:
    """The chart installed, a pod admitted and started, and afterwards gone without a trace."""
    directory.mkdir(exist_ok=True)
    platform = Platform(directory / "jwks.json")
    tls, ca = server_tls(HOST)
    bao_port = int(bao.url.rpartition(":")[2])
    with (
        api_server(platform) as server,
        an_origin(upstream_tls, KEY) as (origin, origin_port),
        world() as there,
        passage(there.host, HOST, bao_port, tls) as vault_port,
        passage(there.host, HOST, origin_port) as upstream_port,
        ExitStack() as more,
    ):
        prepare(bao, login, server, "pods" if login == "jwt" else login)
        values = given(
            SIDECAR,
            policies={"default.yaml": POLICY.replace("secret/openai#", "secret/rendered#")},
            platform={"jwks": platform.file.read_text(), "issuer": ISSUER},
            vault={"url": f"https://{HOST}:{vault_port}", "ca": ca},
            upstreamCa=upstream_tls.ca.read_text(),
            settings={
                "connect_to": {"api.openai.com:443": f"{HOST}:{upstream_port}"},
                "allowed_networks": ["10.77.0.0/24"],
            },
        )
        if login == "jwt":
            values = given(values, vault={"login": "jwt", "mount": "pods"})
        secrets: dict[str, Mapping[str, str]] = {"agent": {"colour": "blue"}}
        if shared is not None:
            port = more.enter_context(passage(there.host, HOST, shared.port))
            url = f"postgresql://coatcheck@{HOST}:{port}/coatcheck"
            database = {"url": url, "secret": "fleet", "ca": shared.ca}
            values = given(values, sidecar={"sharedState": database})
            secrets["fleet"] = shared.secret
        objects = helm.install(values)
        made = {
            "configuration": objects.of("ConfigMap", "cc-admission")["data"]["admission.yaml"],
            "secret": objects.of("Secret")["data"],
            "args": objects.of("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"],
        }
        admitted_pod = admitted(made, AUTHORS, directory)
        check_one(admitted_pod)
        admitted_pod["metadata"]["uid"] = UID  # the API server's, when it stores the pod
        configmaps = {each["metadata"]["name"]: each for each in objects.all("ConfigMap", "agents")}
        tokens = {
            each: token(platform, each, "agents", "agent-0", "default") for each in ("coatcheck", "vault")
        }
        with running(admitted_pod, there.box, configmaps, tokens, secrets) as pod_here:
            yield Stage(there, pod_here, origin)
        assert there.internet.read() == []
