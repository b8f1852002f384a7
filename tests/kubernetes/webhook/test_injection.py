"""What is added to a pod, and how one's own parts are told from somebody's copy of them."""

import copy

from coatcheck.kubernetes.webhook.injection import differences, has_ours, inject, json_patch, ours
from tests.kubernetes.webhook.pods import ADMISSION, API_TOKEN, WORKLOAD_UID, patched, pod


def test_the_proxy_comes_before_every_other_container() -> None:
    """The redirect first of all, then the proxy, then what the author wrote."""
    made = inject(pod(initContainers=[{"name": "setup", "image": "setup:1"}]), ADMISSION)
    names = [each["name"] for each in made["spec"]["initContainers"]]
    assert names == ["coatcheck-redirect", "coatcheck-proxy", "setup"]
    assert differences(made, ADMISSION) == []


def test_the_workload_has_no_capability_no_way_up_and_a_user_that_is_known() -> None:
    """Init containers, too; a user that the author chose stays."""
    chosen = {"securityContext": {"runAsUser": 33, "capabilities": {"add": ["NET_BIND_SERVICE"]}}}
    made = inject(pod(chosen, initContainers=[{"name": "setup", "image": "setup:1"}]), ADMISSION)["spec"]
    assert made["securityContext"]["runAsUser"] == WORKLOAD_UID
    agent = made["containers"][0]["securityContext"]
    assert agent["runAsUser"] == 33 and agent["allowPrivilegeEscalation"] is False
    assert agent["capabilities"] == {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}
    assert made["initContainers"][2]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_workload_reads_trust_and_handles_and_cannot_write_them() -> None:
    """With the variables that `ca env` knows; the author's own of the same name stay."""
    made = inject(pod({"env": [{"name": "PIP_CERT", "value": "/own.pem"}]}), ADMISSION)
    agent = made["spec"]["containers"][0]
    assert {"name": "coatcheck-workload", "mountPath": "/run/coatcheck", "readOnly": True} in agent[
        "volumeMounts"
    ]
    said = [(each["name"], each["value"]) for each in agent["env"]]
    assert ("PIP_CERT", "/own.pem") in said and ("GIT_SSL_CAINFO", "/run/coatcheck/ca-bundle.pem") in said
    assert len({name for name, _ in said}) == len(said)


def test_the_api_servers_own_token_is_taken_away() -> None:
    """Vault, or anything else, might take it for the proxy's: it names the same service account."""
    made = inject(pod(), ADMISSION)["spec"]
    assert made["automountServiceAccountToken"] is False
    assert API_TOKEN["name"] not in str(made)


def test_services_put_no_variables_into_the_proxy() -> None:
    """One called coatcheck-policy would keep it from starting: COATCHECK_… that is no setting."""
    assert inject(pod(), ADMISSION)["spec"]["enableServiceLinks"] is False


def test_once_is_enough() -> None:
    """The API server asks again when another webhook has changed the pod."""
    made = inject(pod(), ADMISSION)
    assert inject(made, ADMISSION) == made and json_patch(made, inject(made, ADMISSION)) == []


def test_the_patch_makes_of_the_pod_what_was_meant_and_touches_the_spec_only() -> None:
    """By operations that the API server knows."""
    given = pod()
    before = copy.deepcopy(given)
    made = inject(given, ADMISSION)
    patch = json_patch(given, made)
    assert given == before and patched(given, patch) == made
    assert all(step["path"].startswith("/spec/") for step in patch)


def test_what_the_api_server_fills_in_is_no_difference() -> None:
    """Limits of a LimitRange, defaults of fields that came later, a size in its own words."""
    made = inject(pod(), ADMISSION)
    for container in made["spec"]["initContainers"]:
        container["resources"] = {"limits": {"cpu": "1"}}
        container["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
        container.setdefault("securityContext", {})["procMount"] = "Default"
    made["spec"]["volumes"][-2]["emptyDir"]["sizeLimit"] = "1Gi"
    assert differences(made, ADMISSION) == []


def test_every_change_to_a_part_of_ours_is_named() -> None:
    """Also one more key, one more mount, another order, and one that stands elsewhere."""
    made = inject(pod(), ADMISSION)

    def changed(change: str) -> list[str]:
        copied = copy.deepcopy(made)
        exec(change, {"spec": copied["spec"]})
        return differences(copied, ADMISSION)

    first = "spec.initContainers[0]"
    assert changed("spec['initContainers'][0]['image'] = 'mine'") == [f"{first}.image"]
    assert changed("spec['initContainers'][0]['command'] = ['true']") == [f"{first}.command"]
    assert changed("spec['initContainers'][0]['env'] = []") == [f"{first}.env"]
    assert changed("spec['initContainers'][1]['volumeMounts'].append({})") == [
        "spec.initContainers[1].volumeMounts"
    ]
    assert changed("spec['initContainers'].reverse()")
    assert changed("spec['initContainers'].insert(0, {'name': 'early'})")
    assert changed("del spec['initContainers'][1]")
    assert changed("spec['volumes'].append({'name': 'coatcheck-more'})") == ["spec.volumes"]
    assert changed("spec['containers'].append({'name': 'coatcheck-proxy'})")
    assert changed("spec['automountServiceAccountToken'] = True") == ["spec.automountServiceAccountToken"]
    assert changed("spec['enableServiceLinks'] = True") == ["spec.enableServiceLinks"]
    assert len(differences(pod(), ADMISSION)) > 2


def test_what_bears_our_name_is_ours() -> None:
    """Containers of every kind, and volumes."""
    assert not has_ours(pod()) and ours(pod()) == []
    for place in ("initContainers", "containers", "ephemeralContainers", "volumes"):
        assert has_ours(pod(**{place: [{"name": "coatcheck-x"}]}))
    assert len(ours(inject(pod(), ADMISSION))) == 4
