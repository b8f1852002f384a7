"""The gateway as the chart renders it, run here: its own command, environment and files, at loopback.

The container's places are mapped to directories of the test (`mapped`); everything else is as rendered.
"""

import asyncio
import hashlib
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
import trustme
from aiohttp import web

from coatcheck.client.control import ControlClient
from demo.upstreams.seen import Ledger
from demo.upstreams.server import TlsServer
from tests.known_secrets import known_secret
from tests.planes.platform import ISSUER, Platform
from tests.ports import free_port
from tests.system.chart.cluster import Json
from tests.system.chart.helm import Helm
from tests.system.chart.origin import an_origin
from tests.system.chart.values import GATEWAY, Values, given
from tests.system.e2e.story import policy
from tests.upstreams import UpstreamTls

SECONDS = 60.0
PLACES = {
    "/etc/coatcheck-tls": "tls",
    "/etc/coatcheck-shared": "shared",
    "/etc/coatcheck": "etc",
    "/var/lib/coatcheck": "lib",
    "/run/coatcheck": "run",
    "/var/run/secrets/coatcheck": "cluster",
}
"""The container's -> the test's."""
MODELS = "https://api.openai.com/v1/models"
LAUNCHER = known_secret("a launcher's token for a rendered gateway", prefix="")
GRANTS = f"""
[[caller]]
name = "orchestrator"
token_sha256 = "{hashlib.sha256(LAUNCHER.encode()).hexdigest()}"
role = "launcher"
tenants = ["agents"]
policies = ["default"]
isolation = ["namespace"]
origins = ["token"]
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    platform: Platform
    probe: Json
    control: int
    proxy: int
    ca: Path
    log: Path
    pid: Callable[[], int]
    address: str = "127.0.0.1"

    @property
    def client(self) -> ControlClient:
        return ControlClient(url=f"https://localhost:{self.control}", token=LAUNCHER, ca_file=self.ca)


def write_volumes(spec: Json, data: Json, directory: Path) -> None:
    """The ConfigMap's files where the volume's items say; a Secret with the control API's certificate."""
    [items] = [each["configMap"]["items"] for each in spec["volumes"] if each["name"] == "coatcheck-config"]
    for item in items:
        file = directory / "etc" / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(data[item["key"]])
        file.chmod(0o444)
    authority = trustme.CA()
    (directory / "tls/control").mkdir(parents=True)
    issued = authority.issue_cert("localhost", "127.0.0.2", "cc-0.coatcheck.svc")
    issued.private_key_pem.write_to_path(directory / "tls/control/tls.key")
    (directory / "tls/control/tls.crt").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(directory / "ca.pem")
    secret = directory / "secrets/openai/key"
    secret.parent.mkdir(parents=True)
    secret.touch(0o600)
    secret.write_text(known_secret("a rendered gateway's key", prefix="sk-proj-"))


