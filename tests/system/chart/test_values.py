"""values.yaml: no key without an effect, none that is not tried; and what holds for all containers."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.system.chart.cluster import Json
from tests.system.chart.helm import CHART, Helm, Objects
from tests.system.chart.test_chart import OPTIONS
from tests.system.chart.values import POLICY, Values

TESTS = CHART.parent.parent / "tests/system/chart"
DEFAULTS: Json = YAML(typ="safe", pure=True).load(CHART / "values.yaml")

WISHES: tuple[Values, ...] = (
    {
        "image": {
            "repository": "registry.example/c", "tag": "a-tag", "pullPolicy": "Never",
            "pullSecrets": ["puller"],
        },
        "policies": {"default.yaml": POLICY},
        "nameOverride": "kept-apart",
        "commonLabels": {"team": "security"},
        "extraEnv": [{"name": "GOLDEN", "value": "retriever"}],
        "platform": {"issuer": "https://issuer.example", "jwks": "the-jwks", "audience": "an-audience"},
        "vault": {
            "url": "https://vault.example", "login": "jwt", "role": "a-role", "mount": "a-mount",
            "namespace": "a-namespace", "audience": "vaults", "ca": "vaults-ca",
        },
        "upstreamCa": "the-upstreams-ca",
        "settings": {"secret_ttl": 4711},
        "gateway": {
            "proxyPort": 20001,
            "control": {
                "port": 20002, "secret": "controls-secret", "clientCa": "callers-ca", "grants": "# granted\n",
                "from": [{"podSelector": {"matchLabels": {"from": "here"}}}],
            },
            "state": {"size": "7Gi", "storageClass": "fast-disk"},
            "sandboxes": {"namespaces": ["fenced"]},
            "clusterIPs": ["10.96.0.77"],
            "serviceAccount": {"name": "somebody", "annotations": {"cloud.example/role": "a-cloud-role"}},
            "service": {"annotations": {"cloud.example/balancer": "an-internal-one"}},
            "podAnnotations": {"mesh.example/inject": "no-mesh"},
            "podLabels": {"cost-centre": "cc-4711"},
            "nodeSelector": {"pool": "gateways"},
            "tolerations": [{"key": "reserved", "operator": "Equal", "value": "for-gateways"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "arch", "operator": "Exists"}]}],
            }}},
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "zone-of-gateways", "whenUnsatisfiable": "ScheduleAnyway",
            }],
            "priorityClassName": "gateways-first",
            "terminationGraceSeconds": 4712,
            "resources": {
                "requests": {"cpu": "1001m", "memory": "1002Mi"}, "limits": {"memory": "1003Mi"},
            },
        },
        "monitoring": {
            "serviceMonitor": {
                "enabled": True, "interval": "77s", "labels": {"monitor": "mine"}, "tokenSecret": "a-token",
                "caSecret": "a-ca",
            },
            "rules": {"enabled": True, "labels": {"rules": "mine"}},
            "dashboard": {"enabled": True, "labels": {"grafana_dashboard": "mine"}},
        },
    },
    {
        "image": {"digest": f"sha256:{'7' * 64}"},
        "signedPolicies": {"trustRoot": "a-trust-root", "bundle": "a-bundle"},
        "vault": {"url": "https://vault.example"},
        "gateway": {
            "replicas": 61,
            "sharedState": {
                "url": "postgresql://db.example", "name": "a-fleet", "secret": "a-secret",
                "credentials": "rotating", "migrator": "carpenter", "ca": "database-ca",
            },
            "origin": "certificate",
            "proxyTls": {"secret": "proxys-secret", "clientCa": "sandboxes-ca"},
            "control": {"secret": "x", "grants": "# x\n"},
        },
    },
    {
        "signedPolicies": {"trustRoot": "a-trust-root", "configMap": "kept-by-somebody"},
        "vault": {"url": "https://vault.example"},
        "platform": {"jwks": "x"},
        "gateway": {
            "control": {"secret": "x", "grants": "# x\n"},
            "serviceAccount": {"create": False, "name": "not-ours"},
        },
    },
    {
        "fullnameOverride": "another-name",
        "policies": {"default.yaml": POLICY},
        "vault": {"url": "https://vault.example"},
        "platform": {"jwksUrl": "https://oidc.example/keys"},
        "gateway": {"control": {"secret": "x", "grants": "# x\n"}},
    },
    {
        "shape": "sidecar",
        "policies": {"other.yaml": POLICY},
        "vault": {"url": "https://vault.example"},
        "platform": {"jwks": "x"},
        "sidecar": {
            "namespaces": ["in-here"], "policy": "other", "proxyUid": 20003, "workloadUid": 20004,
            "transparentPort": 20005, "dnsPort": 20006, "stateSize": "1004Mi", "sessionMaxAge": 4713,
            "tokenSeconds": 4714,
            "sharedState": {
                "url": "postgresql://db.example", "name": "pods-fleet", "secret": "pods-own",
                "credentials": "pods-rotating", "ca": "database-ca",
            },
            "resources": {
                "requests": {"cpu": "1005m", "memory": "1006Mi"}, "limits": {"memory": "1007Mi"},
            },
            "redirectResources": {
                "requests": {"cpu": "1008m", "memory": "1009Mi"}, "limits": {"memory": "1010Mi"},
            },
        },
        "admission": {
            "replicas": 13, "port": 20007, "ca": {"certificate": "a-certificate", "key": "a-key"},
            "writers": ["the-writers"], "refusedAnnotations": ["refused.example/"],
            "allowedResources": ["allowed.example/gpu"],
            "podAnnotations": {"mesh.example/inject": "never"},
            "podLabels": {"cost-centre": "cc-4712"},
            "nodeSelector": {"pool": "webhooks"},
            "tolerations": [{"key": "reserved", "operator": "Equal", "value": "for-webhooks"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}],
            }}},
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "zone-of-webhooks", "whenUnsatisfiable": "ScheduleAnyway",
            }],
            "priorityClassName": "webhooks-first",
            "resources": {
                "requests": {"cpu": "1011m", "memory": "1012Mi"}, "limits": {"memory": "1013Mi"},
            },
        },
    },
)  # fmt: skip
"""Of each key one value that nothing else has; in several, as not all go together."""
SEEN_BY_ITS_OBJECTS = {"shape", "gateway.origin", "vault.login"}
"""Words that are not written down as they are: their own tests look at what they make."""


def leaves(values: Json, place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def wished(place: str) -> list[tuple[int, Any]]:
    """Which wishes have something for it."""
    found = []
    for number, values in enumerate(WISHES):
        value: Any = values
        for name in place.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found.append((number, value))
    return found


@pytest.fixture(scope="module")
def made(helm: Helm) -> list[str]:
    """What each of the wishes makes, as text."""
    return [json.dumps(dict(helm.install(values).by_path), sort_keys=True) for values in WISHES]


@pytest.mark.parametrize(("place", "default"), leaves(DEFAULTS), ids=[place for place, _ in leaves(DEFAULTS)])
def test_a_key_is_tried_and_does_something(made: list[str], place: str, default: object) -> None:
    """Its value arrives in an object: a key that leads nowhere would be believed."""
    tried = wished(place)
    assert tried and any(value != default for _, value in tried)
    if place not in SEEN_BY_ITS_OBJECTS and not isinstance(default, bool):
        for number, value in tried:
            assert all(arrived(each, made[number]) for each in scalars(value)), value


def scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from scalars(each)
    elif isinstance(value, list):
        for each in value:
            yield from scalars(each)
    else:
        yield str(value)


def arrived(value: str, text: str) -> bool:
    if value.isdecimal():
        return re.search(rf"(?<![0-9a-zA-Z]){value}(?![0-9a-zA-Z])", text) is not None
    escaped = json.dumps(value)[1:-1]
    return escaped in text or json.dumps(escaped)[1:-1] in text or encoded(value) in text


def encoded(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def test_nothing_is_tried_that_is_no_key() -> None:
    """But for what the installer names: policies, settings, labels."""
    known = {place for place, _ in leaves(DEFAULTS)}
    free = tuple(f"{place}." for place, value in leaves(DEFAULTS) if value == {})
    tried = {place for values in WISHES for place, _ in leaves(values)}
    assert {each for each in tried - known if not each.startswith(free)} == set()


def pods(objects: Objects) -> Iterator[tuple[Json, Json]]:
    """Spec and container, of every workload and of what the webhook adds."""
    for each in objects.by_path.values():
        if each["kind"] in ("StatefulSet", "Deployment"):
            spec = each["spec"]["template"]["spec"]
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                yield spec, container
        elif each["kind"] == "ConfigMap" and "admission.yaml" in each["data"]:
            added = YAML(typ="safe", pure=True).load(each["data"]["admission.yaml"])["fragment"]
            for container in added["initContainers"]:
                yield {"securityContext": {}, "automountServiceAccountToken": False}, container


@pytest.mark.parametrize("values", OPTIONS.values(), ids=OPTIONS)
def test_every_container_of_every_option_is_confined_and_bounded(helm: Helm, values: Values) -> None:
    """Read-only root, no way up, no capability and a user that is not root, but for the redirect alone; what
    it asks for and a bound on its memory; nobody has the API server's token."""
    seen = 0
    for spec, container in pods(helm.install(values)):
        seen += 1
        secured = {**spec["securityContext"], **container["securityContext"]}
        redirects = container["name"] == "coatcheck-redirect"
        powers = {"drop": ["ALL"], "add": ["NET_ADMIN"]} if redirects else {"drop": ["ALL"]}
        assert secured["capabilities"] == powers and secured["seccompProfile"] == {"type": "RuntimeDefault"}
        assert secured["readOnlyRootFilesystem"] is True and secured["allowPrivilegeEscalation"] is False
        assert not secured.get("privileged") and secured["runAsNonRoot"] is not redirects
        assert (secured["runAsUser"] == 0) is redirects
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}  # no CPU limit: it would only throttle
        assert spec["automountServiceAccountToken"] is False
    assert seen


def test_every_template_has_its_test_file_and_begins_with_the_defaults() -> None:
    """templates/gateway/service.yaml -> test_gateway_service.py."""
    templates = [*CHART.glob("templates/*/*.yaml")]
    assert len(templates) > 15
    for template in templates:
        file = TESTS / f"test_{template.parent.name}_{template.stem}.py"
        _, _, first = file.read_text().partition("\ndef test_")
        name = first.partition("(")[0]
        assert name.startswith("by_default"), f"{file.name}: test_{name}"
