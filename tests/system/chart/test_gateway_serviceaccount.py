"""templates/gateway/serviceaccount.yaml."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import GATEWAY, given


def test_by_default_it_has_no_token_and_no_right(helm: Helm) -> None:
    """Vault knows it by name; the cluster grants it nothing."""
    made = helm.install(GATEWAY)
    assert made.of("ServiceAccount")["automountServiceAccountToken"] is False
    assert not any("Role" in each["kind"] for each in made.by_path.values())


def test_an_account_that_is_there_already_is_used(helm: Helm) -> None:
    """Its owner says what it may."""
    made = helm.install(given(GATEWAY, gateway={"serviceAccount": {"create": False, "name": "theirs"}}))
    assert made.all("ServiceAccount") == []
    assert made.of("StatefulSet")["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"
