"""AdmissionReview v1 in, AdmissionReview v1 out. Whatever cannot be read is refused (I3)."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from coatcheck.kubernetes.webhook.configuration import PREFIX, Admission, Json
from coatcheck.kubernetes.webhook.injection import differences, has_ours, inject, json_patch, ours
from coatcheck.kubernetes.webhook.refusals import MOST_NAMED, problems

API_VERSION = "admission.k8s.io/v1"
FORBIDDEN = 403


class ReviewError(Exception):
    """What was sent is no AdmissionReview that could be answered."""


def mutate(review: Mapping[str, Any], admission: Admission) -> Json:
    """The answer to a pod that is to be made: a patch, or why it is refused. Raises ReviewError."""
    request = _request(review)
    if (request.get("kind") or {}).get("kind") != "Pod" or request.get("operation") != "CREATE":
        return _answer(request, ["only the creation of pods is to be sent to /mutate"])
    pod = _object(request, "object")
    if wrong := judge(pod, admission):
        return _answer(request, wrong)
    return _answer(request, [], json_patch(pod, inject(pod, admission)))


def judge(pod: Json, admission: Admission) -> list[str]:
    """Why a new pod is refused, or nothing. One that bears our names must bear all of ours, as they are."""
    wrong = problems(pod, admission)
    if not wrong and has_ours(pod):
        wrong = _not_ours(differences(pod, admission))
    return wrong


def validate(review: Mapping[str, Any], admission: Admission) -> Json:
    """The last word: a pod as it will be, a change to one, a command in one, or a ConfigMap of ours."""
    request = _request(review)
    kind, operation = (request.get("kind") or {}).get("kind"), request.get("operation")
    match kind, operation:
        case "Pod", "CREATE":
            pod = _object(request, "object")
            wrong = [*problems(pod, admission), *_not_ours(differences(pod, admission)), *_loose(pod)]
        case "Pod", "UPDATE":
            wrong = _changed(_object(request, "oldObject"), _object(request, "object"), admission)
        case (("PodExecOptions" | "PodAttachOptions"), "CONNECT"):
            container = str(_object(request, "object").get("container") or "")
            wrong = [f"{container} holds what the workload must not see"] * container.startswith(PREFIX)
        case "ConfigMap", ("CREATE" | "UPDATE"):
            wrong = _writer(request, admission)
        case _:
            wrong = [f"{operation} of {kind} is nothing that this webhook judges"]
    return _answer(request, wrong)


def _not_ours(places: Iterable[str]) -> list[str]:
    return [f"{place} is not what this webhook puts there" for place in places]


def _loose(pod: Json) -> list[str]:
    """Containers that run as whatever user their image says, with capabilities, or without seccomp: other
    webhooks' work, or an author's who wrote our parts himself."""
    spec = pod["spec"]
    of_all = spec.get("securityContext") or {}
    default = of_all.get("runAsUser")
    wrong = []
    for container in _workload(spec):
        secured = container.get("securityContext") or {}
        name = container.get("name")
        if secured.get("runAsUser", default) is None:
            wrong.append(f"the container {name}: runAsUser is not said, and the image's could be the proxy's")
        dropped = (secured.get("capabilities") or {}).get("drop") or ()
        if "ALL" not in dropped or secured.get("allowPrivilegeEscalation") is not False:
            wrong.append(f"the container {name}: it does not drop all capabilities and set-uid programs")
        if not secured.get("seccompProfile") and not of_all.get("seccompProfile"):
            wrong.append(f"the container {name}: no seccompProfile is said, and a node's own may be none")
    return wrong


def _changed(old: Json, new: Json, admission: Admission) -> list[str]:
    """Of a pod that runs, whatever version of us has made it: what is ours stays as it is."""
    if ours(old) != ours(new):
        return ["containers and volumes of the proxy cannot be changed; delete the pod"]
    known = (old.get("metadata") or {}).get("annotations") or {}
    before, after = old.get("spec") or {}, new.get("spec") or {}
    added = {
        name: value
        for name, value in ((new.get("metadata") or {}).get("annotations") or {}).items()
        if known.get(name) != value
    }
    if not added and before == after:
        return []  # labels, finalizers: also of pods from before the webhook
    judged = {"metadata": {"annotations": added}, "spec": after}
    earlier = set(problems(old, admission))
    wrong = [each for each in problems(judged, admission) if each not in earlier]
    if before.get("ephemeralContainers") != after.get("ephemeralContainers"):
        wrong += [each for each in _loose(new) if each not in _loose(old)]
    return wrong


def _workload(spec: Json) -> list[Json]:
    found: list[Json] = []
    for place in ("initContainers", "containers", "ephemeralContainers"):
        found += [each for each in spec.get(place) or () if not str(each.get("name")).startswith(PREFIX)]
    return found


def _writer(request: Json, admission: Admission) -> list[str]:
    if request.get("name") != admission.protected_configmap:
        return []
    user = request.get("userInfo") or {}
    if set(user.get("groups") or ()) & set(admission.writers):
        return []
    who = f"{user.get('username')} is not in a group that may write it (admission.writers)"
    return [f"{admission.protected_configmap} says what this namespace's pods may do, and {who}"]


def _request(review: Mapping[str, Any]) -> Json:
    request = review.get("request")
    if review.get("apiVersion") != API_VERSION or not isinstance(request, dict):
        raise ReviewError(f"this is not an AdmissionReview of {API_VERSION}")
    if not isinstance(request.get("uid"), str) or not request["uid"]:
        raise ReviewError("the request has no uid")
    return request


def _object(request: Json, name: str) -> Json:
    found = request.get(name)
    if not isinstance(found, dict):
        raise ReviewError(f"the request has no {name}")
    return found


def _answer(request: Json, wrong: list[str], patch: list[Json] | None = None) -> Json:
    response: Json = {"uid": request["uid"], "allowed": not wrong}
    if wrong:
        listed = wrong[:MOST_NAMED] + [f"and {len(wrong) - MOST_NAMED} more"] * (len(wrong) > MOST_NAMED)
        message = (
            "Coatcheck refuses this, since it could go past the proxy: " + "; ".join(listed)
            + ". See docs/kubernetes.md, What is refused"
        )  # fmt: skip
        response["status"] = {"code": FORBIDDEN, "reason": "Forbidden", "message": message}
    elif patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
