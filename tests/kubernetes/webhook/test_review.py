"""AdmissionReviews: what is answered about new pods, running ones, commands in them, and ConfigMaps."""

import base64
import copy
import json
from typing import Any

import pytest

from coatcheck.kubernetes.webhook.configuration import Json
from coatcheck.kubernetes.webhook.injection import inject
from coatcheck.kubernetes.webhook.review import ReviewError, judge, mutate, validate
from tests.kubernetes.webhook.pods import ADMISSION, PROXY_UID, patched, pod, review


def allowed(answer: Json) -> bool:
    """It names the question, and nothing of an answer is left out."""
    response = answer["response"]
    assert answer["kind"] == "AdmissionReview" and response["uid"] == review(None)["request"]["uid"]
    assert response["allowed"] or response["status"]["message"].startswith("Coatcheck refuses this")
    return bool(response["allowed"])


def why(answer: Json) -> str:
    assert not allowed(answer)
    return str(answer["response"]["status"]["message"])


def test_a_pod_is_patched_and_then_passes_the_last_look() -> None:
    """What /mutate makes of it is what /validate wants."""
    answer = mutate(review(pod()), ADMISSION)
    assert allowed(answer) and answer["response"]["patchType"] == "JSONPatch"
    made = patched(pod(), json.loads(base64.b64decode(answer["response"]["patch"])))
    assert allowed(validate(review(made), ADMISSION))
    again = mutate(review(made), ADMISSION)
    assert allowed(again) and "patch" not in again["response"]


def test_a_pod_that_was_not_patched_does_not_pass() -> None:
    """However it came by: another webhook took it out, or the first was not asked."""
    assert "spec.initContainers[0]" in why(validate(review(pod()), ADMISSION))


def test_a_refused_pod_is_told_everything_at_once() -> None:
    """And where to read on; not more than a person reads."""
    said = why(mutate(review(pod({"securityContext": {"privileged": True}}, hostNetwork=True)), ADMISSION))
    assert "hostNetwork" in said and "privileged" in said and "docs/kubernetes.md" in said
    many = pod(containers=[{"name": f"c{n}", "securityContext": {"privileged": True}} for n in range(99)])
    assert "and 79 more" in why(mutate(review(many), ADMISSION))


def test_a_copy_of_our_containers_is_no_pass() -> None:
    """An author who writes them himself must write them as they are."""
    made = inject(pod(), ADMISSION)
    assert judge(made, ADMISSION) == []
    made["spec"]["initContainers"][1]["image"] = "mine"
    assert "spec.initContainers[1].image" in why(mutate(review(made), ADMISSION))
    only = pod(initContainers=[{"name": "coatcheck-redirect", "image": "mine"}])
    assert "not what this webhook puts there" in why(mutate(review(only), ADMISSION))


def test_what_other_webhooks_add_afterwards_is_looked_at() -> None:
    """A container without our confinement, one before ours, a token for the proxy's audience."""
    made = inject(pod(), ADMISSION)

    def changed(place: str, index: int, what: Json) -> str:
        copied = copy.deepcopy(made)
        copied["spec"][place].insert(index, what)
        return why(validate(review(copied), ADMISSION))

    mesh = {"name": "mesh", "image": "mesh:1"}
    assert "mesh: it does not drop all capabilities" in changed("containers", 1, mesh)
    assert "initContainers[0]" in changed("initContainers", 0, mesh)
    token = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"audience": "vault"}}]}}
    assert "projected serviceAccountToken" in changed("volumes", 0, token)


@pytest.mark.parametrize(
    ("left_out", "said"), [("runAsUser", "runAsUser is not said"), ("seccompProfile", "no seccompProfile")]
)
def test_what_only_image_or_node_know_does_not_pass_the_last_look(left_out: str, said: str) -> None:
    """A user that could be the proxy's, a node without seccomp: anyone who writes our parts himself writes
    the rest as well."""
    made = inject(pod(), ADMISSION)
    del made["spec"]["securityContext"][left_out]
    assert said in why(validate(review(made), ADMISSION))


def test_no_token_comes_in_under_the_name_of_the_api_servers_own() -> None:
    """Of a pod that bears all of our parts nothing is taken away any more: it could be one for Vault."""
    made = inject(pod(), ADMISSION)
    token = {"serviceAccountToken": {"audience": "vault", "path": "token"}}
    made["spec"]["volumes"].insert(0, {"name": "kube-api-access-mine", "projected": {"sources": [token]}})
    for judged in (mutate(review(made), ADMISSION), validate(review(made), ADMISSION)):
        assert "kube-api-access-mine is not what this webhook puts there" in why(judged)


# --- pods that run -----------------------------------------------------------------------------------


def updated(change: str, old: Json | None = None) -> Json:
    old = inject(pod(), ADMISSION) if old is None else old
    new = copy.deepcopy(old)
    exec(change, {"pod": new, "spec": new["spec"], "metadata": new["metadata"]})
    return validate(review(new, "UPDATE", old=old), ADMISSION)


