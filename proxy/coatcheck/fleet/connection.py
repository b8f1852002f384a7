"""A connection to Redis or Valkey: one, with a deadline, verified TLS, and no retries of its own."""

import ssl
from typing import TYPE_CHECKING, Any, Final

from coatcheck.shared_state_settings import SharedStateServer
from coatcheck.stores import SecretUnavailable
from coatcheck.stores.vault_login import read_material

if TYPE_CHECKING:
    from redis import Redis

LEAVING_SECONDS: Final = 5.0
"""So long a daemon that stops waits for a command that runs: several time-outs. A name that is being resolved
has none (getaddrinfo), and must not keep it."""


class SharedStateDown(Exception):
    """Redis did not do what was asked: gone, slow, refusing us, or read-only. The text names no secret."""


def connect(server: SharedStateServer, timeout: float) -> "Redis":
    """A client with one connection, opened at its first command. `timeout`: seconds for each answer.

    SharedStateDown when our own side is not in order: the extra, the password, the certificates.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise SharedStateDown(
            "shared state needs the extra `fleet`: pip install 'coatcheck[fleet]'"
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
