"""OpenBao for the checks that ask it."""

from tests.bao import bao

__all__ = ["bao"]
