"""Pods as authors write them, and AdmissionReviews as the API server sends them."""

import copy
from typing import Any

from coatcheck.kubernetes.webhook.configuration import Admission, Fragment, Json

PROXY_UID, WORKLOAD_UID = 9990, 1000

ADMISSION = Admission(
    proxy_uid=PROXY_UID,
    workload_uid=WORKLOAD_UID,
    workload_volume="coatcheck-workload",
    workload_dir="/run/coatcheck",
    protected_configmap="coatcheck-sidecar",
    protected_secrets=("fleet",),
    writers=("system:masters",),
    allowed_resources=("nvidia.com/gpu",),
    refused_annotations=("k8s.v1.cni.cncf.io/",),
    fragment=Fragment(
        initContainers=(
            {
                "name": "coatcheck-redirect",
                "image": "coatcheck:1",
                "resources": {"limits": {"memory": "128Mi"}},
                "securityContext": {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}},
            },
            {
                "name": "coatcheck-proxy",
                "image": "coatcheck:1",
                "restartPolicy": "Always",
                "securityContext": {"runAsUser": PROXY_UID},
                "volumeMounts": [{"name": "coatcheck-workload", "mountPath": "/run/coatcheck"}],
            },
        ),
        volumes=(
            {"name": "coatcheck-workload", "emptyDir": {}},
            {"name": "coatcheck-tokens", "projected": {}},
        ),
    ),
)
"""As the chart renders it, only shorter (tests/system/chart has the real one)."""

API_TOKEN: Json = {
    "name": "kube-api-access-x7k2p",
    "projected": {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ],
    },
}
"""What the API server's ServiceAccount plugin has added when the webhook is asked."""
API_MOUNT: Json = {
    "name": "kube-api-access-x7k2p",
    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    "readOnly": True,
}


def pod(container: Any = None, annotations: Any = None, **spec: Any) -> Json:
    """A plain pod with the API server's defaults; `container` is added to its only one's."""
    agent = {"name": "agent", "image": "agent:1", "imagePullPolicy": "Always", "volumeMounts": [API_MOUNT]}
    return copy.deepcopy(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "agent-0", "namespace": "agents", "annotations": annotations or {}},
            "spec": {
                "containers": [agent | (container or {})],
                "volumes": [API_TOKEN],
                "dnsPolicy": "ClusterFirst",
                "enableServiceLinks": True,
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "securityContext": {},
                "serviceAccount": "default",
                "serviceAccountName": "default",
                "terminationGracePeriodSeconds": 30,
            }
            | spec,
        }
    )


def review(
    given: Json | None,
    operation: str = "CREATE",
    kind: str = "Pod",
    old: Json | None = None,
    name: str = "agent-0",
    groups: tuple[str, ...] = ("system:authenticated",),
) -> Json:
    """The question about `given`."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": kind},
            "resource": {"group": "", "version": "v1", "resource": f"{kind.lower()}s"},
            "namespace": "agents",
            "name": name,
            "operation": operation,
            "userInfo": {"username": "author", "groups": list(groups)},
            "object": given,
            "oldObject": old,
        },
    }


def patched(given: Json, patch: list[Json]) -> Json:
    """RFC 6902, for the operations that the webhook uses; any other fails."""
    made = copy.deepcopy(given)
    for step in patch:
        assert step["op"] == "add", step
        *parents, last = step["path"].removeprefix("/").split("/")
        place = made
        for part in parents:
            place = place[part]
        place[last] = copy.deepcopy(step["value"])
    return made
