"""Directories with short paths, as a PostgreSQL needs them, and an OpenBao."""

from tests.bao import bao
from tests.system.fleet.conftest import short

__all__ = ["bao", "short"]
