"""Debian's postgresql as processes of our own, on loopback and a Unix socket, with TLS and least rights."""

import atexit
import functools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coatcheck.fleet import schema
from tests.ports import free_port

if TYPE_CHECKING:
    import psycopg

PATIENCE = 30.0
"""Seconds for a server to answer; it takes 100 ms on an idle machine."""
PROGRAMS = Path("/usr/lib/postgresql")
ADMIN, ADMIN_PASSWORD = "postgres", secrets.token_hex(8)
USER, PASSWORD = "coatcheck", "correct-horse"
"""A daemon's: a member of the runtime role."""
DATABASE = "coatcheck"


def program(name: str) -> str:
    """Of the newest PostgreSQL here: Debian keeps them off PATH."""
    return str(max(PROGRAMS.glob(f"*/bin/{name}"), key=lambda each: int(each.parts[-3])))


def as_postgres() -> tuple[str, ...]:
    """PostgreSQL refuses to be root."""
    if os.geteuid():
        return ()
    return ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--")


def give_away(path: Path) -> None:
    if not os.geteuid():
        subprocess.run(("chown", "-R", "postgres:postgres", str(path)), check=True)


@functools.cache
def empty_cluster() -> Path:
    """Made once a process: copying it takes a tenth of the time."""
    directory = Path(tempfile.mkdtemp(prefix="cch-pg-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "password").write_text(ADMIN_PASSWORD)
    give_away(directory)
    subprocess.run(
        (*as_postgres(), program("initdb"), "-D", str(directory / "data"), "-U", ADMIN, "-E", "UTF8",
         "--locale=C", "-A", "scram-sha-256", "--pwfile", str(directory / "password"), "--no-sync"),
        check=True, stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    return directory / "data"


@dataclass
class PostgresServer:
    """A server in `directory`; `start` it again after it was killed."""

    directory: Path
    options: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    host_lines: tuple[str, ...] = ()
    """Of pg_hba.conf, before those that let everybody in by password."""
    certificate: bytes = field(default=b"", repr=False)
    """PEM, with its key. Without one there is no TLS."""
    client_ca: bytes = b""
    """PEM: of the CA that a client's certificate must come from."""
    command: tuple[str, ...] = ()
    """What runs it elsewhere, in another network namespace say."""
    password: str = field(default=PASSWORD, repr=False)
    """Of the daemon's user."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def url(self) -> str:
        """Over its Unix socket, as the daemon's user."""
        return f"postgresql://{USER}@:{self.port}/{DATABASE}?host={self.directory}"

    def make(self) -> None:
        """An empty cluster."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o755)
        subprocess.run(("cp", "-r", str(empty_cluster()), str(self.data)), check=True)
        self.configure()

    def configure(self) -> None:
        everybody = [
            f"{how} scram-sha-256"
            for database in ("all", "replication")
            for how in (f"local {database} all", f"host {database} all 127.0.0.1/32")
        ]
        (self.data / "pg_hba.conf").write_text("\n".join((*self.host_lines, *everybody)) + "\n")
        self.data.chmod(0o700)
        give_away(self.directory)

    def start(self) -> None:
        self.port = self.port or free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            # A killed server loses nothing by it: only the machine's own crash would.
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": "60",
            "log_min_messages": "warning",
            **self.options,
        }
        if self.certificate:
            (self.data / "server.pem").write_bytes(self.certificate)
            (self.data / "server.pem").chmod(0o600)
            options |= {"ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.pem"}
        if self.client_ca:
            (self.data / "clients.pem").write_bytes(self.client_ca)
            options["ssl_ca_file"] = "clients.pem"
        lines = [f"{name} = '{value}'" for name, value in options.items()]
        (self.data / "postgresql.auto.conf").write_text("\n".join(lines) + "\n")
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        give_away(self.data)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                (*self.command, *as_postgres(), program("postgres"), "-D", str(self.data)),
                stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}, start_new_session=True,
            )  # fmt: skip
        import psycopg  # not by every worker that collects tests

        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.admin("postgres").close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < deadline, "postgresql does not answer" + self.log()
                time.sleep(0.02)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def set_up(self, *fleets: str) -> None:
        """The database, the roles and the tables, by the SQL that the command prints; the daemon's user."""
        with self.admin("postgres") as admin:
            admin.execute(f"CREATE DATABASE {DATABASE}")
        for fleet in fleets or ("coatcheck",):
            self.psql(schema.roles_sql(fleet) + schema.tables_sql(fleet))
        self.psql(f"CREATE ROLE {USER} LOGIN PASSWORD '{self.password}' IN ROLE {schema.RUNTIME}")

    def psql(self, sql: str) -> None:
        """As an operator does."""
        environment = {"PGPASSWORD": ADMIN_PASSWORD, "PGOPTIONS": "-c client_min_messages=warning"}
        subprocess.run(
            ("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", str(self.directory), "-p", str(self.port),
             "-U", ADMIN, "-d", DATABASE),
            input=sql.encode(), check=True, stdout=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], **environment},
        )  # fmt: skip

    def admin(self, database: str = DATABASE) -> "psycopg.Connection[Any]":
        """A connection that may do everything."""
        import psycopg

        return psycopg.connect(
            host=str(self.directory), port=self.port, user=ADMIN, password=ADMIN_PASSWORD, dbname=database,
            autocommit=True, connect_timeout=int(PATIENCE),
        )  # fmt: skip

    def do(self, statement: str, *about: Any) -> list[Any]:
        """One statement of the administrator's, in the fleet's schema; its rows."""
        with self.admin() as admin:
            admin.execute("SET search_path = coatcheck")
            cursor = admin.execute(statement.encode(), about)
            return cursor.fetchall() if cursor.description else []

    def cut_all(self, user: str = USER) -> None:
        """The connections of a user end."""
        self.do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", user)

    # --- what happens to it --------------------------------------------------------------------------------

    def send(self, number: signal.Signals) -> None:
        """To all of its processes."""
        assert self.process is not None
        for pid in (self.process.pid, *_children(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """At once, as `pg_ctl stop -m immediate` does: no chance to write anything any more."""
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def stop(self) -> None:
        """As `pg_ctl stop -m fast` does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE)

    def restart(self) -> None:
        self.kill()
        self.start()

    def backup(self) -> Path:
        """A copy of what it has committed, taken while it is stopped for a moment."""
        self.stop()
        subprocess.run(("cp", "-a", str(self.data), str(self.directory / "backup")), check=True)
        self.start()
        return self.directory / "backup"

    def restore(self, backup: Path) -> None:
        self.kill()
        shutil.rmtree(self.data)
        subprocess.run(("cp", "-a", str(backup), str(self.data)), check=True)
        self.start()

    def promote(self) -> None:
        with self.admin("postgres") as admin:
            admin.execute("SELECT pg_promote()")


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


@contextmanager
def postgres_server(directory: Path | None = None, **wanted: Any) -> Iterator[PostgresServer]:
    """A server with a fleet's tables that answers; killed at the end. `directory` must be short, as a path
    of a socket has 107 bytes, and another user must be able to reach it: pytest's own are neither."""
    made = tempfile.mkdtemp(prefix="cch-") if directory is None else None
    server = PostgresServer(directory or Path(str(made)), **wanted)
    try:
        server.make()
        server.start()
        server.set_up()
        yield server
    finally:
        server.kill()
        if made is not None:
            shutil.rmtree(made)


@contextmanager
def standby_of(primary: PostgresServer, directory: Path, *, synchronous: bool) -> Iterator[PostgresServer]:
    """A standby that follows; nothing is answered by the primary before a synchronous one has it."""
    server = replace(primary, directory=directory, port=0, process=None)
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    give_away(directory)
    subprocess.run(
        (*as_postgres(), program("pg_basebackup"), "-D", str(server.data), "-R", "-c", "fast", "-X", "stream",
         "-h", str(primary.directory), "-p", str(primary.port), "-U", ADMIN),
        check=True, env={"PATH": os.environ["PATH"], "PGPASSWORD": ADMIN_PASSWORD},
    )  # fmt: skip
    follows = f"host={primary.directory} port={primary.port} user={ADMIN} password={ADMIN_PASSWORD}"
    server.options = {
        **primary.options,
        "primary_conninfo": follows + " application_name=standby",
        "hot_standby": "on",
    }
    try:
        server.start()
        if synchronous:
            primary.do("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            primary.do("SELECT pg_reload_conf()")
            deadline = time.monotonic() + PATIENCE
            while primary.do("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'") == []:
                assert time.monotonic() < deadline, "the standby does not follow" + server.log()
                time.sleep(0.02)
        yield server
    finally:
        server.kill()
