"""psycopg, as far as we use it: connections that verify, have deadlines, and read no environment."""

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, override

import certifi
import psycopg
from psycopg.abc import RV, PQGen
from psycopg.rows import TupleRow

from coatcheck.settings.shared_state import SharedStateServer

logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # what it would log is raised, too

CONNECT_SECONDS: Final = 10
"""For one host. The caller waits for less (`Connector`); this ends an attempt that nobody waits for."""
IDLE_IN_TRANSACTION: Final = "2s"
"""A daemon that is stopped between two statements holds the fleet's row for no longer than this."""

_NO_FILE: Final = "/dev/null/none"
"""libpq takes a certificate from the home directory unless it is given another path."""

type Row = tuple[Any, ...]


class Connection(psycopg.Connection[TupleRow]):
    """psycopg's own, in autocommit, whose waits end at a deadline."""

    deadline = float("inf")
    """Monotonic seconds. After that a wait raises TimeoutError, and the connection is of no more use."""

    @override
    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        if timeout is not None or self.deadline == float("inf"):
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, max(0.0, self.deadline - time.monotonic()))
        except Exception:
            if time.monotonic() < self.deadline:
                raise
            self.pgconn.finish()
            raise TimeoutError("no answer in time") from None

    def together(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[list[Row]]:
        """All of them in one round trip; the rows of each."""
        with self.pipeline():
            cursors = [self.execute(statement.encode(), about) for statement, about in statements]
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


def connect(server: SharedStateServer, user: str, password: str, application: str) -> Connection:
    """A connection that stands. psycopg.Error."""
    hosts = [server.directory] if server.directory else [host for host, _ in server.hosts]
    # All that libpq would take from the environment or the home directory is given.
    given: dict[str, Any] = {
        "host": ",".join(hosts),
        "port": ",".join(str(port) for _, port in server.hosts),
        "dbname": server.database,
        "user": user,
        "password": password,
        "passfile": "/dev/null",
        "hostaddr": "",
        "connect_timeout": CONNECT_SECONDS,
        "target_session_attrs": "read-write",
        "application_name": application,
        "client_encoding": "UTF8",
        "gssencmode": "disable",
        "sslmode": "verify-full" if server.verified else "disable",
        "sslrootcert": str(server.ca_file or ssl.get_default_verify_paths().cafile or certifi.where()),
        "sslcert": str(server.certificate or _NO_FILE),
        "sslkey": str(server.certificate or _NO_FILE),
        "ssl_min_protocol_version": "TLSv1.2",
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
        # Whatever the role's own settings say, what is answered is on disk and on a synchronous standby.
        "options": "-c synchronous_commit=on -c default_transaction_isolation=read\\ committed"
        f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION} -c search_path=pg_catalog"
        " -c statement_timeout=0 -c lock_timeout=5s",
    }
    return Connection.connect("", autocommit=True, **given)


def on_notify(connection: Connection, callback: Callable[[str], None]) -> None:
    """Call it with what a notification says as soon as one is read, in the middle of an answer, too."""
    connection.add_notify_handler(lambda notify: callback(notify.payload))
