"""`coatcheck fleet migrate`: the tables are made by our own connection, on a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.fleet import schema
from tests.cli.transcript import Said, coatcheck
from tests.system.fleet.postgres_server import PASSWORD, PostgresServer, postgres_server

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Roles and a schema without tables, for the fleet `web`, and a user who may make them."""
    with postgres_server() as made:
        made.psql(schema.roles_sql("web"))
        made.psql(f"CREATE ROLE carpenter LOGIN PASSWORD '{PASSWORD}' IN ROLE {schema.MIGRATOR}")
        yield made


def migrate(port: int, user: str, directory: Path) -> Said:
    (directory / "username").write_text(user + "\n")
    (directory / "password").write_text(PASSWORD)
    return coatcheck(
        "fleet", "migrate", "--name", "web",
        "--url", f"postgresql://127.0.0.1:{port}/coatcheck",
        "--user-file", directory / "username", "--password-file", directory / "password",
        cwd=directory,
    )  # fmt: skip


def test_tables_are_made_and_again_is_no_error(server: PostgresServer, tmp_path: Path) -> None:
    """As the SQL that `coatcheck fleet tables` prints makes them."""
    assert "schema_version" not in {row[0] for row in tables(server)}
    for _ in range(2):
        said = migrate(server.port, "carpenter", tmp_path)
        assert (said.code, said.out, said.err) == (0, "", "")
    server.psql(schema.roles_sql("printed") + schema.tables_sql("printed"))
    assert tables(server) == tables(server, "printed") and len(tables(server)) > len(schema.SEALED)
    [[version, oldest]] = server.do("SELECT version, oldest FROM web.schema_version")
    assert (version, oldest) == (schema.VERSION, schema.STEPS[schema.VERSION][1])


def tables(server: PostgresServer, fleet: str = "web") -> list[tuple[str, str]]:
    """Each with its owner."""
    found = server.do("SELECT tablename, tableowner FROM pg_tables WHERE schemaname = %s", fleet)
    return sorted((row[0], row[1]) for row in found)


def test_a_daemons_user_may_not(server: PostgresServer, tmp_path: Path) -> None:
    """The runtime role changes no table; who may is said, and nothing is half done."""
    said = migrate(server.port, "coatcheck", tmp_path)
    assert said.code == 3 and schema.MIGRATOR in said.error and PASSWORD not in said.err


def test_a_url_that_is_none_is_wrong_use(tmp_path: Path) -> None:
    """Before anything is asked."""
    said = coatcheck("fleet", "migrate", "--url", "redis://db.example", cwd=tmp_path)
    assert said.code == 2 and "PostgreSQL" in said.error


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    """By its address, so that a wrong URL is seen."""
    said = migrate(1, "carpenter", tmp_path)
    assert said.code == 3 and "127.0.0.1:1" in said.error
