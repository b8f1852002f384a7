"""A pod with the proxy in it: what is added, what of it stands in a pod, the patch between two pods. Pure."""

import copy
from collections.abc import Iterable
from typing import Any

from coatcheck.kubernetes.webhook.configuration import PREFIX, Admission, Json

API_TOKEN = "kube-api-access-"
"""The volume that the API server's own plugin adds before us, where nobody said that there should be none."""


def inject(pod: Json, admission: Admission) -> Json:
    """`pod` with everything of ours. It must have passed `refusals.problems`; idempotent for one of ours."""
    if has_ours(pod):
        return pod
    made = copy.deepcopy(pod)
    spec = made["spec"]
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    _without_api_token(spec)
    secured: Json = spec.setdefault("securityContext", None) or {}
    secured.setdefault("runAsUser", admission.workload_uid)
    secured.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    spec["securityContext"] = secured
    for container in (*_list(spec, "initContainers"), *_list(spec, "containers")):
        _confine(container)
        _lead(container, admission)
    ours = copy.deepcopy(admission.fragment)
    spec["initContainers"] = [*ours.initContainers, *_list(spec, "initContainers")]
    spec["volumes"] = [*_list(spec, "volumes"), *ours.volumes]
    return made


def _confine(container: Json) -> None:
    secured = container.get("securityContext") or {}
    secured["allowPrivilegeEscalation"] = False
    capabilities = secured.get("capabilities") or {}
    secured["capabilities"] = {**capabilities, "drop": ["ALL"]}
    container["securityContext"] = secured


def _lead(container: Json, admission: Admission) -> None:
    mount = {"name": admission.workload_volume, "mountPath": admission.workload_dir, "readOnly": True}
    container["volumeMounts"] = [*_list(container, "volumeMounts"), mount]
    known = {each.get("name") for each in _list(container, "env")}
    trust = [{"name": name, "value": value} for name, value in admission.trust.items() if name not in known]
    container["env"] = [*_list(container, "env"), *trust]


def _without_api_token(spec: Json) -> None:
    """A token of the API server would be one that Vault might take for the proxy's."""
    gone = {each["name"] for each in _list(spec, "volumes") if is_api_token(each)}
    if not gone:
        return
    spec["volumes"] = [each for each in _list(spec, "volumes") if each["name"] not in gone]
    for container in (*_list(spec, "initContainers"), *_list(spec, "containers")):
        mounts = _list(container, "volumeMounts")
        container["volumeMounts"] = [each for each in mounts if each.get("name") not in gone]


def is_api_token(volume: Json) -> bool:
    """Whether it is the one that Kubernetes adds to every pod: nobody asked for it, so it may be removed."""
    return str(volume.get("name", "")).startswith(API_TOKEN) and "projected" in volume


def has_ours(pod: Json) -> bool:
    """Whether anything in the pod bears one of our names."""
    return any(True for _ in _named(pod))


def differences(pod: Json, admission: Admission) -> list[str]:
    """In what the pod's parts of ours are not what they must be, by place; empty when all are."""
    spec = pod.get("spec") or {}
    wrong: list[str] = []
    containers = _list(spec, "initContainers")
    for index, wanted in enumerate(admission.fragment.initContainers):
        found = containers[index] if index < len(containers) else {}
        wrong += _compare(f"spec.initContainers[{index}]", _plain(wanted), _plain(found))
    volumes = [each for each in _list(spec, "volumes") if str(each.get("name")).startswith(PREFIX)]
    wanted_volumes = [_without_size(each) for each in admission.fragment.volumes]
    wrong += _compare("spec.volumes", wanted_volumes, [_without_size(each) for each in volumes])
    others = containers[len(admission.fragment.initContainers) :]
    for container in (*others, *_list(spec, "containers"), *_list(spec, "ephemeralContainers")):
        name = str(container.get("name"))
        if name.startswith(PREFIX):
            wrong.append(f"the container {name} is in a place where it is not injected")
    # Taken away from a pod without our parts; a name alone must not bring one past us into a pod with them.
    wrong += [f"spec.volumes: {each['name']}" for each in _list(spec, "volumes") if is_api_token(each)]
    for setting in ("automountServiceAccountToken", "enableServiceLinks"):
        if spec.get(setting) is not False:
            wrong.append(f"spec.{setting}")
    return wrong


def ours(pod: Json) -> list[tuple[str, Json]]:
    """Everything in the pod that bears one of our names, by place: what an update must leave as it is."""
    return list(_named(pod))


def json_patch(old: Json, new: Json) -> list[Json]:
    """RFC 6902: from `old` to `new`, which differ below `spec` only. `add` replaces what is there."""
    before, after = old["spec"], new["spec"]
    return [
        {"op": "add", "path": f"/spec/{name}", "value": value}
        for name, value in after.items()
        if name not in before or before[name] != value
    ]


def _named(pod: Json) -> Iterable[tuple[str, Json]]:
    spec = pod.get("spec") or {}
    for place in ("initContainers", "containers", "ephemeralContainers", "volumes"):
        for index, each in enumerate(_list(spec, place)):
            if str(each.get("name", "")).startswith(PREFIX):
                yield f"spec.{place}[{index}]", each


def _plain(container: Json) -> Json:
    """Without what the API server and its limit ranges fill in."""
    kept = {name: value for name, value in container.items() if name not in ("resources", "resizePolicy")}
    secured = dict(kept.get("securityContext") or {})
    if secured.get("procMount") == "Default":
        del secured["procMount"]
    return {**kept, "securityContext": secured}


def _without_size(volume: Json) -> Json:
    """The API server writes quantities its own way (1024Mi is 1Gi), and a size opens nothing."""
    source = volume.get("emptyDir")
    if not isinstance(source, dict):
        return volume
    return {**volume, "emptyDir": {name: value for name, value in source.items() if name != "sizeLimit"}}


def _compare(place: str, wanted: Any, found: Any) -> list[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        wrong: list[str] = []
        for name in wanted.keys() | found.keys():
            if name not in wanted or name not in found:
                wrong.append(f"{place}.{name}")
            else:
                wrong += _compare(f"{place}.{name}", wanted[name], found[name])
        return sorted(wrong)
    return [] if wanted == found else [place]


def _list(holder: Json, name: str) -> list[Json]:
    return list(holder.get(name) or ())
