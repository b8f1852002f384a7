"""A real PostgreSQL, and a fleet of three on it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.fleet.fleet import Fleet, fleet
from tests.system.fleet.postgres_server import PostgresServer, postgres_server


@pytest.fixture
def short() -> Iterator[Path]:
    """A socket's path has 107 bytes, and pytest's directories are long."""
    with tempfile.TemporaryDirectory(prefix="cch-") as directory:
        Path(directory).chmod(0o755)  # PostgreSQL is another user
        yield Path(directory)


@pytest.fixture
def server(short: Path) -> Iterator[PostgresServer]:
    with postgres_server(short / "pg") as server:
        yield server


@pytest.fixture
def three(server: PostgresServer, short: Path) -> Iterator[Fleet]:
    """Three members that hear each other."""
    with fleet(server, short / "fleet", shared_state_max_silence=3.0) as made:
        for _ in range(3):
            made.daemon()
        yield made
