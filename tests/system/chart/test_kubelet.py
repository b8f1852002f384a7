"""The tests' own kubelet: what it does not honour is an error, never passed over."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.system.chart.cluster import Json
from tests.system.chart.kubelet import NotHonoured, RunningPod
from tests.system.redirect.world import namespace

POD: Json = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u"},
    "spec": {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsUser": 1000},
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
        "initContainers": [],
        "containers": [
            {
                "name": "c",
                "command": ["sh", "-c", "id -u; touch /v/x /x; cat /proc/1/comm"],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    },
}

pytestmark = pytest.mark.needs_debian("bwrap", "ip")


def made(where: Any, directory: Path, change: str = "") -> RunningPod:
    pod = copy.deepcopy(POD)
    exec(change, {"spec": pod["spec"], "container": pod["spec"]["containers"][0]})
    directory.chmod(0o755)
    return RunningPod(pod, where, directory, {}, {})


def test_a_container_runs_as_it_says(tmp_path: Path) -> None:
    """Its user, its volume to write, its root only to read, its first process."""
    with namespace() as where:
        ran = made(where, tmp_path).run("c")
    assert ran.stdout.split() == ["1000", "sh"], ran.stderr
    assert ran.stderr.count("cannot touch") == 1 and (tmp_path / "volumes/v/x").exists()


@pytest.mark.parametrize(
    "change",
    [
        "spec['hostNetwork'] = False",
        "spec['enableServiceLinks'] = True",
        "spec['volumes'][0] = {'name': 'v', 'hostPath': {'path': '/'}}",
        "spec['volumes'][0]['emptyDir']['x'] = 1",
        "spec['securityContext']['supplementalGroups'] = [5]",
        "container['volumeDevices'] = []",
        "container['securityContext']['privileged'] = True",
        "container['securityContext']['capabilities'] = {'drop': ['NET_RAW']}",
        "container['securityContext']['procMount'] = 'Default'",
        "container['volumeMounts'][0]['subPath'] = 'x'",
        "container['env'] = [{'name': 'A', 'value': 'b', 'x': 1}]",
        "container['env'] = [{'name': 'A', 'valueFrom': {'configMapKeyRef': {'name': 'x'}}}]",
        "container['env'] = [{'name': 'A', 'valueFrom': {'fieldRef': {'fieldPath': 'status.hostIP'}}}]",
        "container['envFrom'] = []",
        "spec['volumes'][0] = {'name': 'v', 'secret': {'secretName': 's', 'optional': True}}",
        "spec['volumes'][0] = {'name': 'v', 'downwardAPI': {'items': [], 'x': 1}}",
    ],
)
def test_what_it_does_not_do_is_an_error(tmp_path: Path, change: str) -> None:
    """By name, before anything runs."""
    with pytest.raises(NotHonoured):
        command(tmp_path, change)


def command(directory: Path, change: str) -> list[str]:
    running = made(None, directory, change)
    return running.command(running.container("c"))
