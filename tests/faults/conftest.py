"""What the faults share: a real OpenBao, and a place whose files are searched for secrets at the end."""

from tests.bao import bao
from tests.e2e.conftest import place

__all__ = ["bao", "place"]
