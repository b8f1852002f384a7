"""Runs a rendered pod here as a kubelet and its runtime would: one network namespace, a root a container.

An image is the tree that this checkout runs from (`TREE`), read-only where the pod says so. What a container
or volume says and this file does not honour is an error by name: a test must not pass over it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

import coatcheck
from tests.exhaustive.deploy.image import CONTAINED
from tests.system.chart.cluster import Json
from tests.system.redirect.world import BOX, RESOLVER, Namespace

SECONDS = 90.0
"""For a container to be ready: the chart gives it 120."""

PACKAGE = Path(coatcheck.__file__).parent.parent
TREE = (Path("/usr"), Path(sys.prefix), Path(sys.base_prefix), PACKAGE)
"""What the image holds, each at its own place: nft, ip, test and a shell; the interpreter; Coatcheck."""
SEARCHED = f"{sys.prefix}/bin:/usr/sbin:/usr/bin"
"""The image's PATH, on which the pod's commands are looked for."""

NOT_APPLIED = {
    "imagePullPolicy": "there is no registry",
    "image": "TREE is every image",
    "resources": "no control group is made here",
    "terminationMessagePath": "nobody reads it",
    "terminationMessagePolicy": "nobody reads it",
    "restartPolicy": "the test starts containers itself",
    "ports": "names for probes; what listens, listens",
    "lifecycle": "no node leads anybody here, so that nothing has to be waited for at the end",
}
"""Of a container, and why it does not matter to what is tested."""
PROBES = frozenset({"livenessProbe", "readinessProbe", "startupProbe"})
SECURITY = frozenset(
    {
        "allowPrivilegeEscalation",
        "capabilities",
        "fsGroup",
        "fsGroupChangePolicy",
        "privileged",
        "readOnlyRootFilesystem",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "seccompProfile",
    }
)
POD = frozenset(
    {
        "automountServiceAccountToken",
        "containers",
        "dnsPolicy",
        "enableServiceLinks",
        "initContainers",
        "restartPolicy",
        "schedulerName",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "terminationGracePeriodSeconds",
        "volumes",
    }
)


class NotHonoured(Exception):
    """The pod says something that this kubelet does not do."""


@dataclass
class RunningPod:
    pod: Json
    namespace: Namespace
    directory: Path
    configmaps: Mapping[str, Json]
    tokens: Mapping[str, str]
    """Audience -> the projected token."""
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The namespace's Secrets: name -> key -> value."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = self.pod["spec"]
        if unknown := spec.keys() - POD:
            raise NotHonoured(f"spec.{sorted(unknown)}")
        if spec["automountServiceAccountToken"] or spec["enableServiceLinks"]:
            raise NotHonoured("a token of the API server, or variables of services")
        for volume in spec["volumes"]:
            self._make(volume)
        for name, text in (
            ("resolv.conf", f"nameserver {RESOLVER}\noptions timeout:2 attempts:2\n"),
            ("hosts", f"127.0.0.1 localhost\n{BOX} {self.pod['metadata']['name']}\n"),
            ("passwd", "root:x:0:0:root:/:/bin/sh\n"),
        ):
            (self.directory / name).write_text(text)

    # --- volumes -------------------------------------------------------------------------------------

    def _make(self, volume: Json) -> None:
        [kind] = volume.keys() - {"name"}
        place, source = self.directory / "volumes" / volume["name"], volume[kind]
        place.mkdir(parents=True)
        self._fill(kind, place, source)
        # As the kubelet does: what a volume holds is that group's, and it may read it.
        if (group := self.pod["spec"].get("securityContext", {}).get("fsGroup")) is not None:
            for each in (place, *place.rglob("*")):
                if not each.is_symlink():
                    os.chown(each, -1, group)
                    each.chmod(each.stat().st_mode | (0o2770 if each.is_dir() else 0o440))

    def _fill(self, kind: str, place: Path, source: Json) -> None:
        if kind == "emptyDir":
            _only(source, "medium", "sizeLimit")
            place.chmod(0o777)  # as the kubelet makes it, for whatever user comes
        elif kind == "configMap":
            _only(source, "name", "items", "defaultMode")
            _project(place, _items(self.configmaps[source["name"]]["data"], source), source["defaultMode"])
        elif kind == "secret":
            _only(source, "secretName", "items", "defaultMode")
            _project(place, _items(self.secrets[source["secretName"]], source), source["defaultMode"])
        elif kind == "downwardAPI":
            _only(source, "items", "defaultMode")
            said = {each["path"]: self._field(each["fieldRef"]) for each in source["items"]}
            _project(place, said, source["defaultMode"])
        elif kind == "projected":
            _only(source, "sources", "defaultMode")
            asked = [each["serviceAccountToken"] for each in source["sources"]]
            files = {each["path"]: self.tokens[each["audience"]] for each in asked}
            _project(place, files, source["defaultMode"])
        else:
            raise NotHonoured(f"a volume of kind {kind}")

    # --- containers ----------------------------------------------------------------------------------

    def command(self, container: Json, *words: str) -> list[str]:
        """What runs `words` in the container; without words, its own command."""
        known = {"name", "command", "args", "env", "securityContext", "volumeMounts"}
        if unknown := container.keys() - known - PROBES - NOT_APPLIED.keys():
            raise NotHonoured(f"{container['name']}: {sorted(unknown)}")
        environment = self._environment(container)
        if not words:
            words = tuple(container["command"]) + tuple(container.get("args", ()))
        for name, value in environment.items():
            words = tuple(word.replace(f"$({name})", value) for word in words)
        mounts = container.get("volumeMounts", ())
        root = _parents([*map(str, TREE), "/etc/passwd", *(each["mountPath"] for each in mounts)])
        for place in dict.fromkeys(TREE):
            root += ["--ro-bind", str(place), str(place)]
        for name in ("bin", "lib", "lib64", "sbin"):
            root += ["--symlink", f"usr/{name}", f"/{name}"]
        root += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/etc/ssl", "/etc/ssl"]
        for name in ("resolv.conf", "hosts", "passwd"):
            root += ["--ro-bind", str(self.directory / name), f"/etc/{name}"]
        for mount in mounts:
            _only(mount, "name", "mountPath", "readOnly")
            how = "--ro-bind" if mount.get("readOnly") else "--bind"
            root += [how, str(self.directory / "volumes" / mount["name"]), mount["mountPath"]]
        # A checkout in /tmp, where the pod has a volume, would be hidden.
        over = [each["mountPath"] for each in mounts]
        hidden = [str(place) for place in dict.fromkeys(TREE) if any(map(place.is_relative_to, over))]
        root += _parents(hidden)
        for hid in hidden:
            root += ["--ro-bind", hid, hid]
        user, read_only = self._security(container)
        root += ["--remount-ro", "/"] if read_only else []
        clean = [argument for pair in environment.items() for argument in ("--setenv", *pair)]
        return self.namespace.command(
            "bwrap", *CONTAINED, *clean, *root, "--", "setpriv", *user, "--", *words
        )

    def _environment(self, container: Json) -> dict[str, str]:
        made = {"PATH": SEARCHED, "HOME": "/", "HOSTNAME": self.pod["metadata"]["name"]}
        for each in container.get("env", ()):
            _only(each, "name", "value", "valueFrom")
            value = each["value"] if "value" in each else self._value(each["valueFrom"])
            for name, before in made.items():  # what was said before it, as $(NAME)
                value = value.replace(f"$({name})", before)
            made[each["name"]] = value
        return made

    def _value(self, source: Json) -> str:
        _only(source, "fieldRef", "secretKeyRef")
        if "fieldRef" in source:
            return self._field(source["fieldRef"])
        _only(source["secretKeyRef"], "name", "key")
        return self.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]

    def _field(self, reference: Json) -> str:
        """A downward value."""
        _only(reference, "apiVersion", "fieldPath")
        metadata = {f"metadata.{name}": self.pod["metadata"][name] for name in ("name", "namespace", "uid")}
        known: dict[str, str] = {**metadata, "status.podIP": BOX}
        if reference["fieldPath"] not in known:
            raise NotHonoured(f"the downward value {reference['fieldPath']}")
        return known[reference["fieldPath"]]

    def _security(self, container: Json) -> tuple[list[str], bool]:
        """setpriv's words, and whether the root is read-only. The pod's own are those of each container."""
        said = {**self.pod["spec"].get("securityContext", {}), **container["securityContext"]}
        if unknown := said.keys() - SECURITY:
            raise NotHonoured(f"{container['name']}: securityContext.{sorted(unknown)}")
        user = said["runAsUser"]
        if (
            said.get("privileged")
            or said["allowPrivilegeEscalation"]
            or (said.get("runAsNonRoot") and user == 0)
        ):
            raise NotHonoured(f"{container['name']}: {said}")
        if said["capabilities"]["drop"] != ["ALL"]:
            raise NotHonoured(f"{container['name']}: capabilities that stay")
        kept = ",".join(["-all", *(f"+{each.lower()}" for each in said["capabilities"].get("add", ()))])
        group = said.get("runAsGroup", 0)
        more = ["--groups", str(said["fsGroup"])] if "fsGroup" in said else ["--clear-groups"]
        words = ["--reuid", str(user), "--regid", str(group), *more, "--no-new-privs"]
        return [*words, "--bounding-set", kept, "--inh-caps", kept], bool(said.get("readOnlyRootFilesystem"))

    # --- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """The init containers in their order: one that stays is ready before the next begins."""
        for container in self.pod["spec"]["initContainers"]:
            if container.get("restartPolicy") != "Always":
                ran = self._run(container)
                assert ran.returncode == 0, f"{container['name']}: {ran.stderr}{ran.stdout}"
                continue
            self.begin(container["name"])

    def begin(self, name: str) -> None:
        """Start a container that stays, until each of its probes has found it well."""
        container, log = self.container(name), self.directory / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.command(container), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self.processes[name] = process
        deadline = time.monotonic() + SECONDS
        while not all(self._finds_well(container, container[probe]) for probe in PROBES & container.keys()):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)

    def _finds_well(self, container: Json, probe: Json) -> bool:
        if "exec" in probe:
            return self._run(container, *probe["exec"]["command"]).returncode == 0
        asked = probe["httpGet"]
        _only(asked, "path", "port", "scheme", "httpHeaders")
        [port] = [each["containerPort"] for each in container["ports"] if each["name"] == asked["port"]]
        url = f"{asked['scheme'].lower()}://{BOX}:{port}{asked['path']}"
        headers = {each["name"]: each["value"] for each in asked.get("httpHeaders", ())}
        try:  # by address, and whatever the certificate is
            answer = self.namespace.do(
                lambda: httpx.get(url, headers=headers, verify=False, trust_env=False, timeout=SECONDS)
            )
        except httpx.TransportError:
            return False
        return answer.is_success

    def container(self, name: str) -> Json:
        spec = self.pod["spec"]
        found: list[Json] = [
            each for each in (*spec["initContainers"], *spec["containers"]) if each["name"] == name
        ]
        assert len(found) == 1, name
        return found[0]

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A program in the container of this name; without words, its own."""
        return self._run(self.container(name), *words)

    def _run(self, container: Json, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(container, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def inside(self, name: str) -> int:
        """The process id, out here, of the container's first process."""
        outer = self.processes[name].pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        return int(children[0])

    def stop(self, number: int) -> dict[str, int]:
        """Sends it to what still runs, as the kubelet does at a pod's end; exit codes by name."""
        for name, process in self.processes.items():
            if process.poll() is None:
                os.kill(self.inside(name), number)
        return {name: process.wait(SECONDS) for name, process in self.processes.items()}


@contextmanager
def running(
    pod: Json,
    namespace: Namespace,
    configmaps: Mapping[str, Json],
    tokens: Mapping[str, str],
    secrets: Mapping[str, Mapping[str, str]],
) -> Iterator[RunningPod]:
    """With its init containers done, and gone after the block, whatever happened."""
    with tempfile.TemporaryDirectory(prefix="cct-pod-") as text:
        Path(text).chmod(0o755)
        made = RunningPod(pod, namespace, Path(text), configmaps, tokens, secrets)
        try:
            made.start()
            yield made
        finally:
            for name, process in made.processes.items():
                if process.poll() is None:
                    # bwrap's --die-with-parent is lost with the change of user. The first takes all along.
                    with suppress(IndexError, ProcessLookupError):
                        os.kill(made.inside(name), signal.SIGKILL)
                process.kill()
                process.wait(SECONDS)


def _parents(places: Iterable[str]) -> list[str]:
    """bwrap's words for the directories above them, which every user may pass."""
    above = sorted({str(parent) for place in places for parent in Path(place).parents} - {"/"})
    return [word for place in above for word in ("--perms", "0755", "--dir", place)]


def _only(said: Json, *known: str) -> None:
    if unknown := said.keys() - set(known):
        raise NotHonoured(json.dumps({name: said[name] for name in sorted(unknown)}))


def _items(data: Mapping[str, str], source: Json) -> dict[str, str]:
    """Path -> content: what the volume chooses, or all."""
    if "items" not in source:
        return dict(data)
    for each in source["items"]:
        _only(each, "key", "path")
    return {each["path"]: data[each["key"]] for each in source["items"]}


def _project(place: Path, files: Mapping[str, str], mode: int) -> None:
    """As the kubelet does: real files in a dated directory, links to it, so that all change at once."""
    dated = place / "..2026_11_21"
    for path, text in files.items():
        file = dated / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
    (place / "..data").symlink_to(dated.name)
    for top in {path.partition("/")[0] for path in files}:
        (place / top).symlink_to(f"..data/{top}")
