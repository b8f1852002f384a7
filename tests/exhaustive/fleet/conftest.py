"""Directories with short paths, as a PostgreSQL needs them."""

from tests.system.fleet.conftest import short

__all__ = ["short"]
