"""A daemon logs in as users that a real OpenBao makes, as docs/fleet.md says, and outlives each of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from coatcheck.secrets.embedded import EmbeddedVault
from tests.system.fleet.fleet import fleet, until, wanted
from tests.system.fleet.postgres_server import ADMIN, ADMIN_PASSWORD, PostgresServer, postgres_server

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")

GUIDE = Path(__file__).parents[3] / "docs/fleet.md"


def creation_statement() -> str:
    """The one that an operator copies."""
    [found] = re.findall(r'(?m)^CREATE ROLE "\{\{name\}\}" .*$', GUIDE.read_text())
    return str(found)


def prepare(client: Any, server: PostgresServer) -> None:
    client.sys.enable_secrets_engine("database")
    client.write_data(
        "database/config/fleet",
        data={
            "plugin_name": "postgresql-database-plugin",
            "allowed_roles": "coatcheck",
            "connection_url": "postgresql://{{username}}:{{password}}"
            f"@127.0.0.1:{server.port}/coatcheck?sslmode=disable",
            "username": ADMIN,
            "password": ADMIN_PASSWORD,
        },
    )
    client.write_data(
        "database/roles/coatcheck",
        data={"db_name": "fleet", "creation_statements": [creation_statement()], "default_ttl": "1h"},
    )


async def test_a_daemon_goes_on_when_its_database_user_is_revoked(bao: EmbeddedVault, short: Path) -> None:
    """The files hold the next one by then; what was opened as the first is revoked as the second."""
    user, password = short / "username", short / "password"
    with postgres_server(short / "pg") as server:
        await bao.call(lambda client: prepare(client, server))

        async def rotate() -> str:
            issued = await bao.call(lambda client: client.read("database/creds/coatcheck"))
            user.write_text(issued["data"]["username"])
            password.write_text(issued["data"]["password"])
            return str(issued["lease_id"])

        first = await rotate()
        before = user.read_text()
        with fleet(
            server,
            short / "fleet",
            shared_state=f"postgresql://127.0.0.1:{server.port}/coatcheck",
            shared_state_user_file=user,
            shared_state_password_file=password,
        ) as made:
            daemon = made.daemon()
            session, _ = daemon.state.open_session(wanted(), "launcher")
            await rotate()
            await bao.call(lambda client: client.sys.revoke_lease(first))
            server.cut_all(before)
            until(lambda: server.do("SELECT 1 FROM pg_roles WHERE rolname = %s", before) == [])
            until(lambda: daemon.hears)
            daemon.state.revoke(session.id, "operator")
            users = {name for (name,) in server.do("SELECT usename FROM pg_stat_activity") if name}
            assert user.read_text() in users
            assert before not in users
