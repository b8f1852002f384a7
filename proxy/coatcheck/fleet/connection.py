"""A connection to Redis or Valkey: one, with a deadline, verified TLS, and no retries of its own."""

import ssl
import time
from concurrent.futures import Future, wait
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.vault_login import read_material
from coatcheck.settings.shared_state import SharedStateServer

if TYPE_CHECKING:
    from redis import Redis

LEAVING_SECONDS: Final = 5.0
"""So long a daemon that stops waits for a command that runs: several time-outs. An answer that comes byte by
byte has a time-out for each, and must not keep it."""
IDLE_SECONDS: Final = 15.0
"""After so long a connection may have been cut without a word, by Redis (`timeout`) or a load balancer, and a
command on it would fail or wait: a new one is made first."""


class SharedStateDown(Exception):
    """Redis did not do what was asked: gone, slow, refusing us, or read-only. The text names no secret."""


class Connector:
    """Connects within a deadline. Not thread-safe.

    It is done in a thread: resolving a name (getaddrinfo) has no deadline, and ends when it ends. Who comes
    while an attempt lasts waits for that one, so that there never are two.
    """

    def __init__(self, server: SharedStateServer, timeout: float) -> None:
        """`timeout`: seconds, for all of it and for each answer afterwards."""
        self._server, self._timeout = server, timeout
        self._attempt: Future[tuple[Redis, float]] | None = None

    def connect(self) -> "Redis":
        """A client whose one connection stands. SharedStateDown, and whatever redis-py, ssl or the system
        raise."""
        attempt = self._attempt
        if attempt is None or (attempt.done() and _is_stale(attempt)):
            attempt = self._attempt = Future()
            Thread(target=self._run, args=(attempt,), name="shared-state-connect", daemon=True).start()
        wait([attempt], self._timeout)
        if not attempt.done():
            raise SharedStateDown(
                f"the shared state at {self._server}: no connection within {self._timeout:g} s; does its name"
                " resolve?"
            )
        self._attempt = None
        return attempt.result()[0]

    def _run(self, attempt: "Future[tuple[Redis, float]]") -> None:
        try:
            attempt.set_result((_connected(self._server, self._timeout), time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - whoever waits for the attempt is told
            attempt.set_exception(error)


def _is_stale(attempt: "Future[tuple[Redis, float]]") -> bool:
    """Whether it was over before anybody came back for it: what failed then may have been mended since."""
    return attempt.exception() is not None or time.monotonic() - attempt.result()[1] > IDLE_SECONDS


def _connected(server: SharedStateServer, timeout: float) -> "Redis":
    """SharedStateDown when our own side is not in order: the extra, the password, the certificates."""
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise SharedStateDown(
            "shared state needs the extra `fleet`: pip install './coatcheck[fleet]' of a clone"
        ) from None
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # What was sent may have been done, and is never sent twice: the log's number would say so, a
        # renewal's would not.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,  # CLIENT SETINFO is one more command to be allowed, and tells others our version
        "single_connection_client": True,
        "username": server.user,
    }
    if server.password_file is not None:
        try:
            options["password"] = read_material(server.password_file)
        except SecretUnavailable as error:
            raise SharedStateDown(str(error).replace("Vault login file", "shared state's password")) from None
    if server.path:
        options["unix_socket_path"] = server.path
    else:
        options |= {"host": server.host, "port": server.port, "socket_keepalive": True}
    if server.tls:
        options |= {
            "ssl": True,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
            "ssl_ca_certs": str(server.ca_file) if server.ca_file is not None else None,
        }
        if server.certificate is not None:
            options |= {"ssl_certfile": str(server.certificate), "ssl_keyfile": str(server.certificate)}
    try:
        return redis.Redis(**options)
    except redis.RedisError as error:
        raise SharedStateDown(explained(server, error)) from None


def explained(server: SharedStateServer, error: Exception) -> str:
    """In one line for people; redis-py's errors quote no password."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    return f"the shared state at {server}: {text}"
