"""A pod's author who wants out: each way, and the word that it is refused by."""

from typing import Any

import pytest
from kubernetes_validate.utils import schema_contents

from coatcheck.kubernetes.webhook import refusals
from coatcheck.kubernetes.webhook.configuration import Json
from coatcheck.kubernetes.webhook.refusals import problems
from tests.kubernetes.webhook.pods import ADMISSION, PROXY_UID, pod

VOLUME: Json = {"name": "v"}
TOKEN: Json = {"serviceAccountToken": {"path": "token", "audience": "vault"}}

PODS: dict[str, tuple[Json, str]] = {
    "the node's network": (pod(hostNetwork=True), "spec.hostNetwork"),
    "the node's processes": (pod(hostPID=True), "spec.hostPID"),
    "the node's memory": (pod(hostIPC=True), "spec.hostIPC"),
    "one process namespace": (pod(shareProcessNamespace=True), "spec.shareProcessNamespace"),
    "names in /etc/hosts": (pod(hostAliases=[{"ip": "192.0.2.1"}]), "spec.hostAliases"),
    "a name as if it were Vault's": (pod(hostnameOverride="vault.example"), "spec.hostnameOverride"),
    "its full name": (pod(setHostnameAsFQDN=True), "spec.setHostnameAsFQDN"),
    "own name servers": (pod(dnsPolicy="None"), "spec.dnsPolicy None"),
    "one more name server": (pod(dnsConfig={"nameservers": ["192.0.2.1"]}), "spec.dnsConfig"),
    "a search domain": (pod(dnsConfig={"searches": ["evil.example"]}), "spec.dnsConfig"),
    "devices": (pod(resourceClaims=[{"name": "nic"}]), "spec.resourceClaims"),
    "a field of a later Kubernetes": (pod(wayOut=True), "spec.wayOut is not known"),
    "another system": (pod(os={"name": "windows"}), "spec.os"),
    "kernel settings": (
        pod(securityContext={"sysctls": [{"name": "net.ipv4.conf.all.rp_filter", "value": "1"}]}), "sysctls"
    ),
    "Windows": (pod(securityContext={"windowsOptions": {"hostProcess": True}}), "windowsOptions"),
    "the proxy's user": (pod(securityContext={"runAsUser": PROXY_UID}), "runAsUser: 9990 is the proxy"),
    "the proxy's group": (pod(securityContext={"fsGroup": PROXY_UID}), "the proxy's own group"),
    "one more group": (pod(securityContext={"supplementalGroups": [5, PROXY_UID]}), "the proxy's own group"),
    "no seccomp": (pod(securityContext={"seccompProfile": {"type": "Unconfined"}}), "Unconfined"),
    "another SELinux type": (pod(securityContext={"seLinuxOptions": {"type": "spc_t"}}), "seLinuxOptions"),
    "a token that is asked for": (pod(automountServiceAccountToken=True), "automountServiceAccountToken"),
    "a second network": (
        pod(annotations={"k8s.v1.cni.cncf.io/networks": "macvlan"}), "k8s.v1.cni.cncf.io/networks"
    ),
    "nothing": ({"metadata": {}}, "not a pod"),
}  # fmt: skip

VOLUMES: dict[str, tuple[Json, str]] = {
    "the node's files": ({"hostPath": {"path": "/"}}, "hostPath"),
    "a file server": ({"nfs": {"server": "evil.example", "path": "/"}}, "nfs"),
    "a driver that may fetch secrets": ({"csi": {"driver": "secrets-store.csi.k8s.io"}}, "csi"),
    "a repository": ({"gitRepo": {"repository": "https://evil.example"}}, "gitRepo"),
    "a disk over the network": ({"iscsi": {}}, "iscsi"),
    "Vault's audience": ({"projected": {"sources": [TOKEN]}}, "projected serviceAccountToken"),
    "the fleet's key": ({"secret": {"secretName": "fleet"}}, "the Secret fleet holds"),
    "the fleet's key among others": (
        {"projected": {"sources": [{"secret": {"name": "own"}}, {"secret": {"name": "fleet"}}]}},
        "the Secret fleet holds",
    ),
    "a certificate of the pod": ({"projected": {"sources": [{"podCertificate": {}}]}}, "podCertificate"),
    "a source of a later Kubernetes": (
        {"projected": {"sources": [{"secret": {}}, {"x": {}}]}},
        "projected x",
    ),
}

