"""The same image cache and root as the tests that start no program."""

from tests.images.conftest import cache, root

__all__ = ["cache", "root"]
