"""What a pod may not have, if the proxy is to be its only way out. Pure: a pod in, sentences out.

Fields that are not known here are refused: a later Kubernetes must not bring a way out that nobody looked at.
"""

from collections.abc import Iterator

from coatcheck.kubernetes.webhook.configuration import PREFIX, Admission, Json
from coatcheck.kubernetes.webhook.injection import is_api_token

MOST_NAMED = 20
"""Problems that are listed in an answer; a pod with more has been read by nobody."""

SPEC_PLAIN = frozenset(
    {
        "activeDeadlineSeconds", "affinity", "enableServiceLinks", "evictionResponders", "hostUsers",
        "hostname", "imagePullSecrets", "nodeName", "nodeSelector", "overhead", "preemptionPolicy",
        "priority", "priorityClassName", "readinessGates", "resources", "restartPolicy", "runtimeClassName",
        "schedulerName", "schedulingGates", "schedulingGroup", "serviceAccount", "serviceAccountName",
        "subdomain", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints",
        # looked at below
        "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy", "ephemeralContainers",
        "initContainers", "os", "securityContext", "volumes",
    }
)  # fmt: skip
REFUSED_SPEC = {
    "hostNetwork": "the node's network has no redirect",
    "hostPID": "the node's processes, proxies among them, could be read",
    "hostIPC": "shared memory with the node's processes",
    "shareProcessNamespace": "the proxy's process could be read, and its files through /proc",
    "hostAliases": "the proxy reads the same /etc/hosts: names would lead where the pod's author says",
    "hostnameOverride": "the proxy reads the same /etc/hosts",
    "setHostnameAsFQDN": "the proxy reads the same /etc/hosts",
    "resourceClaims": "a device may be a network of its own",
}
CONTAINER_PLAIN = frozenset(
    {
        "args", "command", "envFrom", "image", "imagePullPolicy", "name", "resizePolicy", "restartPolicy",
        "restartPolicyRules", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy",
        "tty", "workingDir",
        "env", "lifecycle", "livenessProbe", "ports", "readinessProbe", "resources", "securityContext",
        "startupProbe", "targetContainerName", "volumeMounts",
    }
)  # fmt: skip
POD_SECURITY = frozenset(
    {
        "appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser",
        "seLinuxChangePolicy", "seLinuxOptions", "seccompProfile", "supplementalGroups",
        "supplementalGroupsPolicy",
    }
)  # fmt: skip
CONTAINER_SECURITY = frozenset(
    {
        "allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount",
        "readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser", "seLinuxOptions",
        "seccompProfile",
    }
)  # fmt: skip
VOLUMES = frozenset(
    {
        "configMap",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
PROJECTED = frozenset({"clusterTrustBundle", "configMap", "downwardAPI", "secret"})
HARMLESS = frozenset({"NET_BIND_SERVICE"})
"""As Pod Security's `restricted` has it."""
RESOURCES = ("cpu", "memory", "ephemeral-storage", "hugepages-")


def problems(pod: Json, admission: Admission) -> list[str]:
    """Why the pod is refused, one sentence each; empty for one that may have a proxy. What bears our names is
    left to `injection.differences`."""
    spec = pod.get("spec")
    if not isinstance(spec, dict) or not spec.get("containers"):
        return ["this is not a pod: it has no spec.containers"]
    return [*_annotations(pod, admission), *_spec(spec, admission)]


def _annotations(pod: Json, admission: Admission) -> Iterator[str]:
    for name in (pod.get("metadata") or {}).get("annotations") or {}:
        if name.startswith(admission.refused_annotations):
            yield f"the annotation {name}: runtimes and network plugins read it, and it changes what a pod is"


def _spec(spec: Json, admission: Admission) -> Iterator[str]:
    for name, value in spec.items():
        if name in REFUSED_SPEC:
            if value:
                yield f"spec.{name}: {REFUSED_SPEC[name]}"
        elif name not in SPEC_PLAIN:
            yield f"spec.{name} is not known to this webhook, so it cannot say that it is harmless"
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        yield "spec.os: the redirect is Linux's"
    if spec.get("dnsPolicy", "ClusterFirst") not in ("ClusterFirst", "Default"):
        yield f"spec.dnsPolicy {spec['dnsPolicy']}: the proxy would ask name servers of the author's choice"
    if (spec.get("dnsConfig") or {}).keys() - {"options"}:
        yield "spec.dnsConfig: the proxy would ask name servers, or in domains, of the author's choice"
    if spec.get("automountServiceAccountToken") is True:
        yield "spec.automountServiceAccountToken: such a token may count as the proxy's; leave it out"
    yield from _pod_security(spec.get("securityContext") or {}, admission)
    for volume in spec.get("volumes") or ():
        if not str(volume.get("name", "")).startswith(PREFIX):
            yield from _volume(volume, admission)
    for place in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(place) or ():
            if not str(container.get("name", "")).startswith(PREFIX):
                yield from _container(container, admission)
            yield from _resources(container, admission)


def _pod_security(secured: Json, admission: Admission) -> Iterator[str]:
    where = "spec.securityContext"
    for name in secured.keys() - POD_SECURITY:
        if secured[name]:  # sysctls, windowsOptions, and whatever comes
            yield f"{where}.{name}: not allowed beside a proxy"
    yield from _identity(where, secured, admission)
    groups = [secured.get("fsGroup"), *(secured.get("supplementalGroups") or ())]
    if admission.proxy_uid in groups:
        yield f"{where}: {admission.proxy_uid} is the proxy's own group"
    yield from _profiles(where, secured)


def _identity(where: str, secured: Json, admission: Admission) -> Iterator[str]:
    for name in ("runAsUser", "runAsGroup"):
        if secured.get(name) == admission.proxy_uid:
            uid = admission.proxy_uid
            yield f"{where}.{name}: {uid} is the proxy's user, whose packets are not redirected"


def _profiles(where: str, secured: Json) -> Iterator[str]:
    for name in ("seccompProfile", "appArmorProfile"):
        if (secured.get(name) or {}).get("type", "RuntimeDefault") == "Unconfined":
            yield f"{where}.{name}: Unconfined"
    if (secured.get("seLinuxOptions") or {}).keys() - {"level"}:
        yield f"{where}.seLinuxOptions: only a level may be chosen"


def _volume(volume: Json, admission: Admission) -> Iterator[str]:
    name = volume.get("name")
    sources = (volume.get("projected") or {}).get("sources") or ()
    wanted = [(volume.get("secret") or {}).get("secretName")]
    wanted += [(source.get("secret") or {}).get("name") for source in sources]
    yield from _secrets(f"the volume {name}", wanted, admission)
    kinds = volume.keys() - {"name"}
    for kind in sorted(kinds - VOLUMES):
        yield f"the volume {name}: {kind} reaches hosts outside the pod without passing the proxy"
    if is_api_token(volume):
        return  # taken away
    for source in sources:
        for kind in sorted(source.keys() - PROJECTED):
            yield (
                f"the volume {name}: a projected {kind} could be accepted as the proxy's token,"
                " by Vault for example"
            )


def _container(container: Json, admission: Admission) -> Iterator[str]:
    where = f"the container {container.get('name')}"
    for name in sorted(container.keys() - CONTAINER_PLAIN):
        if container[name]:
            yield f"{where}: {name} is not allowed beside a proxy, or not known to this webhook"
    if str(container.get("targetContainerName", "")).startswith(PREFIX):
        yield f"{where}: targetContainerName is the proxy's container, so it would see the proxy's processes"
    yield from _container_security(where, container.get("securityContext") or {}, admission)
    yield from _network(where, container)
    yield from _mounts(where, container, admission)
    yield from _variables(where, container, admission)


def _resources(container: Json, admission: Admission) -> Iterator[str]:
    """Of ours as well: limit ranges may change them, so that nothing else looks at them."""
    where = f"the container {container.get('name')}"
    for kind in ("requests", "limits"):
        for name in (container.get("resources") or {}).get(kind) or {}:
            if not name.startswith(RESOURCES) and name not in admission.allowed_resources:
                yield f"{where}: the resource {name} may be a device; admission.allowedResources admits it"
    if (container.get("resources") or {}).get("claims"):
        yield f"{where}: resources.claims: a device may be a network of its own"


def _container_security(where: str, secured: Json, admission: Admission) -> Iterator[str]:
    for name in sorted(secured.keys() - CONTAINER_SECURITY):
        if secured[name]:
            yield f"{where}: securityContext.{name} is not known to this webhook"
    if secured.get("privileged"):
        yield f"{where}: privileged"
    if secured.get("allowPrivilegeEscalation"):
        yield f"{where}: allowPrivilegeEscalation: a set-uid program could become the proxy's user"
    if secured.get("procMount", "Default") != "Default":
        yield f"{where}: procMount {secured['procMount']}"
    added = {str(each).removeprefix("CAP_") for each in (secured.get("capabilities") or {}).get("add") or ()}
    for name in sorted(added - HARMLESS):
        yield f"{where}: the capability {name}: the redirect contains only processes without it"
    yield from _identity(f"{where}: securityContext", secured, admission)
    yield from _profiles(f"{where}: securityContext", secured)


def _network(where: str, container: Json) -> Iterator[str]:
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        for kind in sorted((container.get(probe) or {}).keys() & {"httpGet", "tcpSocket", "grpc"}):
            yield f"{where}: {probe}.{kind}: nothing from outside the pod is answered; use exec"
    for hook, action in (container.get("lifecycle") or {}).items():
        if not isinstance(action, dict):
            continue  # stopSignal
        for kind in sorted(action.keys() - {"exec", "sleep"}):
            yield f"{where}: lifecycle.{hook}.{kind}: the node would connect for it; use exec"
    if any(port.get("hostPort") or port.get("hostIP") for port in container.get("ports") or ()):
        yield f"{where}: hostPort: nothing from outside the pod is answered"


def _mounts(where: str, container: Json, admission: Admission) -> Iterator[str]:
    given = {"name": admission.workload_volume, "mountPath": admission.workload_dir, "readOnly": True}
    for mount in container.get("volumeMounts") or ():
        path = str(mount.get("mountPath", "")).rstrip("/")
        if mount == given:
            continue  # what we put there
        if str(mount.get("name", "")).startswith(PREFIX):
            yield f"{where}: it mounts {mount['name']}, which is the proxy's"
        if f"{path}/".startswith(f"{admission.workload_dir}/"):
            yield f"{where}: {path} is where it finds what the proxy gives it"
        if mount.get("mountPropagation", "None") != "None":
            yield f"{where}: mountPropagation {mount['mountPropagation']}"
    for variable in container.get("env") or ():
        file = (variable.get("valueFrom") or {}).get("fileKeyRef") or {}
        if str(file.get("volumeName", "")).startswith(PREFIX):
            yield f"{where}: {variable.get('name')} reads the proxy's volume {file['volumeName']}"


def _variables(where: str, container: Json, admission: Admission) -> Iterator[str]:
    sources = [variable.get("valueFrom") or {} for variable in container.get("env") or ()]
    wanted = [(source.get("secretKeyRef") or {}).get("name") for source in sources]
    wanted += [(source.get("secretRef") or {}).get("name") for source in container.get("envFrom") or ()]
    yield from _secrets(where, wanted, admission)


def _secrets(where: str, wanted: list[str | None], admission: Admission) -> Iterator[str]:
    for name in admission.protected_secrets:
        if name in wanted:
            yield f"{where}: the Secret {name} holds the fleet's key, with which any session can be opened"
