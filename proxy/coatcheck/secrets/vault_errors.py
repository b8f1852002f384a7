"""Every way in which hvac, HTTP and Vault can fail, in the store's three words.

Foreign exceptions stop here: hvac's carry the response body, so nothing of them (not even as `__context__`)
goes further than their kind.
"""

from collections.abc import Callable

import hvac.exceptions as vault

from coatcheck.platform.http_client import Deadline, Failure, HttpFailure
from coatcheck.secrets import SecretMissing, SecretUnavailable


class VaultDenied(SecretUnavailable):
    """401 or 403: the token is dead, or its policies do not allow this. The store tells these two apart."""

    kind = "denied"


class VaultUnreachable(SecretUnavailable):
    """Not one path's fault: no connection, sealed, not initialised."""

    kind = "unreachable"


class VaultBusy(SecretUnavailable):
    """Every thread was busy until the time was up: nobody's fault that we know."""

    kind = "busy"


def ask[V](deadline: Deadline, doing: str, work: Callable[[], V]) -> V:
    """`work()` on this thread, within the deadline. `doing` completes "Vault …: cannot {doing}".

    Raises:
        SecretUnavailable: one of the kinds above, or SecretMissing, or itself.
    """
    if deadline.left() <= 0:
        raise VaultBusy(f"cannot {doing}: no thread was free in time")
    failure: SecretUnavailable
    try:
        return work()
    except SecretUnavailable as refusal:
        failure = refusal
    except Exception as exc:  # noqa: BLE001 (fail closed)
        failure = explain(exc, doing)
    raise failure  # outside of the handler, so that it has no context


def explain(exc: Exception, doing: str) -> SecretUnavailable:
    """What happened, why, what to do next; without a word of the answer."""
    login = not doing.startswith("read ")
    match exc:
        case HttpFailure():
            return _of_http(exc, doing)
        case vault.InvalidPath():
            return _not_found(exc, doing, login)
        case vault.Forbidden() | vault.Unauthorized():
            return VaultDenied(f"cannot {doing}: permission denied (403)", _denied(doing, login))
        case vault.VaultDown() | vault.VaultNotInitialized():
            return VaultUnreachable(
                f"cannot {doing}: the server is sealed, on standby or not initialised",
                "look with vault status; vault operator unseal opens a sealed one",
            )
        case vault.RateLimitExceeded():
            return SecretUnavailable(f"cannot {doing}: the server's rate limit is used up (429)")
        case vault.InvalidRequest():
            return SecretUnavailable(
                f"cannot {doing}: the server calls the request invalid (400)",
                "check the login's role, secret ID or JWT; if the server speaks TLS there, write https:// in"
                " COATCHECK_VAULT_URL"
                if login
                else "check mount and path in the policy",
            )
        case vault.VaultError():
            return SecretUnavailable(f"cannot {doing}: the server failed ({type(exc).__name__})")
        case _:
            return SecretUnavailable(
                f"cannot {doing}: the answer is unreadable ({type(exc).__name__})",
                "check that COATCHECK_VAULT_URL leads to Vault or OpenBao",
            )


def _not_found(exc: vault.InvalidPath, doing: str, login: bool) -> SecretUnavailable:
    """404: Vault says so of a mount that does not exist, a KV version 1, and a secret that is not there."""
    no_mount = any("no handler for route" in str(each) for each in exc.errors or ())
    if login:
        return SecretUnavailable(
            f"cannot {doing}: not found (404)",
            "check COATCHECK_VAULT_MOUNT against vault auth list"
            if no_mount
            else "check that COATCHECK_VAULT_URL leads to Vault or OpenBao, without a path",
        )
    if no_mount:
        return SecretMissing(
            f"cannot {doing}: nothing is mounted there (404)",
            "vault secrets list shows the mounts; correct the reference in the policy",
        )
    return SecretMissing(f"cannot {doing}: not found (404); the mount must be KV version 2")


def _denied(doing: str, login: bool) -> str:
    if login:
        return (
            "the token is wrong, expired or another server's: give a new one in the file that"
            " COATCHECK_VAULT_TOKEN_FILE names, or check the login's role"
        )
    mount, _, path = doing.removeprefix("read ").removesuffix(" from Vault").partition("/")
    return (
        f'give the daemon\'s policy in Vault: path "{mount}/data/{path}" {{ capabilities = ["read"] }};'
        " Vault says the same of a mount or path that is misspelt in our policy"
    )


def _of_http(exc: HttpFailure, doing: str) -> SecretUnavailable:
    kind = SecretUnavailable if exc.connected else VaultUnreachable
    match exc.failure:
        case Failure.SIZE:
            return kind(f"cannot {doing}: the answer is larger than a secret may be")
        case Failure.TIME:
            waiting = "its answer was not complete" if exc.connected else "no connection stood"
            return kind(
                f"cannot {doing}: {waiting} within the time limit",
                "check the host in COATCHECK_VAULT_URL and the firewall on the way",
            )
        case Failure.TLS:
            return kind(
                f"cannot {doing}: the server did not prove its identity by TLS: {exc}",
                "check COATCHECK_VAULT_CA_FILE and the name in COATCHECK_VAULT_URL; a server without TLS on"
                " loopback is written http://",
            )
        case Failure.CONNECTION if not exc.connected:
            return kind(
                f"cannot {doing}: the server cannot be reached: {exc}",
                "check host and port in COATCHECK_VAULT_URL, and that Vault runs there",
            )
        case _:
            return kind(
                f"cannot {doing}: the connection failed: {exc}",
                "check that COATCHECK_VAULT_URL leads to Vault or OpenBao, and its https:// or http://",
            )