CONTAINERS: dict[str, tuple[Json, str]] = {
    "privileged": ({"securityContext": {"privileged": True}}, "privileged"),
    "NET_ADMIN": ({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}, "NET_ADMIN"),
    "NET_RAW": ({"securityContext": {"capabilities": {"add": ["NET_RAW"]}}}, "NET_RAW"),
    "SETUID": ({"securityContext": {"capabilities": {"add": ["CAP_SETUID"]}}}, "SETUID"),
    "all capabilities": ({"securityContext": {"capabilities": {"add": ["ALL"]}}}, "capability ALL"),
    "set-uid programs": ({"securityContext": {"allowPrivilegeEscalation": True}}, "allowPrivilegeEscalation"),
    "the proxy's user": ({"securityContext": {"runAsUser": PROXY_UID}}, "runAsUser: 9990"),
    "the proxy's group": ({"securityContext": {"runAsGroup": PROXY_UID}}, "runAsGroup: 9990"),
    "all of /proc": ({"securityContext": {"procMount": "Unmasked"}}, "procMount"),
    "no seccomp": ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "Unconfined"),
    "no AppArmor": ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "Unconfined"),
    "SELinux": ({"securityContext": {"seLinuxOptions": {"user": "x"}}}, "seLinuxOptions"),
    "security of a later Kubernetes": ({"securityContext": {"x": True}}, "securityContext.x"),
    "a raw disk": ({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}, "volumeDevices"),
    "a field of a later Kubernetes": ({"wayOut": True}, "wayOut"),
    "a network card": ({"resources": {"limits": {"intel.com/sriov": "1"}}}, "intel.com/sriov"),
    "a claimed device": ({"resources": {"claims": [{"name": "nic"}]}}, "resources.claims"),
    "a port of the node": ({"ports": [{"containerPort": 80, "hostPort": 80}]}, "hostPort"),
    "a probe elsewhere": ({"livenessProbe": {"httpGet": {"host": "evil.example", "port": 80}}}, "httpGet"),
    "a probe": ({"readinessProbe": {"tcpSocket": {"port": 80}}}, "tcpSocket"),
    "a hook": ({"lifecycle": {"preStop": {"httpGet": {"port": 80}}}}, "lifecycle.preStop.httpGet"),
    "the proxy's tokens": ({"volumeMounts": [{"name": "coatcheck-tokens"}]}, "the proxy's"),
    "trust, to write": (
        {"volumeMounts": [{"name": "coatcheck-workload", "mountPath": "/run/coatcheck"}]}, "the proxy's"
    ),
    "trust of its own": ({"volumeMounts": [{"mountPath": "/run/coatcheck/"}]}, "finds what the proxy"),
    "mounts that others see": (
        {"volumeMounts": [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]},
        "mountPropagation",
    ),
    "the fleet's key as a variable": (
        {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "fleet", "key": "fleet.key"}}}]},
        "the Secret fleet holds",
    ),
    "the fleet's key among variables": ({"envFrom": [{"secretRef": {"name": "fleet"}}]}, "the Secret fleet"),
    "a variable from the proxy's files": (
        {"env": [{"name": "K", "valueFrom": {"fileKeyRef": {"volumeName": "coatcheck-state"}}}]},
        "coatcheck-state",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "said"), PODS.values(), ids=PODS)
def test_a_pod_with_a_way_out_is_refused_by_name(given: Json, said: str) -> None:
    """In the pod as a whole."""
    assert any(said in each for each in problems(given, ADMISSION)), problems(given, ADMISSION)