@pytest.mark.parametrize(
    "change",
    [
        "spec['initContainers'][1]['image'] = 'mine'",
        "spec['initContainers'].pop(0)",
        "spec['volumes'].pop()",
        "spec['containers'].append({'name': 'coatcheck-shell'})",
    ],
)
def test_nothing_of_ours_changes_in_a_running_pod(change: str) -> None:
    """`kubectl set image` would put any program in the proxy's place, beside its tokens."""
    assert "cannot be changed" in why(updated(change))


@pytest.mark.parametrize(
    "change",
    [
        "metadata['labels'] = {'a': 'b'}",
        "metadata['finalizers'] = []",
        "metadata['annotations']['note'] = 'x'",
        "spec['containers'][0]['image'] = 'agent:2'",
        "spec['tolerations'] = []",
    ],
)
def test_what_is_not_ours_may_change(change: str) -> None:
    """Also the workload's own image."""
    assert allowed(updated(change))


def test_an_annotation_that_moves_the_pod_is_refused_later_too() -> None:
    """A sandbox that is made anew reads it."""
    said = updated("metadata['annotations']['k8s.v1.cni.cncf.io/networks'] = 'macvlan'")
    assert "k8s.v1.cni.cncf.io/networks" in why(said)


def test_a_pod_of_an_older_version_of_us_can_be_changed_and_goes() -> None:
    """After an upgrade what is added is another; a pod's finalizers must come off all the same."""
    old = inject(pod(), ADMISSION)
    old["spec"]["initContainers"][1]["image"] = "coatcheck:0"
    assert allowed(updated("metadata['finalizers'] = []", old))


def test_a_pod_from_before_the_webhook_can_go() -> None:
    """What it had is not held against it; what it gets is."""
    old = pod(hostNetwork=True)
    assert allowed(updated("metadata['finalizers'] = []", old))
    assert allowed(updated("spec['containers'][0]['image'] = 'agent:2'", old))
    assert not allowed(updated("spec['containers'][0]['securityContext'] = {'privileged': True}", old))


DEBUG: Json = {
    "name": "debug",
    "image": "debug:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}, "NET_ADMIN"),
        ({"securityContext": {}}, "does not drop all capabilities"),
        ({"securityContext": DEBUG["securityContext"] | {"runAsUser": PROXY_UID}}, "9990 is the proxy"),
        ({"targetContainerName": "coatcheck-proxy"}, "targetContainerName"),
        ({"volumeMounts": [{"name": "coatcheck-tokens", "mountPath": "/t"}]}, "the proxy's"),
        ({"name": "coatcheck-debug"}, "cannot be changed"),
    ],
)
def test_an_ephemeral_container_has_what_the_workload_has(part: Json, said: str) -> None:
    """`kubectl debug`: no capability, another user, not the proxy's processes, not its volumes."""
    old = inject(pod(), ADMISSION)
    assert allowed(updated(f"spec['ephemeralContainers'] = [{DEBUG}]", old))
    assert said in why(updated(f"spec['ephemeralContainers'] = [{DEBUG | part}]", old))


@pytest.mark.parametrize("kind", ["PodExecOptions", "PodAttachOptions"])
def test_nobody_enters_the_proxys_container(kind: str) -> None:
    """`kubectl exec -c coatcheck-proxy` would be the proxy's user, with its tokens in reach."""
    entering: dict[str, Any] = {"kind": kind, "container": "coatcheck-proxy", "command": ["sh"]}
    assert "coatcheck-proxy" in why(validate(review(entering, "CONNECT", kind), ADMISSION))
    for container in ("agent", None):
        assert allowed(validate(review(entering | {"container": container}, "CONNECT", kind), ADMISSION))


# --- the namespace's configuration -------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_only_writers_touch_what_the_proxies_read(operation: str) -> None:
    """Anyone who may edit ConfigMaps in the namespace could send a secret anywhere by a policy of his own."""

    def asked(name: str, *groups: str) -> Json:
        return validate(review(None, operation, "ConfigMap", name=name, groups=groups), ADMISSION)

    assert "author is not in a group" in why(asked("coatcheck-sidecar", "system:authenticated"))
    assert allowed(asked("coatcheck-sidecar", "system:authenticated", "system:masters"))
    assert allowed(asked("kube-root-ca.crt", "system:authenticated"))


# --- what is no question -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "x"}},
        {"apiVersion": "admission.k8s.io/v1"},
        {"apiVersion": "admission.k8s.io/v1", "request": {}},
        {"apiVersion": "admission.k8s.io/v1", "request": []},
        review(None),
        review(inject(pod(), ADMISSION), "UPDATE"),
    ],
)
def test_what_cannot_be_read_is_no_answer(asked: Json) -> None:
    """The API server takes the error for a refusal."""
    with pytest.raises(ReviewError):
        validate(asked, ADMISSION)


def test_what_it_was_not_told_of_is_refused() -> None:
    """A rule that somebody added to the webhook's configuration, and nobody to the webhook."""
    assert "nothing that this webhook judges" in why(validate(review({}, "CREATE", "Service"), ADMISSION))
    assert "only the creation of pods" in why(mutate(review(pod(), "UPDATE"), ADMISSION))
    assert "only the creation of pods" in why(mutate(review({}, kind="Deployment"), ADMISSION))
