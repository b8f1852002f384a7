"""The stores that a deployment's settings name; `serve` and the compatibility mode build theirs here.

Vault's client library is imported where Vault is used: it takes a tenth of a daemon's start.
"""

from typing import TYPE_CHECKING

from coatcheck.secrets import SecretStore
from coatcheck.secrets.file import FileStore
from coatcheck.settings.daemon import Settings

if TYPE_CHECKING:
    from coatcheck.secrets.vault_login import Login


def make_stores(settings: Settings) -> dict[str, SecretStore]:
    """The stores that the settings name. Without one, every credential is refused: SECRET_MISSING."""
    stores: dict[str, SecretStore] = {}
    if settings.vault_url is not None:
        from coatcheck.secrets.vault import VaultConfig, VaultStore

        stores["vault"] = VaultStore(
            VaultConfig(
                url=settings.vault_url,
                login=vault_login(settings),
                ca_file=settings.vault_ca_file,
                namespace=settings.vault_namespace,
                timeout_seconds=settings.vault_timeout,
            )
        )
    if settings.secrets_dir is not None:
        stores["file"] = FileStore(settings.secrets_dir)
    return stores


def vault_login(settings: Settings) -> "Login":
    """How the daemon proves itself to Vault. ValueError says which setting is missing."""
    from coatcheck.secrets.vault_login import AppRoleLogin, JwtLogin, KubernetesLogin, TokenLogin

    mount = settings.vault_mount
    match settings.vault_login:
        case "token":
            token = settings.vault_token.get_secret_value() if settings.vault_token else None
            if token is None and settings.vault_token_file is None:
                raise ValueError("vault_login is token: set COATCHECK_VAULT_TOKEN_FILE")
            return TokenLogin(file=settings.vault_token_file, token=token)
        case "approle":
            if not settings.vault_role_id or settings.vault_secret_id_file is None:
                raise ValueError(
                    "vault_login is approle: set COATCHECK_VAULT_ROLE_ID and COATCHECK_VAULT_SECRET_ID_FILE"
                )
            return AppRoleLogin(settings.vault_role_id, settings.vault_secret_id_file, mount or "approle")
        case "jwt":
            if settings.vault_jwt_file is None:
                raise ValueError("vault_login is jwt: set COATCHECK_VAULT_JWT_FILE")
            return JwtLogin(settings.vault_role, settings.vault_jwt_file, mount or "jwt")
        case "kubernetes":
            if settings.vault_jwt_file is not None:
                return KubernetesLogin(settings.vault_role, settings.vault_jwt_file, mount or "kubernetes")
            return KubernetesLogin(settings.vault_role, mount=mount or "kubernetes")
