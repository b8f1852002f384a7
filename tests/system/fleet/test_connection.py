"""TLS, users, rights and versions, with a real PostgreSQL that demands them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from coatcheck.decision.denial import Reason
from coatcheck.fleet import follower, schema
from coatcheck.fleet.connection import Connector, SharedStateDown
from coatcheck.settings.shared_state import SharedStateServer
from coatcheck.state import Problem, StateError
from tests.state.house import reason
from tests.system.fleet.fleet import PATIENCE, Fleet, fleet, until, wanted
from tests.system.fleet.postgres_server import PASSWORD, PostgresServer, postgres_server

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(short: Path, authority: trustme.CA) -> Iterator[PostgresServer]:
    """Wants TLS and a client certificate of its users."""
    certificate, client = authority.issue_cert("localhost"), authority.issue_cert("coatcheck.example.org")
    authority.cert_pem.write_to_path(short / "roots.pem")
    client.private_key_and_cert_chain_pem.write_to_path(short / "client.pem")
    (short / "client.pem").chmod(0o600)
    with postgres_server(
        short / "pg",
        certificate=certificate.private_key_and_cert_chain_pem.bytes(),
        client_ca=authority.cert_pem.bytes(),
        host_lines=(
            "hostssl all coatcheck all scram-sha-256 clientcert=verify-ca",
            "host all coatcheck all reject",
        ),
    ) as server:
        server.psql("CREATE ROLE narrow LOGIN PASSWORD 'correct-horse'")
        yield server


@pytest.fixture
def members(tls_server: PostgresServer, short: Path) -> Iterator[Fleet]:
    settings = {
        "shared_state": f"postgresql://coatcheck@localhost:{tls_server.port}/coatcheck",
        "shared_state_ca_file": short / "roots.pem",
        "shared_state_certificate": short / "client.pem",
        "shared_state_max_silence": 3.0,
    }
    with fleet(tls_server, short / "fleet", **settings) as made:
        yield made


def test_the_runtime_role_over_verified_tls_suffices(members: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that members do to each other, dropped rows included, as the documented user."""
    a, b = members.daemon(), members.daemon()
    session, (handle,) = a.state.open_session(wanted(), "launcher")
    until(lambda: b.counts(session, handle.value) is None)
    b.state.renew(session.id, "launcher", 300)
    monkeypatch.setattr(follower, "HOUSE_SECONDS", 0.0)
    monkeypatch.setattr(follower, "DROP_SECONDS", 0.0)
    assert b.state.revoke_where(lambda each: False, None, "operator") == ()
    newcomer = members.daemon()
    until(lambda: newcomer.counts(session, handle.value) is None)
    newcomer.state.revoke(session.id, "operator")
    until(lambda: a.refuses(session) is Reason.SESSION_REVOKED)
    (version,) = members.server.do("SELECT version FROM pg_stat_ssl WHERE ssl LIMIT 1")[0]
    assert version in ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("wrong password", "password authentication failed"),
        ("unknown user", "authentication failed"),
        ("no password file", "shared state's user or password file"),
        ("another CA", "certificate verify failed"),
        ("another name", "does not match host name"),
        ("no client certificate", "client certificate"),
        ("too few rights", "permission denied"),
        ("plain text", "rejects connection"),
        ("another fleet", "does not exist"),
        ("nobody listens", "refused"),
    ],
)
def test_what_is_not_in_order_refuses_everything_and_says_why(
    members: Fleet, tls_server: PostgresServer, short: Path, what: str, why: str
) -> None:
    """And never the password."""
    (short / "bad-password").write_text("battery-staple")
    trustme.CA().cert_pem.write_to_path(short / "other-roots.pem")
    at = f"localhost:{tls_server.port}/coatcheck"
    settings: dict[str, object] = {
        "wrong password": {"shared_state_password_file": short / "bad-password"},
        "unknown user": {"shared_state": f"postgresql://nobody@{at}"},
        "no password file": {"shared_state_password_file": short / "none"},
        "another CA": {"shared_state_ca_file": short / "other-roots.pem"},
        "another name": {"shared_state": f"postgresql://coatcheck@127.0.0.1:{tls_server.port}/coatcheck"},
        "no client certificate": {"shared_state_certificate": None},
        "too few rights": {"shared_state": f"postgresql://narrow@{at}"},
        "plain text": {"shared_state_ca_file": None, "shared_state_certificate": None},
        "another fleet": {"shared_state_name": "other"},
        "nobody listens": {"shared_state": "postgresql://coatcheck@localhost:1/coatcheck"},
    }[what]  # type: ignore[assignment]
    daemon = members.daemon(wait=False, more=settings)
    until(lambda: why in daemon.stale(), why=daemon.stale)
    assert not daemon.hears
    assert "battery-staple" not in daemon.stale() + str(daemon.events)
    assert PASSWORD not in daemon.stale() + str(daemon.events)


