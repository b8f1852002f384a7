"""The control API of tests/system/control."""

from tests.system.control.conftest import control, ground, short_dir

__all__ = ["control", "ground", "short_dir"]
