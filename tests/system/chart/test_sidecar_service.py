"""templates/sidecar/service.yaml."""

from tests.system.chart.helm import Helm
from tests.system.chart.values import SIDECAR


def test_by_default_it_leads_to_the_webhooks(helm: Helm) -> None:
    """At the port that the API server is told."""
    made = helm.install(SIDECAR)
    service = made.of("Service")["spec"]
    labels = made.of("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert service["ports"] == [{"name": "https", "port": 443, "targetPort": "https"}]
