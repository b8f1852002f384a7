"""templates/sidecar/deployment.yaml: the webhook."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import SIDECAR, given


def test_by_default_two_webhooks_run_as_nobody_without_any_token(helm: Helm) -> None:
    """They ask the API server nothing: an attacker who took one over could not write there."""
    spec = helm.install(SIDECAR).of("Deployment")["spec"]
    pod = spec["template"]["spec"]
    assert spec["replicas"] == 2 and spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_a_webhook_that_goes_answers_until_nobody_asks_it(helm: Helm) -> None:
    """A question to one that is gone is a pod that is refused."""
    [container] = helm.install(SIDECAR).of("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", "5"]}}}


def test_it_is_told_where_its_files_are_and_by_which_name_it_is_called(helm: Helm) -> None:
    """The name of its Service, which its certificate is for."""
    made = helm.install(given(SIDECAR, admission={"port": 9443}))
    [container] = made.of("Deployment")["spec"]["template"]["spec"]["containers"]
    options = dict(zip(container["args"][2::2], container["args"][3::2], strict=True))
    assert options["--name"] == "cc-admission.coatcheck.svc" and options["--port"] == "9443"
    mounts = [each["mountPath"] for each in container["volumeMounts"]]
    assert options["--ca-directory"] in mounts
    assert options["--configuration"].rpartition("/")[0] in mounts
    assert container["ports"] == [{"name": "https", "containerPort": 9443}]


def test_another_configuration_starts_other_pods(helm: Helm) -> None:
    """It is read at start."""
    one, other = (
        helm.install(values).of("Deployment")["spec"]["template"]["metadata"]["annotations"]
        for values in (SIDECAR, given(SIDECAR, sidecar={"proxyUid": 7000}))
    )
    assert one != other


def test_the_webhooks_own_image_may_come_from_a_private_registry(helm: Helm) -> None:
    """The pods that it changes name their own."""
    made = helm.install(given(SIDECAR, image={"pullSecrets": ["registry"]}))
    assert made.of("Deployment")["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert "registry" not in str(made.of("ConfigMap", "cc-admission"))
