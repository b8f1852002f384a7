"""How the daemon proves itself to Vault or OpenBao: one function a login method.

Login material is read anew, from its file, for each login: Kubernetes rotates projected tokens about
every hour, and a rotated secret_id must work without a restart.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hvac
from hvac.exceptions import Forbidden, InternalServerError, InvalidRequest, Unauthorized

from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.login_material import read_material

KUBERNETES_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Where Kubernetes projects a pod's service account token."""


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A token that somebody else made: from a file (read anew at each login) or as a value."""

    file: Path | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AppRoleLogin:
    role_id: str
    secret_id_file: Path
    mount: str = "approle"


@dataclass(frozen=True, slots=True)
class JwtLogin:
    """A JWT of the platform, checked by Vault's own keys or discovery for the role."""

    role: str
    token_file: Path
    mount: str = "jwt"


@dataclass(frozen=True, slots=True)
class KubernetesLogin:
    """A service account token, which Vault shows to the cluster's TokenReview for the role."""

    role: str
    token_file: Path = KUBERNETES_TOKEN
    mount: str = "kubernetes"


type Login = TokenLogin | AppRoleLogin | JwtLogin | KubernetesLogin


@dataclass(frozen=True, slots=True)
class VaultToken:
    """What a login gave."""

    value: str = field(repr=False)
    ttl: float
    """Seconds it had when it was obtained; 0 means that it does not expire."""
    renewable: bool
    ours: bool
    """We made it by logging in, so we end it when we stop."""
    obtained_at: float
    """Monotonic seconds."""

    def renewed(self, ttl: float, renewable: bool) -> "VaultToken":
        return VaultToken(self.value, ttl, renewable, self.ours, time.monotonic())

    @property
    def expires_at(self) -> float:
        """Monotonic seconds; infinity for a token that does not expire."""
        return self.obtained_at + self.ttl if self.ttl > 0 else float("inf")


type Connect = Callable[[str], hvac.Client]
"""Makes a client that presents this token; the empty string for none."""


def log_in(connect: Connect, login: Login) -> VaultToken:
    """Log in by the configured method. Blocks.

    Raises:
        SecretUnavailable: the login material cannot be read.
        hvac.exceptions.VaultError, HttpFailure: Vault refused, or cannot be reached.
    """
    match login:
        case TokenLogin():
            return token_login(connect, login)
        case AppRoleLogin():
            return approle_login(connect, login)
        case JwtLogin():
            return jwt_login(connect, login)
        case KubernetesLogin():
            return kubernetes_login(connect, login)


def token_login(connect: Connect, login: TokenLogin) -> VaultToken:
    """No login at all: look at the given token's time to live. It fails if the token is dead."""
    value = read_material(login.file) if login.file is not None else (login.token or "")
    if not value:
        raise SecretUnavailable("no Vault token is configured; name a token file in the settings")
    data = mapping(mapping(connect(value).auth.token.lookup_self()).get("data"))
    return VaultToken(value, seconds(data.get("ttl")), data.get("renewable") is True, False, time.monotonic())


def approle_login(connect: Connect, login: AppRoleLogin) -> VaultToken:
    """`auth/<mount>/login` with role_id and the secret_id in its file."""
    secret_id = read_material(login.secret_id_file)
    return _obtained(
        connect("").auth.approle.login(
            role_id=login.role_id, secret_id=secret_id, use_token=False, mount_point=login.mount
        )
    )


def jwt_login(connect: Connect, login: JwtLogin) -> VaultToken:
    """`auth/<mount>/login` with the JWT in its file."""
    jwt = read_material(login.token_file)
    return _obtained(
        connect("").auth.jwt.jwt_login(role=login.role, jwt=jwt, use_token=False, path=login.mount)
    )


def kubernetes_login(connect: Connect, login: KubernetesLogin) -> VaultToken:
    """`auth/<mount>/login` with the pod's service account token."""
    jwt = read_material(login.token_file)
    return _obtained(
        connect("").auth.kubernetes.login(role=login.role, jwt=jwt, use_token=False, mount_point=login.mount)
    )


def renew(connect: Connect, token: VaultToken) -> VaultToken | None:
    """The same token with a new time to live, or None when Vault refuses to renew it. Blocks."""
    try:
        answer = connect(token.value).auth.token.renew_self()
    except (InvalidRequest, Unauthorized, Forbidden, InternalServerError):
        return None  # OpenBao answers 500 to "past the max TTL, cannot renew"
    auth = mapping(mapping(answer).get("auth"))
    return token.renewed(seconds(auth.get("lease_duration")), auth.get("renewable") is True)


def mapping(value: Any) -> dict[str, Any]:
    """`value` if Vault sent an object where it should.

    Raises:
        SecretUnavailable: it did not; the message does not quote it.
    """
    if not isinstance(value, dict):
        raise SecretUnavailable("Vault's answer does not have the documented form")
    return value


def seconds(value: Any) -> float:
    """A time to live as Vault sends it.

    Raises:
        SecretUnavailable: it is no number of seconds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SecretUnavailable("the time to live in Vault's answer is not a number")
    return float(value)


def _obtained(answer: Any) -> VaultToken:
    auth = mapping(mapping(answer).get("auth"))
    value = auth.get("client_token")
    if not isinstance(value, str) or not value or not value.isprintable():
        raise SecretUnavailable("Vault's answer to the login holds no token")
    return VaultToken(
        value, seconds(auth.get("lease_duration")), auth.get("renewable") is True, True, time.monotonic()
    )
