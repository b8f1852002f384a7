"""TLS, users and rights, with a real redis-server that demands them."""

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
from coatcheck.fleet.connection import Connector, SharedStateDown
from coatcheck.fleet.scripts import COMMANDS
from coatcheck.settings.shared_state import SharedStateServer
from coatcheck.state import Problem, StateError
from tests.state.house import reason
from tests.system.fleet.fleet import PATIENCE, Fleet, fleet, until, wanted
from tests.system.fleet.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.needs_debian("redis-server")

RIGHTS = "resetkeys ~coatcheck:{coatcheck}:* resetchannels -@all " + " ".join(f"+{name}" for name in COMMANDS)
PASSWORD = "correct-horse"


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(short: Path, authority: trustme.CA) -> Iterator[RedisServer]:
    """Wants TLS, a client certificate, and a user with the least rights."""
    certificate, client = authority.issue_cert("localhost"), authority.issue_cert("coatcheck.example.org")
    roots = short / "roots.pem"
    authority.cert_pem.write_to_path(roots)
    certificate.private_key_and_cert_chain_pem.write_to_path(short / "server.pem")
    client.private_key_and_cert_chain_pem.write_to_path(short / "client.pem")
    pem = str(short / "server.pem")
    tls = ("--tls-cert-file", pem, "--tls-key-file", pem, "--tls-ca-cert-file", str(roots))
    users = (f"user coatcheck on >{PASSWORD} {RIGHTS}", f"user narrow on >{PASSWORD} {RIGHTS} -xadd")
    with redis_server(short / "redis", tls=tls, acl=users) as server:
        yield server


@pytest.fixture
def members(tls_server: RedisServer, short: Path) -> Iterator[Fleet]:
    password = short / "redis-password"
    password.write_text(PASSWORD + "\n")
    settings = {
        "shared_state": f"rediss://coatcheck@localhost:{tls_server.port}",
        "shared_state_password_file": password,
        "shared_state_ca_file": short / "roots.pem",
        "shared_state_certificate": short / "client.pem",
        "shared_state_max_silence": 3.0,
    }
    with fleet(tls_server, short / "fleet", **settings) as made:
        yield made


def test_the_least_rights_over_verified_tls_suffice(members: Fleet) -> None:
    """Everything that members do to each other, a snapshot included, as a user with the documented line."""
    a, b = members.daemon(), members.daemon()
    session, (handle,) = a.state.open_session(wanted(), "launcher")
    until(lambda: b.counts(session, handle.value) is None)
    b.state.renew(session.id, "launcher", 300)
    a.member.follower._length_limit = 0
    until(lambda: int(members.server.admin().hget("coatcheck:{coatcheck}:head", "base") or 0) > 0)
    newcomer = members.daemon()
    until(lambda: newcomer.counts(session, handle.value) is None)
    newcomer.state.revoke(session.id, "operator")
    until(lambda: a.refuses(session) is Reason.SESSION_REVOKED)


def test_the_guide_gives_the_line_that_is_tested() -> None:
    """An operator copies it from docs/fleet.md."""
    guide = Path(__file__).parents[3].joinpath("docs/fleet.md").read_text()
    assert f"user coatcheck on >PASSWORD {RIGHTS}\n" in guide


def test_a_revocation_waits_for_a_replica_where_that_is_asked_for(members: Fleet) -> None:
    """There is none: it is done, and whoever asked is told that a failover could undo it."""
    from coatcheck.state import StateError

    a, b = members.daemon(shared_state_replicas=1), members.daemon()
    session, _ = a.state.open_session(wanted(), "launcher")
    with pytest.raises(StateError, match="fewer than 1 replicas"):
        a.state.revoke(session.id, "operator")
    until(lambda: b.refuses(session) is Reason.SESSION_REVOKED)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("wrong password", "invalid username-password pair"),
        ("unknown user", "invalid username-password pair"),
        ("no password file", "shared state's password"),
        ("another CA", "certificate verify failed"),
        ("another name", "certificate verify failed"),
        ("no client certificate", "shared state at"),
        ("too few rights", "can't run this command"),
        ("plain text", "shared state at"),
        ("nobody listens", "refused"),
    ],
)
def test_what_is_not_in_order_refuses_everything_and_says_why(
    members: Fleet, tls_server: RedisServer, short: Path, what: str, why: str
) -> None:
    """And never the password."""
    (short / "bad-password").write_text("battery-staple")
    trustme.CA().cert_pem.write_to_path(short / "other-roots.pem")
    at = f"localhost:{tls_server.port}"
    settings: dict[str, object] = {
        "wrong password": {"shared_state_password_file": short / "bad-password"},
        "unknown user": {"shared_state": f"rediss://nobody@{at}"},
        "no password file": {"shared_state_password_file": short / "none"},
        "another CA": {"shared_state_ca_file": short / "other-roots.pem"},
        "another name": {"shared_state": f"rediss://coatcheck@127.0.0.1:{tls_server.port}"},
        "no client certificate": {"shared_state_certificate": None},
        "too few rights": {"shared_state": f"rediss://narrow@{at}"},
        "plain text": {
            "shared_state": f"redis://coatcheck@{at}",
            "shared_state_ca_file": None,
            "shared_state_certificate": None,
        },
        "nobody listens": {"shared_state": "rediss://coatcheck@localhost:1"},
    }[what]  # type: ignore[assignment]
    daemon = members.daemon(wait=False, more=settings)
    until(lambda: why in daemon.stale(), why=daemon.stale)
    assert not daemon.hears
    assert "battery-staple" not in daemon.stale() + str(daemon.events)
    assert PASSWORD not in daemon.stale() + str(daemon.events)


@contextmanager
def _unresolved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The resolver takes until the end of the block to answer; whom it was asked for meanwhile."""
    resolve, goes_on, asked = socket.getaddrinfo, threading.Event(), list[str]()

    def later(host: str, *about: Any) -> Any:
        asked.append(host)
        assert goes_on.wait(PATIENCE)
        return resolve(host, *about)

    monkeypatch.setattr(socket, "getaddrinfo", later)
    try:
        yield asked
    finally:
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        goes_on.set()


def test_a_name_that_does_not_resolve_keeps_nobody(
    server: RedisServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's resolver has no deadline; whoever waits has. However often it is tried, one thread waits
    for it, which keeps no process from ending, and what it brings back is used."""
    (short / "password").write_text(server.admin_password)
    at = SharedStateServer(
        "localhost", server.port, "", tls=False, user=None, password_file=short / "password"
    )
    connector = Connector(at, 0.05)
    with _unresolved(monkeypatch) as asked:
        for _ in range(3):
            with pytest.raises(SharedStateDown, match="does its name resolve"):
                connector.connect()
        assert asked == ["localhost"]
        (waits,) = [each for each in threading.enumerate() if each.name == "shared-state-connect"]
        assert waits.daemon
    waits.join(PATIENCE)
    with connector.connect() as client:
        assert client.ping()
    assert asked == ["localhost"]


def test_a_resolver_that_hangs_stops_neither_a_revocation_nor_the_end(
    server: RedisServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections are gone, and the name does not resolve: what is asked for is answered, everything is
    refused after the silence, and the daemon stops."""
    where = f"redis://localhost:{server.port}"
    with fleet(server, short / "fleet", shared_state=where, shared_state_max_silence=2.0) as made:
        a, b = made.daemon(), made.daemon()
        session, _ = a.state.open_session(wanted(), "launcher")
        until(lambda: b.knows(session))
        with _unresolved(monkeypatch):
            server.admin().client_kill_filter(_type="normal")
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
