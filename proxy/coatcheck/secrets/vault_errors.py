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
    match exc:
        case HttpFailure():
            return _of_http(exc, doing)
        case vault.InvalidPath():
            return SecretMissing(f"cannot {doing}: not found (404); the mount must be KV version 2")
        case vault.Forbidden() | vault.Unauthorized():
            return VaultDenied(f"cannot {doing}: permission denied (403); check what Vault allows the daemon")
        case vault.VaultDown() | vault.VaultNotInitialized():
            return VaultUnreachable(f"cannot {doing}: the server is sealed, on standby or not initialised")
        case vault.RateLimitExceeded():
            return SecretUnavailable(f"cannot {doing}: the server's rate limit is used up (429)")
        case vault.InvalidRequest():
            return SecretUnavailable(f"cannot {doing}: the server calls the request invalid (400)")
        case vault.VaultError():
            return SecretUnavailable(f"cannot {doing}: the server failed ({type(exc).__name__})")
        case _:
            return SecretUnavailable(f"cannot {doing}: the answer is unreadable ({type(exc).__name__})")


def _of_http(exc: HttpFailure, doing: str) -> SecretUnavailable:
    kind = SecretUnavailable if exc.connected else VaultUnreachable
    match exc.failure:
        case Failure.SIZE:
            return kind(f"cannot {doing}: the answer is larger than a secret may be")
        case Failure.TIME:
            waiting = "its answer was not complete" if exc.connected else "no connection stood"
            return kind(f"cannot {doing}: {waiting} within the time limit")
        case Failure.TLS:
            return kind(
                f"cannot {doing}: the server did not prove its identity by TLS; check CA file and name"
            )
        case Failure.CONNECTION if not exc.connected:
            return kind(f"cannot {doing}: the server cannot be reached")
        case _:
            return kind(f"cannot {doing}: the connection failed: {exc}")