def mapped(
    spec: Json, directory: Path, places: Mapping[str, str] = PLACES, address: str = "127.0.0.1"
) -> dict[str, str]:
    """The container's environment, with its mounts where the test has them, at an address of loopback."""
    mounts = {each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    made = {"PATH": os.environ["PATH"]}
    for each in spec["containers"][0]["env"]:
        if "valueFrom" in each:
            assert each["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
            continue
        value = each["value"].replace("0.0.0.0", address).replace("$(POD_IP)", address)
        for place, name in places.items():
            if value.startswith(f"{place}/"):
                assert any(f"{value}/".startswith(f"{mount}/") for mount in mounts), each
                value = str(directory / name) + value.removeprefix(place)
                break
        made[each["name"]] = value
    return made


def start_here(
    spec: Json, directory: Path, log: IO[bytes], env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """From this checkout."""
    return subprocess.Popen(
        [sys.executable, "-m", "coatcheck", *spec["containers"][0]["args"]],
        env=env or mapped(spec, directory), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )  # fmt: skip


@contextmanager
def serving(
    helm: Helm,
    upstream_tls: UpstreamTls,
    start: Callable[[Json, Path, IO[bytes]], subprocess.Popen[bytes]] = start_here,
    inside: Callable[[subprocess.Popen[bytes]], int] = lambda process: process.pid,
    secrets_dir: str | None = None,
    change: Callable[[Values], Values] = lambda values: values,
) -> Iterator[Gateway]:
    """The rendered gateway, ready, as `start` starts its container; `inside` gives the daemon's process id,
    `secrets_dir` is the directory's name for it, `change` makes other values of a common gateway's."""
    control, proxy = free_port(), free_port()
    key = known_secret("a rendered gateway's key", prefix="sk-proj-")
    with (
        tempfile.TemporaryDirectory(prefix="cct-") as text,  # a socket's path has 107 bytes
        an_origin(upstream_tls, key) as (_, origin_port),
    ):
        directory = Path(text)
        platform = Platform(directory / "jwks.json")
        values: dict[str, Any] = {
            "policies": {"default.yaml": policy(secret="file:openai/key#value")},
            "platform": {"jwks": platform.file.read_text(), "issuer": ISSUER},
            "gateway": {"proxyPort": proxy, "control": {"port": control, "grants": GRANTS}},
            "upstreamCa": upstream_tls.ca.read_text(),
            "settings": {
                "secrets_dir": secrets_dir or str(directory / "secrets"),
                "connect_to": {"api.openai.com:443": f"127.0.0.1:{origin_port}"},
                "allowed_networks": ["127.0.0.0/8"],
            },
        }
        made = helm.install(change(given(GATEWAY, **values)))
        [workload] = [*made.all("StatefulSet"), *made.all("Deployment")]
        spec = workload["spec"]["template"]["spec"]
        write_volumes(spec, made.of("ConfigMap")["data"], directory)
        [container] = spec["containers"]
        assert container["command"] == ["coatcheck"]
        with (directory / "log").open("wb") as log:
            process = start(spec, directory, log)
        try:
            running = Gateway(
                platform,
                container["readinessProbe"]["httpGet"],
                control,
                proxy,
                directory / "ca.pem",
                directory / "log",
                lambda: inside(process),
            )
            deadline = time.monotonic() + SECONDS
            while not probed(running):
                assert process.poll() is None and time.monotonic() < deadline, running.log.read_text()
                time.sleep(0.05)
            yield running
        finally:
            if process.poll() is None:
                os.kill(inside(process), signal.SIGTERM)
            assert process.wait(SECONDS) == 0, (directory / "log").read_text()


@pytest.fixture(scope="module")
def gateway(helm: Helm, upstream_tls: UpstreamTls) -> Iterator[Gateway]:
    with serving(helm, upstream_tls) as running:
        yield running


def probed(gateway: Gateway) -> bool:
    """As a kubelet asks: by address, without a look at the certificate, with the headers of the probe."""
    assert gateway.probe["scheme"] == "HTTPS"
    headers = {each["name"]: each["value"] for each in gateway.probe["httpHeaders"]}
    url = f"https://{gateway.address}:{gateway.control}{gateway.probe['path']}"
    try:
        return httpx.get(url, headers=headers, verify=False, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def asked(gateway: Gateway, token: str | None, handle: str, ca: str) -> httpx.Response:
    """A request of a pod that shows `token` to the proxy."""
    headers = {"Proxy-Authorization": f"Bearer {token}"} if token is not None else {}
    proxy = httpx.Proxy(f"http://{gateway.address}:{gateway.proxy}", headers=headers)
    with httpx.Client(proxy=proxy, verify=ssl.create_default_context(cafile=ca), trust_env=False) as client:
        return client.get(MODELS, headers={"Authorization": f"Bearer {handle}"}, timeout=SECONDS)


def test_a_pod_is_who_its_token_says_and_gets_what_its_session_may(gateway: Gateway) -> None:
    """Opened by an orchestrator over TLS; the pod's address plays no part. Without its token, or with
    another pod's, the same handle is worth nothing."""
    opened = gateway.client.open_session(
        tenant="agents",
        subject="agent-0",
        policy="default",
        isolation="namespace",
        origin={"class": "token", "value": f"{ISSUER}|pod-a"},
    )
    handle, ca = opened["handles"]["openai"]["value"], opened["proxy"]["ca_bundle"]
    answer = asked(gateway, gateway.platform.token("pod-a"), handle, ca)
    assert answer.status_code == 200 and "gpt-" in answer.text, gateway.log.read_text()
    for token in (None, gateway.platform.token("pod-b"), gateway.platform.token("pod-a", aud=["vault"])):
        with pytest.raises(httpx.ProxyError, match="407"):
            asked(gateway, token, handle, ca)


def test_the_control_api_is_for_callers_only(gateway: Gateway) -> None:
    """Probes are answered to anybody, everything else to who is in the grants."""
    url = f"https://127.0.0.1:{gateway.control}"
    for path in ("/v1/sessions", "/metrics"):
        answer = httpx.get(f"{url}{path}", headers={"Host": "localhost"}, verify=False, trust_env=False)
        assert answer.status_code == 401, path
    assert httpx.get(f"{url}/readyz", verify=False, trust_env=False).status_code == 200
    elsewhere = httpx.get(f"{url}/readyz", headers={"Host": "10.1.2.3"}, verify=False, trust_env=False)
    assert elsewhere.status_code != 200  # why the rendered probes name a host


async def test_without_keys_of_its_own_it_follows_the_clusters(
    helm: Helm, upstream_tls: UpstreamTls, tmp_path: Path
) -> None:
    """platform.jwks is empty: the API server is asked with the pod's own token, and a new key counts."""
    asked_with: list[str] = []
    api = Platform(tmp_path / "jwks.json")

    async def keys(request: web.Request) -> web.Response:
        asked_with.append(request.headers["Authorization"])
        return web.Response(body=api.file.read_bytes())

    app = web.Application()
    app.router.add_get("/openid/v1/jwks", keys)
    server = TlsServer(app, Ledger({}), upstream_tls.certificate, upstream_tls.key)

    def start(spec: Json, directory: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
        env = mapped(spec, directory)
        (directory / "cluster").mkdir()
        (directory / "cluster/cluster-ca.pem").write_bytes(upstream_tls.ca.read_bytes())
        (directory / "cluster/cluster-token").write_text(known_secret("the gateway's account", prefix=""))
        host = "https://kubernetes.default.svc"
        env["COATCHECK_TOKEN_JWKS_URL"] = env["COATCHECK_TOKEN_JWKS_URL"].replace(
            host, f"https://127.0.0.1:{server.port}"
        )
        return start_here(spec, directory, log, env)

    def run() -> None:
        change: Callable[[Values], Values] = lambda values: given(values, platform={"jwks": ""})  # noqa: E731
        with serving(helm, upstream_tls, start, change=change) as running:
            opened = running.client.open_session(
                tenant="agents",
                subject="agent-0",
                policy="default",
                isolation="namespace",
                origin={"class": "token", "value": f"{ISSUER}|pod-a"},
            )
            handle, ca = opened["handles"]["openai"]["value"], opened["proxy"]["ca_bundle"]
            answer = asked(running, api.token("pod-a"), handle, ca)
            assert answer.status_code == 200 and "gpt-" in answer.text, running.log.read_text()

    async with server:
        await asyncio.to_thread(run)
    assert set(asked_with) == {f"Bearer {known_secret("the gateway's account", prefix='')}"}
