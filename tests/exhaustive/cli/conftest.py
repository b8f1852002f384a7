"""The daemon and the commands of tests/system/cli."""

from tests.system.cli.conftest import bao, daemon, good, policies, short_dir, upstream_settings

__all__ = ["bao", "daemon", "good", "policies", "short_dir", "upstream_settings"]
