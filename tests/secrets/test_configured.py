"""Settings become stores, and what is missing is named."""

from pathlib import Path
from typing import Any

import pytest

from coatcheck.secrets.configured import make_stores, vault_login
from coatcheck.secrets.vault_login import AppRoleLogin, JwtLogin, KubernetesLogin, TokenLogin
from coatcheck.settings.daemon import Settings

FILE = Path("/run/secrets/login")


def settings(**given: Any) -> Settings:
    return Settings(**given)


def test_only_what_the_settings_name_is_there(tmp_path: Path) -> None:
    """Without a store every credential is refused; none is made up."""
    assert make_stores(settings()) == {}
    assert set(make_stores(settings(secrets_dir=tmp_path))) == {"file"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"vault_login": "token", "vault_token_file": FILE}, TokenLogin),
        ({"vault_login": "approle", "vault_role_id": "r", "vault_secret_id_file": FILE}, AppRoleLogin),
        ({"vault_login": "jwt", "vault_jwt_file": FILE}, JwtLogin),
        ({"vault_login": "kubernetes"}, KubernetesLogin),
    ],
)
def test_each_login_method_can_be_configured(given: dict[str, Any], expected: type) -> None:
    """The method that the settings name is the one that is used."""
    assert isinstance(vault_login(settings(**given)), expected)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"vault_login": "token"}, "COATCHECK_VAULT_TOKEN_FILE"),
        ({"vault_login": "approle", "vault_role_id": "r"}, "COATCHECK_VAULT_SECRET_ID_FILE"),
        ({"vault_login": "jwt"}, "COATCHECK_VAULT_JWT_FILE"),
    ],
)
def test_a_missing_setting_is_named(given: dict[str, Any], named: str) -> None:
    """The error says which variable to set."""
    with pytest.raises(ValueError, match=named):
        vault_login(settings(**given))