@pytest.mark.parametrize(("source", "said"), VOLUMES.values(), ids=VOLUMES)
def test_a_volume_that_reaches_outside_is_refused_by_name(source: Json, said: str) -> None:
    """The kubelet mounts it, from the node's network, or puts a token there."""
    assert any(said in each for each in problems(pod(volumes=[VOLUME | source]), ADMISSION))


@pytest.mark.parametrize("place", ["containers", "initContainers", "ephemeralContainers"])
@pytest.mark.parametrize(("part", "said"), CONTAINERS.values(), ids=CONTAINERS)
def test_a_container_with_a_way_out_is_refused_by_name(part: Json, said: str, place: str) -> None:
    """Of every kind."""
    given = pod(**{place: [{"name": "one", "image": "x"} | part]})
    assert any(said in each and "container one" in each for each in problems(given, ADMISSION))


def test_a_debugger_beside_the_proxy_is_refused() -> None:
    """targetContainerName would show it the proxy's processes."""
    given = pod(ephemeralContainers=[{"name": "debug", "targetContainerName": "coatcheck-proxy"}])
    assert any("targetContainerName" in each for each in problems(given, ADMISSION))


def test_a_device_for_the_proxys_own_container_is_refused() -> None:
    """What a limit range may set is not compared with what we put there; a network card is no limit."""
    given = pod(initContainers=[{"name": "coatcheck-proxy", "resources": {"limits": {"intel.com/sriov": 1}}}])
    assert any("coatcheck-proxy: the resource intel.com/sriov" in each for each in problems(given, ADMISSION))


@pytest.mark.parametrize(
    "given",
    [
        pod(),
        pod(hostNetwork=False, shareProcessNamespace=False, setHostnameAsFQDN=False),
        pod({"livenessProbe": {"exec": {}}, "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}),
        pod({"resources": {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}}),
        pod({"ports": [{"containerPort": 8080}], "securityContext": {"runAsUser": 0}}),
        pod(dnsConfig={"options": [{"name": "ndots"}]}, runtimeClassName="kata", hostUsers=False),
        pod(
            volumes=[
                {"name": "a", "emptyDir": {}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "c", "projected": {"sources": [{"configMap": {}}, {"downwardAPI": {}}]}},
            ]
        ),
        pod(
            {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "own"}}}], "envFrom": [{}]},
            volumes=[{"name": "a", "secret": {"secretName": "own"}}],
        ),
    ],
    ids=["plain", "false", "exec", "gpu", "root", "dns options", "volumes", "secrets"],
)  # fmt: skip
def test_a_pod_as_agents_have_them_is_let_in(given: Json) -> None:
    """Root without capabilities, too: the redirect holds it."""
    assert problems(given, ADMISSION) == []


def test_every_field_of_the_newest_kubernetes_was_looked_at() -> None:
    """Of a pod, its containers and their security: each is let in, looked at, or refused by name."""
    definitions: dict[str, Any] = schema_contents(
        "kubernetes-json-schema/v1.37.0-local/_definitions.json", "1.37"
    )

    def fields(kind: str) -> set[str]:
        return set(definitions["$defs"][f"io.k8s.api.core.v1.{kind}"]["properties"])

    looked_at = {
        "PodSpec": refusals.SPEC_PLAIN | refusals.REFUSED_SPEC.keys(),
        "PodSecurityContext": refusals.POD_SECURITY | {"sysctls", "windowsOptions"},
        "Container": refusals.CONTAINER_PLAIN | {"volumeDevices"},
        "SecurityContext": refusals.CONTAINER_SECURITY | {"windowsOptions"},
    }
    left = {kind: sorted(fields(kind) - known) for kind, known in looked_at.items()}
    assert left == {"PodSpec": [], "PodSecurityContext": [], "Container": [], "SecurityContext": []}
