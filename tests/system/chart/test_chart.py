"""The chart as a whole: lint, both shapes and each option against Kubernetes' schemas, what it refuses."""

import json
import re
from typing import Any

import pytest

from coatcheck.settings.daemon import Settings
from tests.system.chart.helm import CHART, Helm, HelmRefused
from tests.system.chart.schemas import check
from tests.system.chart.values import FLEET, GATEWAY, ROTATING, SHARED, SIDECAR, Values, given

OPTIONS: dict[str, Values] = {
    "the gateway": GATEWAY,
    "replicas on shared state": SHARED,
    "everything about shared state": given(
        SHARED,
        gateway={"replicas": 3, "clusterIPs": ["10.96.0.7"], "sharedState": {"name": "agents", "ca": "PEM"}},
        monitoring={"serviceMonitor": {"enabled": True, "tokenSecret": "t", "caSecret": "c"}},
    ),
    "client certificates": given(
        GATEWAY, gateway={"origin": "certificate", "proxyTls": {"secret": "tls", "clientCa": "PEM"}}
    ),
    "fenced namespaces": given(
        GATEWAY,
        gateway={
            "sandboxes": {"namespaces": ["agents", "web"]},
            "control": {"from": [{"podSelector": {}}], "clientCa": "PEM"},
        },
    ),
    "storage": given(GATEWAY, gateway={"state": {"size": "5Gi", "storageClass": "fast"}}),
    "a private registry": given(GATEWAY, image={"pullSecrets": ["registry"]}),
    "policies that somebody signed": {
        **GATEWAY,
        "policies": {},
        "signedPolicies": {"bundle": "BUNDLE", "trustRoot": "PEM"},
    },
    "a bundle that somebody else keeps": {
        **GATEWAY,
        "policies": {},
        "signedPolicies": {"configMap": "release", "trustRoot": "PEM"},
    },
    "signed policies on shared state": {
        **SHARED,
        "policies": {},
        "signedPolicies": {"bundle": "BUNDLE", "trustRoot": "PEM"},
    },
    "signed policies beside each pod": {
        **SIDECAR,
        "policies": {},
        "image": {"pullSecrets": ["registry"]},
        "signedPolicies": {"bundle": "BUNDLE", "trustRoot": "PEM"},
    },
    "a digest": given(GATEWAY, image={"digest": f"sha256:{'0' * 64}"}),
    "everything about Vault": given(
        GATEWAY,
        vault={"login": "jwt", "mount": "k8s", "namespace": "team", "ca": "PEM", "role": "r"},
        upstreamCa="PEM",
        settings={"name_servers": ["10.96.0.10"], "secret_ttl": 30, "drain_seconds": 1.5},
    ),
    "monitoring": given(
        GATEWAY,
        monitoring={
            "serviceMonitor": {"enabled": True, "tokenSecret": "t", "caSecret": "c"},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
        },
    ),
    "placed": given(
        GATEWAY,
        gateway={
            "nodeSelector": {"pool": "a"},
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "p",
            "podLabels": {"a": "b"},
            "podAnnotations": {"a": "b"},
        },
        extraEnv=[{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        commonLabels={"team": "a"},
        fullnameOverride="other",
    ),
    "the cluster's keys": given(GATEWAY, platform={"jwks": ""}),
    "the cluster's keys beside each pod": given(SIDECAR, platform={"jwks": ""}),
    "the sidecar": SIDECAR,
    "sidecars of a fleet": FLEET,
    "replicas whose database credentials rotate": ROTATING,
    "one webhook": given(SIDECAR, admission={"replicas": 1}),
    "a CA of one's own": given(SIDECAR, admission={"ca": {"certificate": "PEM", "key": "PEM"}}),
    "other users and ports": given(
        SIDECAR,
        sidecar={"proxyUid": 7000, "workloadUid": 7001, "transparentPort": 2000, "dnsPort": 2001},
        settings={"allowed_networks": ["10.0.0.0/8"]},
        vault={"ca": "PEM"},
    ),
    "rules beside sidecars": given(SIDECAR, monitoring={"rules": {"enabled": True}}),
}


def test_helm_finds_nothing_to_complain_of(helm: Helm) -> None:
    """But for an icon, which it recommends (severity 1, information)."""
    assert [each["Severity"] for each in helm.lint()] == [1]


@pytest.mark.parametrize("values", OPTIONS.values(), ids=OPTIONS)
def test_each_option_makes_objects_that_three_versions_of_kubernetes_take(helm: Helm, values: Values) -> None:
    """1.29, 1.33 and 1.37, strictly: no key that they do not know."""
    check(helm.install(values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "policies is empty"),
        (given(GATEWAY, vault={"url": ""}), "vault.url is empty"),
        (given(GATEWAY, signedPolicies={"bundle": "B", "trustRoot": "P"}), "are both given"),
        (given(GATEWAY, signedPolicies={"trustRoot": "P"}), "belong together"),
        (given(GATEWAY, gateway={"replicas": 2}), "gateway.sharedState.url is empty"),
        (given(SHARED, gateway={"sharedState": {"secret": ""}}), "gateway.sharedState.secret is empty"),
        (given(FLEET, sidecar={"sharedState": {"secret": ""}}), "sidecar.sharedState.secret is empty"),
        (
            given(SHARED, gateway={"sharedState": {"url": "rediss://redis.example:6379"}}),
            "in PostgreSQL. Give postgresql://user@host:5432/database",
        ),
        (given(FLEET, sidecar={"sharedState": {"url": "redis://127.0.0.1"}}), "says how to move"),
        (given(SHARED, gateway={"sharedState": {"credentials": "rotating"}}), "has another"),
        ({**GATEWAY, "policies": {}, "signedPolicies": {"bundle": "B"}}, "belong together"),
        (
            {**GATEWAY, "policies": {}, "signedPolicies": {"bundle": "B", "configMap": "C"}},
            "leave one away",
        ),
        (
            {**SIDECAR, "policies": {}, "signedPolicies": {"configMap": "C", "trustRoot": "P"}},
            "could bring back an old bundle",
        ),
        (
            {**SHARED, "policies": {}, "signedPolicies": {"configMap": "C", "trustRoot": "P"}},
            "signedPolicies.configMap cannot be used with gateway.sharedState",
        ),
        (given(GATEWAY, platform={"jwksUrl": "https://x.example/jwks"}), "are both given"),
        (given(GATEWAY, gateway={"serviceAccount": {"create": False}}), "name the account that there is"),
        (given(SIDECAR, extraEnv=[{"name": "X", "valueFrom": {}}]), "which is for the gateway"),
        (given(GATEWAY, gateway={"control": {"secret": ""}}), "gateway.control.secret is empty"),
        (given(GATEWAY, gateway={"control": {"grants": ""}}), "gateway.control.grants is empty"),
        (given(GATEWAY, gateway={"origin": "certificate"}), "give gateway.proxyTls.secret"),
        (given(GATEWAY, settings={"vault_url": "x"}), "settings.vault_url is set by the chart"),
        (given(GATEWAY, settings={"proxy_trust_addresses": True}), "proves nothing alone"),
        (given(GATEWAY, monitoring={"serviceMonitor": {"enabled": True}}), "tokenSecret and caSecret"),
        (given(SIDECAR, sidecar={"namespaces": []}), "sidecar.namespaces is empty"),
        (given(SIDECAR, sidecar={"namespaces": ["coatcheck"]}), "the release's own namespace"),
        (given(SIDECAR, sidecar={"namespaces": ["kube-system"]}), "kube-system"),
        (given(SIDECAR, sidecar={"policy": "other"}), "policies has no other.yaml"),
        (given(SIDECAR, sidecar={"proxyUid": 1000}), "nothing would tell the workload from the proxy"),
        (given(SIDECAR, sidecar={"dnsPort": 15443}), "are the same"),
        (given(SIDECAR, admission={"ca": {"key": "PEM"}}), "belong together"),
        (
            given(SIDECAR, monitoring={"serviceMonitor": {"enabled": True}}),
            "monitoring.serviceMonitor is for the gateway",
        ),
    ],
)  # fmt: skip
def test_values_that_would_not_work_are_refused_in_words(helm: Helm, values: Values, said: str) -> None:
    """At install, and not by a pod that does not start."""
    with pytest.raises(HelmRefused, match=re.escape(said)):
        helm.install(values)


@pytest.mark.parametrize(
    "values",
    [
        given(GATEWAY, replicas=2),
        given(GATEWAY, gateway={"replicaCount": 2}),
        given(SHARED, gateway={"sharedState": {"url": "postgresql://db.example?sslmode=disable"}}),
        given(SHARED, gateway={"sharedState": {"url": "postgresql://user:password@db.example"}}),
        given(FLEET, sidecar={"sharedState": {"password": "x"}}),
        given(GATEWAY, image={"name": "x"}),
        given(GATEWAY, signedPolicies={"secret": "x"}),
        given(GATEWAY, image={"pullSecrets": [{"name": "x"}]}),
        given(GATEWAY, vault={"token": "x"}),
        given(GATEWAY, settings={"secret_tll": 30}),
        given(GATEWAY, settings={"secret_ttl": 0}),
        given(GATEWAY, settings={"log_level": "loud"}),
        given(GATEWAY, settings={"vault_token": "hvs.x"}),
        given(GATEWAY, extraEnv=[{"name": "COATCHECK_LOG_LEVEL", "value": "debug"}]),
        given(GATEWAY, extraEnv=[{"value": "x"}]),
        given(GATEWAY, vault={"url": "http://vault.example"}),
        given(GATEWAY, policies={"../x.yaml": "version: 1"}),
        given(GATEWAY, shape="both"),
        given(SIDECAR, sidecar={"proxyUid": 0}),
        given(SIDECAR, sidecar={"resources": {"limit": {}}}),
        given(SIDECAR, admission={"writers": []}),
        given(SIDECAR, monitoring={"rule": {}}),
    ],
)
def test_unknown_keys_and_wrong_values_are_refused_by_the_schema(helm: Helm, values: Values) -> None:
    """A typo must not leave a default in force; plain HTTP to another machine's Vault is no option."""
    with pytest.raises(HelmRefused, match=r"schema|validat"):
        helm.install(values)


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name != "vault_token"])
def test_each_setting_of_the_daemon_is_one_of_the_charts(name: str) -> None:
    """With its type and bounds, so that a mistake is found before a pod crashes."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]
    assert schema["properties"][name].keys() & {"type", "enum"}


def test_helm_says_what_comes_next(helm: Helm) -> None:
    """Where it is, what is missing so that anybody can use it, and how to see what it did."""
    said = helm.install(GATEWAY).notes
    for wanted in (
        "rollout status statefulset/cc",
        "helm -n coatcheck test cc",
        "https://cc-0.coatcheck.svc:9900",
    ):
        assert wanted in said
    assert "gateway.control.from is empty" in said and "gateway.sandboxes.namespaces is empty" in said
    used = given(GATEWAY, gateway={"control": {"from": [{}]}, "sandboxes": {"namespaces": ["agents"]}})
    assert (
        "is empty" not in helm.install(used).notes and "give gateway.clusterIPs" in helm.install(used).notes
    )
    assert "deployment/cc" in helm.install(SHARED).notes
    said = helm.install(SIDECAR).notes
    assert "label namespace agents pod-security" in said and "-n agents rollout restart" in said


def objects_of(schema: dict[str, Any], place: str = "values") -> list[tuple[str, dict[str, Any]]]:
    found = [(place, schema)] if "properties" in schema else []
    for name, part in schema.get("properties", {}).items():
        found += objects_of(part, f"{place}.{name}")
    return found


def test_every_part_of_the_schema_refuses_unknown_keys() -> None:
    """Also those that no test above tries."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    parts = [*objects_of(schema), *schema["definitions"].items()]
    open_ = [
        place
        for place, part in parts
        if "properties" in part and part.get("additionalProperties") is not False
    ]
    assert open_ == []


def test_no_object_of_one_shape_is_in_the_other(helm: Helm) -> None:
    """`shape` chooses the whole."""
    kinds = {name: {each["kind"] for each in helm.install(v).by_path.values()} for name, v in OPTIONS.items()}
    assert "Deployment" not in kinds["the gateway"] and "StatefulSet" not in kinds["the sidecar"]
    assert not any("Webhook" in kind for kind in kinds["monitoring"])
