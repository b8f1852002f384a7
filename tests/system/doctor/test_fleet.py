"""The shared state as the doctor finds it, with a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coatcheck.doctor.finding import Finding, Level
from coatcheck.doctor.fleet import shared_state
from tests.doctor.subject import only, subject
from tests.system.fleet.fleet import new_key
from tests.system.fleet.postgres_server import (
    ADMIN,
    ADMIN_PASSWORD,
    PASSWORD,
    PostgresServer,
    postgres_server,
)

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server(options={"fsync": "on"}) as made:
        yield made


def examined(
    server: PostgresServer, directory: Path, user: str = "", password: str = PASSWORD, **settings: Any
) -> list[Finding]:
    (directory / "password").write_text(password)
    wanted: dict[str, Any] = {
        "shared_state": server.url.replace("coatcheck@", f"{user or 'coatcheck'}@", 1),
        "shared_state_key": new_key(directory / "key"),
        "shared_state_password_file": directory / "password",
    }
    return shared_state(subject(directory, **(wanted | settings)))


def test_nothing_is_said_where_nothing_is_shared(tmp_path: Path) -> None:
    """A laptop."""
    assert shared_state(subject(tmp_path)) == []


def test_the_least_rights_are_good(server: PostgresServer, tmp_path: Path) -> None:
    """The runtime role, which the printed SQL makes."""
    assert only(examined(server, tmp_path)).level is Level.OK


def test_rights_that_are_too_wide_are_found(server: PostgresServer, tmp_path: Path) -> None:
    """An administrator's user, and the owner of the tables."""
    found = only(examined(server, tmp_path, ADMIN, ADMIN_PASSWORD))
    assert (found.level, "superuser" in found.message) == (Level.WARNING, True)
    server.psql("CREATE ROLE owner LOGIN PASSWORD 'x' IN ROLE coatcheck_migrator")
    found = only(examined(server, tmp_path, "owner", "x"))
    assert (found.level, "may change" in found.message) == (Level.WARNING, True)


def test_rights_that_are_too_few_are_found(server: PostgresServer, tmp_path: Path) -> None:
    """Somebody forgot the role."""
    server.psql("CREATE ROLE stranger LOGIN PASSWORD 'x'")
    found = only(examined(server, tmp_path, "stranger", "x"))
    assert (found.level, "coatcheck_runtime" in found.hint) == (Level.PROBLEM, True)


def test_tables_that_are_missing_or_of_another_version_are_found(
    server: PostgresServer, tmp_path: Path
) -> None:
    """The hint is the command that prints what to run."""
    found = only(examined(server, tmp_path, shared_state_name="other"))
    assert (found.level, "coatcheck fleet tables" in found.hint) == (Level.PROBLEM, True)
    server.do("INSERT INTO schema_version VALUES (99, 99)")
    try:
        found = only(examined(server, tmp_path))
    finally:
        server.do("DELETE FROM schema_version WHERE version = 99")
    assert (found.level, "version 99" in found.message) == (Level.PROBLEM, True)


def test_a_database_that_loses_what_it_answered_is_found(server: PostgresServer, tmp_path: Path) -> None:
    """Somebody wanted it to be quick."""
    server.do("ALTER SYSTEM SET full_page_writes = off")
    server.do("SELECT pg_reload_conf()")
    try:
        found = examined(server, tmp_path)
        while found[0].level is Level.OK:
            found = examined(server, tmp_path)
    finally:
        server.do("ALTER SYSTEM RESET full_page_writes")
        server.do("SELECT pg_reload_conf()")
    assert (only(found).level, "full_page_writes" in only(found).message) == (Level.PROBLEM, True)


def test_a_key_that_others_may_read_is_found(server: PostgresServer, tmp_path: Path) -> None:
    """The group: a warning, as Kubernetes mounts it so. Everybody: a problem."""
    key = new_key(tmp_path / "other-key")
    for mode, level in ((0o640, Level.WARNING), (0o644, Level.PROBLEM)):
        key.chmod(mode)
        assert examined(server, tmp_path, shared_state_key=key)[0].level is level


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"shared_state": "postgresql://coatcheck@127.0.0.1:1/coatcheck"}, "refused"),
        ({"shared_state_password_file": Path("none")}, "shared state's user or password file"),
        ({"shared_state": "postgresql://nobody@:{port}/coatcheck?host={directory}"}, "authentication failed"),
        ({"shared_state": "postgresql://coatcheck@:{port}/none?host={directory}"}, "does not exist"),
    ],
)
def test_what_cannot_be_reached_is_a_problem_with_its_reason(
    server: PostgresServer, tmp_path: Path, settings: dict[str, object], why: str
) -> None:
    """And what to look at; the password is not in it."""
    made: dict[str, Any] = {
        name: str(value).replace("{port}", str(server.port)).replace("{directory}", str(server.directory))
        for name, value in settings.items()
    }
    finding = only(examined(server, tmp_path, **made))
    assert finding.level is Level.PROBLEM
    assert why in finding.message
    assert PASSWORD not in finding.message
