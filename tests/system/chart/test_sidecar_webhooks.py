"""templates/sidecar/webhooks.yaml: what the API server asks the webhook, and the CA that it knows it by."""

import base64

from cryptography import x509

from tests.system.chart.cluster import Json
from tests.system.chart.helm import Helm, Objects
from tests.system.chart.values import SIDECAR, given


def hooks(made: Objects) -> list[Json]:
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return [hook for kind in kinds for hook in made.of(kind)["webhooks"]]


def test_by_default_whatever_goes_wrong_is_a_refusal(helm: Helm) -> None:
    """A webhook that is down, slow or broken lets nothing through (failurePolicy), in a bounded time."""
    for hook in hooks(helm.install(SIDECAR)):
        assert hook["failurePolicy"] == "Fail" and hook["timeoutSeconds"] <= 10
        assert hook["matchPolicy"] == "Equivalent" and hook["sideEffects"] == "None"


def test_no_label_of_a_pod_lets_it_through(helm: Helm) -> None:
    """By the namespace's name, which the API server writes itself."""
    for hook in hooks(helm.install(SIDECAR)):
        assert "objectSelector" not in hook
        assert hook["namespaceSelector"] == {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["agents"]}
            ]
        }


def test_pods_are_looked_at_when_made_and_when_changed_and_entered(helm: Helm) -> None:
    """Creation twice: to add, and last of all to look at what others made of it."""
    mutating, pods, configuration = hooks(helm.install(SIDECAR))
    assert mutating["rules"][0]["operations"] == ["CREATE"] and mutating["reinvocationPolicy"] == "IfNeeded"
    asked = {
        (what, how) for rule in pods["rules"] for what in rule["resources"] for how in rule["operations"]
    }
    assert asked >= {
        ("pods", "CREATE"),
        ("pods", "UPDATE"),
        ("pods/ephemeralcontainers", "UPDATE"),
        ("pods/exec", "CONNECT"),
        ("pods/attach", "CONNECT"),
    }
    # Deleting it must stay possible: a namespace whose ConfigMap cannot go never ends.
    assert configuration["rules"][0]["operations"] == ["CREATE", "UPDATE"]
    assert configuration["matchConditions"][0]["expression"] == "request.name == 'coatcheck-sidecar'"


def test_the_ca_is_made_once_and_its_key_is_only_in_the_secret(helm: Helm) -> None:
    """The webhook makes its certificates from it; the API server needs the public half."""
    made = helm.install(given(SIDECAR, sidecar={"policy": "default"}))
    secret = made.of("Secret")["data"]
    bundles = {hook["clientConfig"]["caBundle"] for hook in hooks(made)}
    assert bundles == {secret["ca.crt"]}
    authority = x509.load_pem_x509_certificate(base64.b64decode(secret["ca.crt"]))
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    others = [each for path, each in made.by_path.items() if "/secrets/" not in path]
    assert secret["ca.key"] not in str(others)


def test_an_upgrade_keeps_the_ca(helm: Helm) -> None:
    """By what stands in the cluster: webhooks and API server go on understanding each other."""
    before, after = helm.upgrade(SIDECAR, given(SIDECAR, sidecar={"proxyUid": 7000}))
    assert before.of("Secret")["data"] == after.of("Secret")["data"]
    assert {hook["clientConfig"]["caBundle"] for hook in hooks(after)} == {
        after.of("Secret")["data"]["ca.crt"]
    }
    changed = after.of("ConfigMap", "cc-admission")["data"]["admission.yaml"]
    assert "proxy_uid: 7000" in changed


def test_a_ca_that_is_given_is_taken(helm: Helm) -> None:
    """For clusters whose charts are rendered without a cluster (GitOps)."""
    made = helm.install(given(SIDECAR, admission={"ca": {"certificate": "CERTIFICATE", "key": "KEY"}}))
    assert base64.b64decode(made.of("Secret")["data"]["ca.key"]) == b"KEY"
    assert {base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in hooks(made)} == {b"CERTIFICATE"}


def test_the_service_that_is_asked_exists(helm: Helm) -> None:
    """By name, namespace and port."""
    made = helm.install(SIDECAR)
    for hook in hooks(made):
        service = hook["clientConfig"]["service"]
        known = made.of("Service", service["name"], service["namespace"])
        assert service["port"] in [each["port"] for each in known["spec"]["ports"]]
