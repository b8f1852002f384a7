"""deploy/containers: an agent beside its own proxy, run by Debian's podman from the real image."""

import asyncio
import json
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from demo.upstreams.origin import origin
from tests.exhaustive.deploy.image import IMAGE, ROOT, Builder, builder, built
from tests.known_secrets import known_secret
from tests.system.e2e.story import policy
from tests.system.redirect.world import Namespace, namespace
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("buildah", "debootstrap", "podman", "runc", "bwrap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the image is built by root"),
]
SECONDS = 300.0
KEY = known_secret("the key of a pod under podman", prefix="sk-proj-")
ASK = """
import os, urllib.error, urllib.request
def ask(url, **headers):
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
        print(answer.status, answer.read(300).decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.headers["Coatcheck-Reason"])
    except OSError as error:
        print("no way", type(error).__name__)
key = os.environ["OPENAI_API_KEY"]
print("holds", key[:7], "and", sorted(name for name in os.environ if "VAULT" in name))
ask("https://api.openai.com/v1/models", Authorization=f"Bearer {key}")
ask("https://elsewhere.example/")
ask("http://192.0.2.7:8080/")
for place in ("/var/lib/coatcheck", "/etc/coatcheck", "/run/coatcheck/new"):
    try:
        os.makedirs(place + "/x"); print("wrote", place)
    except OSError as error:
        print("cannot", place)
"""
CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
"""For machines that are containers themselves: no more than they have, and a runtime for old cgroups."""


@dataclass(frozen=True, slots=True)
class Podman:
    """With a store of its own that reads images from that of the build, and a network of its own: the rules
    that it makes are none of this machine's."""

    builder: Builder = field(repr=False)
    directory: Path
    host: Namespace

    def __call__(self, *words: str | Path, check: bool = True) -> str:
        """What it prints: logs on both of its channels."""
        made = self.builder
        store = ("--root", self.directory / "store", "--runroot", self.directory / "run")
        driver = (
            "--storage-driver",
            made.driver,
            "--storage-opt",
            f"{made.driver}.imagestore={made.home}/layers",
        )
        own = ("--network-config-dir", self.directory / "networks")
        ran = subprocess.run(
            self.host.command("podman", *store, *driver, *own, *words),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
            env={**os.environ, "CONTAINERS_CONF": str(self.directory / "containers.conf")},
        )  # fmt: skip
        assert not check or ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + (ran.stderr if words[0] == "logs" else "")


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with (
        builder() as making,
        built(making),
        tempfile.TemporaryDirectory(prefix="ccp-") as text,
        namespace() as host,
    ):
        (Path(text) / "containers.conf").write_text(CONF)
        yield Podman(making, Path(text), host)


@contextmanager
def bridge(podman: Podman) -> Iterator[str]:
    """A network, and the address at which the host is reached from it."""
    podman("network", "create", "--disable-dns", "--subnet", "10.121.77.0/24", "pods")
    try:
        yield "10.121.77.1"
    finally:
        podman("network", "rm", "--force", "pods")


@pytest.fixture
async def upstream(podman: Podman, upstream_tls: UpstreamTls) -> AsyncIterator[tuple[str, str]]:
    """A network, and where in it api.openai.com is."""
    with bridge(podman) as host:
        # The bridge is there as soon as a container is.
        server = origin(upstream_tls.certificate, upstream_tls.key, {"openai": KEY}, host="0.0.0.0")
        with inside(podman.host):
            await server.__aenter__()
        yield "pods", f"{host}:{server.port}"
        await server.__aexit__(None, None, None)


@contextmanager
def inside(namespace: Namespace) -> Iterator[None]:
    """What this thread opens is opened there."""
    with open("/proc/thread-self/ns/net", "rb") as here, open(f"/proc/{namespace.pid}/ns/net", "rb") as there:
        os.setns(there.fileno(), os.CLONE_NEWNET)
        try:
            yield
        finally:
            os.setns(here.fileno(), os.CLONE_NEWNET)


def documents(podman: Podman, directory: Path, settings: Mapping[str, str]) -> Path:
    """pod.yaml as it is, but for the secrets' store, the places of its files, and the agent's program."""
    pod: Any = YAML(typ="safe", pure=True).load(ROOT / "deploy/containers/pod.yaml")
    spec = pod["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        container["image"] = IMAGE
    proxy, agent = spec["containers"]
    kept = [each for each in proxy["env"] if "VAULT" not in each["name"]]
    proxy["env"] = kept + [{"name": name, "value": value} for name, value in settings.items()]
    agent["args"] = [
        "python3",
        "-c",
        ASK.strip(),
    ]  # podman 4.3 cannot read a text that begins with a new line
    for volume in spec["volumes"]:
        if "hostPath" in volume:
            volume["hostPath"]["path"] = str(directory / volume["name"])
    file = directory / "pod.yaml"
    with file.open("w") as written:
        YAML(typ="safe", pure=True).dump(pod, written)
    return file


async def test_an_agent_gets_out_through_its_proxy_alone_and_holds_no_secret(
    podman: Podman, upstream: tuple[str, str], upstream_tls: UpstreamTls, tmp_path: Path
) -> None:
    """`podman kube play`: unmodified requests, redirected; a host that policy does not name is refused;
    nothing of the proxy's can be read or written."""
    network, where = upstream
    for name in ("policies", "vault-token"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "policies/default.yaml").write_text(policy(secret="file:openai/key#value"))
    secret = tmp_path / "vault-token/openai/key"
    secret.parent.mkdir()
    secret.write_text(KEY)
    secret.chmod(0o600)
    (tmp_path / "vault-token/ca.pem").write_bytes(upstream_tls.ca.read_bytes())
    for each in (tmp_path / "vault-token").rglob("*"):
        os.chown(each, 9990, 9990)
    settings = {
        "COATCHECK_SECRETS_DIR": "/etc/coatcheck-vault",
        "COATCHECK_UPSTREAM_CA_FILE": "/etc/coatcheck-vault/ca.pem",
        "COATCHECK_CONNECT_TO": json.dumps({"api.openai.com:443": where}),
        "COATCHECK_ALLOWED_NETWORKS": '["10.121.77.0/24"]',
    }
    file = documents(podman, tmp_path, settings)
    for up in tmp_path.parents:  # pytest's own are for its user alone, and the proxy is another
        if up.is_relative_to(tempfile.gettempdir()) and up.samefile(tempfile.gettempdir()) is False:
            up.chmod(up.stat().st_mode | 0o111)
    try:
        await asyncio.to_thread(podman, "kube", "play", "--network", network, file)
        async with asyncio.timeout(SECONDS):
            while " agent-agent " in f" {podman('ps', '--format', '{{.Names}}').replace(chr(10), ' ')} ":
                proxy = podman("ps", "--all", "--filter", "name=agent-proxy", "--format", "{{.Status}}")
                assert proxy.startswith("Up"), podman("logs", "agent-proxy", check=False)
                await asyncio.sleep(0.5)
        said = podman("logs", "agent-agent", check=False)
        told = podman("logs", "agent-proxy", check=False)
    finally:
        podman("kube", "down", file, check=False)
        podman("pod", "rm", "--force", "--all", "--time", "1", check=False)
    assert "holds cch_eyJ and []" in said, said + told
    assert re.search(r"200 .*gpt-", said) and "403 host_not_allowed" in said, said + told
    assert "no way" in said and "wrote" not in said and KEY not in said + told, said
