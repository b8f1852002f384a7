"""The network of tests/system/redirect."""

from tests.system.redirect.conftest import made_world

__all__ = ["made_world"]
