"""The daemon of tests/system/e2e, and where it keeps everything."""

from tests.system.e2e.conftest import aws, bao, client, daemon, place

__all__ = ["aws", "bao", "client", "daemon", "place"]