def test_credentials_that_rotate_are_read_for_each_connection(server: PostgresServer, short: Path) -> None:
    """As Vault's database engine gives them: another user, and the old one is gone with its connections."""
    user, password = short / "user", short / "rotating"

    def rotate(name: str) -> None:
        server.psql(f"CREATE ROLE {name} LOGIN PASSWORD 'pw-{name}' IN ROLE coatcheck_runtime")
        user.write_text(name)
        password.write_text(f"pw-{name}\n")

    rotate("first")
    url = server.url.replace("coatcheck@", "", 1)
    with fleet(
        server,
        short / "fleet",
        shared_state=url,
        shared_state_user_file=user,
        shared_state_password_file=password,
    ) as made:
        daemon = made.daemon()
        session, _ = daemon.state.open_session(wanted(), "launcher")
        rotate("second")
        server.do("ALTER ROLE first NOLOGIN")
        server.cut_all("first")
        until(lambda: server.do("SELECT 1 FROM pg_stat_activity WHERE usename = 'second'") != [])
        until(lambda: daemon.hears)
        daemon.state.revoke(session.id, "operator")
        assert server.do("SELECT 1 FROM pg_stat_activity WHERE usename = 'first'") == []


def test_the_environment_and_the_home_directory_say_nothing_to_a_connection(
    server: PostgresServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq would read another host, user, password and mode there."""
    (short / ".pgpass").write_text("*:*:*:*:wrong\n")
    (short / ".pgpass").chmod(0o600)
    environment = {
        "HOME": str(short), "PGHOST": "203.0.113.1", "PGHOSTADDR": "203.0.113.1", "PGPORT": "1",
        "PGUSER": "x",
        "PGPASSWORD": "wrong", "PGSSLMODE": "verify-full", "PGOPTIONS": "-c search_path=x",
        "PGDATABASE": "none", "PGTARGETSESSIONATTRS": "standby", "PGAPPNAME": "x", "PGCONNECT_TIMEOUT": "1",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (short / "password").write_text(PASSWORD)
    hosts = (("127.0.0.1", server.port),)
    at = SharedStateServer(hosts, "", "coatcheck", "coatcheck", password_file=short / "password")
    with Connector(at, PATIENCE, "tests").connect() as connection:
        [[row]] = connection.together([("SELECT current_user, current_setting('search_path')", ())])
    assert row == ("coatcheck", "pg_catalog")


def test_a_newer_schema_is_made_while_older_daemons_run(
    server: PostgresServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next release adds a column and a table: nobody is refused meanwhile. One that older daemons cannot
    run on stops those, and says what to do; newer daemons wait for their tables."""
    steps = dict(schema.STEPS)
    steps[2] = ("ALTER TABLE {s}.sessions ADD COLUMN note text;\nCREATE TABLE {s}.notes (id text);\n", 1)
    with fleet(server, short / "fleet", shared_state_max_silence=3.0) as made:
        old = made.daemon()
        session, _ = old.state.open_session(wanted(), "launcher")
        with monkeypatch.context() as patched:
            patched.setattr(schema, "VERSION", 2)
            new = made.daemon(wait=False)
            until(lambda: "has tables of version 1, this coatcheck needs 2" in new.stale(), why=new.stale)
            new.stop()
        for _ in range(2):  # again is no error
            server.psql(schema.tables_sql("coatcheck", steps))
        old.state.renew(session.id, "launcher", 300)
        another, _ = old.state.open_session(wanted("issuer|2"), "launcher")
        assert old.hears
        assert "shared_state_silent" not in old.told()
        steps[3] = ("SELECT 1;\n", 3)
        server.psql(schema.tables_sql("coatcheck", {3: ("PERFORM 1;\n", 3)}))
        until(lambda: "coatcheck fleet tables" in old.stale(), why=old.stale)
        assert old.refuses(another) is Reason.SHARED_STATE_SILENT


@contextmanager
def _unresolved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The resolver takes until the end of the block to answer; whom it was asked for meanwhile."""
    from coatcheck.fleet.postgres import Connection

    connect, goes_on, asked = Connection.connect, threading.Event(), list[str]()

    def later(*about: Any, **more: Any) -> Any:
        asked.append(more["host"])
        assert goes_on.wait(PATIENCE)
        return connect(*about, **more)

    with monkeypatch.context() as patched:
        patched.setattr("coatcheck.fleet.postgres.Connection.connect", later)
        try:
            yield asked
        finally:
            goes_on.set()


def test_a_name_that_does_not_resolve_keeps_nobody(
    server: PostgresServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's resolver has no deadline; a caller that waits has. However often it is tried, one thread
    waits for it, which keeps no process from ending, and what it brings back is used."""
    (short / "password").write_text(PASSWORD)
    hosts = (("localhost", server.port),)
    at = SharedStateServer(hosts, "", "coatcheck", "coatcheck", password_file=short / "password")
    connector = Connector(at, 0.05, "tests")
    with _unresolved(monkeypatch) as asked:
        for _ in range(3):
            with pytest.raises(SharedStateDown, match="does its name resolve"):
                connector.connect()
        assert asked == ["localhost"]
        (waits,) = [each for each in threading.enumerate() if each.name == "shared-state-connect"]
        assert waits.daemon
    waits.join(PATIENCE)
    with connector.connect() as connection:
        assert connection.together([("SELECT 1", ())]) == [[(1,)]]
    assert asked == ["localhost"]


def test_a_resolver_that_hangs_stops_neither_a_revocation_nor_the_end(
    server: PostgresServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections are gone, and the name does not resolve: what is asked for is answered, everything is
    refused after the silence, and the daemon stops."""
    where = f"postgresql://coatcheck@localhost:{server.port}/coatcheck"
    with fleet(server, short / "fleet", shared_state=where, shared_state_max_silence=2.0) as made:
        a, b = made.daemon(), made.daemon()
        session, _ = a.state.open_session(wanted(), "launcher")
        until(lambda: b.knows(session))
        with _unresolved(monkeypatch):
            server.cut_all()
            until(lambda: "does its name resolve" in b.stale(), why=b.stale)
            for change in (a.state.renew, a.state.revoke):
                with pytest.raises(StateError) as refused:
                    change(session.id, "operator")
                assert refused.value.reason is Problem.NOT_DURABLE
            assert reason(a.state, session) is Reason.SESSION_REVOKED
            began = time.monotonic()
            b.stop()
            assert time.monotonic() - began < PATIENCE / 2
        until(lambda: a.hears)
        b = made.restart(b)
        until(lambda: b.refuses(session) is Reason.SESSION_REVOKED)


def test_what_answers_in_place_of_a_database_is_refused(short: Path) -> None:
    """Something that speaks another protocol listens at its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_greets, args=(listening,), daemon=True).start()
        at = SharedStateServer((listening.getsockname()[:2],), "", "coatcheck", "coatcheck")
        with pytest.raises(Exception, match=r"(?i)invalid|unexpected|expected|closed"):
            Connector(at, PATIENCE, "tests").connect()


def _greets(listening: socket.socket) -> None:
    accepted, _ = listening.accept()
    accepted.sendall(b"+PONG\r\n-ERR unknown command\r\n")
    accepted.close()
