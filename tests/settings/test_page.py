"""Logging in by OpenID Connect is set up whole, over TLS, or not at all."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from coatcheck.settings.page import OidcClient, PageSettings

ISSUER = "https://id.example:8443/realms/ops"


def test_a_client_of_a_provider() -> None:
    """Its secret and roots may be left out; without a provider there is none."""
    settings = PageSettings(page_oidc_issuer=ISSUER, page_oidc_client_id="coatcheck")
    assert settings.page_oidc == OidcClient(ISSUER, "coatcheck")
    assert OidcClient(ISSUER, "coatcheck").host == "id.example:8443"
    assert PageSettings().page_oidc is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"page_oidc_issuer": ISSUER}, "belong together"),
        ({"page_oidc_client_id": "x"}, "belong together"),
        ({"page_oidc_client_secret_file": Path("x")}, "page_oidc_client_secret_file has no effect"),
        ({"page_oidc_ca_file": Path("x")}, "page_oidc_ca_file has no effect"),
        ({"page_oidc_issuer": "http://id.example", "page_oidc_client_id": "x"}, "must look like https://"),
        ({"page_oidc_issuer": "https://x:99999/", "page_oidc_client_id": "x"}, "must look like https://"),
        ({"page_oidc_issuer": f"{ISSUER}?a=b", "page_oidc_client_id": "x"}, "must look like https://"),
    ],
    ids=str,
)
def test_what_is_half_or_in_the_clear_is_refused(given: dict[str, object], says: str) -> None:
    """And the message says which setting."""
    with pytest.raises(ValidationError, match=says):
        PageSettings.model_validate(given)
