"""The tables of a release are made, or brought forward, over our own connection: where there is no psql."""

import time
from typing import Final

from coatcheck.fleet.connection import Connector, SharedStateDown, explained
from coatcheck.fleet.schema import MIGRATOR, tables_sql
from coatcheck.platform.errors import CoatcheckError
from coatcheck.settings.shared_state import SharedStateServer

CONNECT_SECONDS: Final = 10.0
MIGRATE_SECONDS: Final = 300.0
"""For all of it. The largest table has a row a session; a release's new index on it takes seconds."""


class MigrationFailed(CoatcheckError):
    """The tables are as they were: it is one transaction."""


def migrate(server: SharedStateServer, fleet: str) -> None:
    """What `coatcheck fleet tables` prints is done. Again is no error. MigrationFailed."""
    try:
        with Connector(server, CONNECT_SECONDS, "coatcheck fleet migrate").connect() as connection:
            connection.deadline = time.monotonic() + MIGRATE_SECONDS
            connection.execute(tables_sql(fleet).encode())
    except SharedStateDown as error:
        raise MigrationFailed(str(error), "check --url and the files with user, password and CA") from None
    except Exception as error:  # noqa: BLE001 - psycopg's, the system's, ssl's
        hint = (
            f"the user must be a member of {MIGRATOR}, which coatcheck fleet roles makes; see docs/fleet.md"
        )
        raise MigrationFailed(explained(server, error), hint) from None
