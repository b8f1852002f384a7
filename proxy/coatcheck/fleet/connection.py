"""A connection to the fleet's database: one, with a deadline, verified TLS, and no retries of its own."""

import time
from concurrent.futures import Future, wait
from threading import Thread
from typing import TYPE_CHECKING, Final

from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.login_material import read_material
from coatcheck.settings.shared_state import SharedStateServer

if TYPE_CHECKING:
    from coatcheck.fleet.postgres import Connection

LEAVING_SECONDS: Final = 5.0
"""A daemon that stops waits this long for a statement that runs: several time-outs."""
DEFAULT_USER: Final = "coatcheck"
STALE_SECONDS: Final = 15.0
"""A connection that was made this long ago and not fetched may have been cut by a load balancer since."""


class SharedStateDown(Exception):
    """The database did not do what was asked: gone, slow, refusing us, or read-only. The text names no
    secret."""


class Connector:
    """Connects within a deadline. Not thread-safe.

    It is done in a thread: resolving a name (getaddrinfo) has no deadline, and ends when it ends. A caller
    that comes while an attempt lasts waits for that one, so that there never are two.
    """

    def __init__(self, server: SharedStateServer, timeout: float, application: str) -> None:
        """`timeout`: seconds, for all of it. `application`: our name in the database's list."""
        self._server, self._timeout, self._application = server, timeout, application
        self._attempt: Future[tuple[Connection, float]] | None = None

    def connect(self) -> "Connection":
        """A connection that stands. SharedStateDown, and what psycopg, ssl or the system raise."""
        attempt = self._attempt
        if attempt is None or (attempt.done() and _is_stale(attempt)):
            if attempt is not None and attempt.exception() is None:
                attempt.result()[0].close()
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

    def _run(self, attempt: "Future[tuple[Connection, float]]") -> None:
        try:
            attempt.set_result((_connected(self._server, self._application), time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - the caller that waits for the attempt is told
            attempt.set_exception(error)


def _is_stale(attempt: "Future[tuple[Connection, float]]") -> bool:
    """Whether it was over before anybody came back for it: what failed then may have been mended since."""
    return attempt.exception() is not None or time.monotonic() - attempt.result()[1] > STALE_SECONDS


def _connected(server: SharedStateServer, application: str) -> "Connection":
    """SharedStateDown when our own side is not in order: the extra, the credentials."""
    try:
        from coatcheck.fleet.postgres import connect
    except ImportError:
        raise SharedStateDown(
            "shared state needs the extra `fleet`: pip install './coatcheck[fleet]' of a clone"
        ) from None
    try:
        user = server.user if server.user_file is None else read_material(server.user_file)
        password = read_material(server.password_file) if server.password_file is not None else ""
    except SecretUnavailable as error:
        raise SharedStateDown(
            str(error).replace("Vault login file", "shared state's user or password file")
        ) from None
    return connect(server, user or DEFAULT_USER, password, application)


def explained(server: SharedStateServer, error: Exception) -> str:
    """In one line for people; PostgreSQL's errors quote no password."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    return f"the shared state at {server}: {text}"
