"""The gauges of a real daemon: what they are read from changes, and they with it."""

from pathlib import Path

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import SecretMissing
from tests.daemon import running_daemon
from tests.system.e2e.story import policy
from tests.upstreams import UpstreamTls


async def test_gauges_follow_the_daemon(
    output_dir: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> None:
    """Sessions, connections, the CA's end, secrets' ages, breakers, and reads that gave nothing."""
    async with running_daemon(
        output_dir,
        policy(),
        {"memory:secret/openai#api_key": real_keys["openai"]},
        upstream_ca=upstream_tls.ca,
        connect_to={},
    ) as daemon:

        def scraped() -> dict[str, float]:
            lines = daemon.metrics.render().decode().splitlines()
            samples = (line.rpartition(" ") for line in lines if line[0] != "#")
            return {name: float(value) for name, _, value in samples}

        before = scraped()
        assert before["coatcheck_sessions"] == before["coatcheck_active_connections"] == 0
        assert before["coatcheck_vault_breaker_open"] == 0
        assert before["coatcheck_ca_expiry_timestamp_seconds"] == daemon.authority.not_after.timestamp()
        await daemon.sandbox()
        await daemon.store.fetch(SecretRef("memory", "secret", "openai", "api_key"))
        with pytest.raises(SecretMissing, match="no store named"):
            await daemon.store.fetch(SecretRef("nowhere", "secret", "openai", "api_key"))
        after = scraped()
        assert after["coatcheck_sessions"] == 1
        assert 0 <= after['coatcheck_secret_age_seconds{credential="openai"}'] < 60
        assert after['coatcheck_vault_fetch_failures_total{kind="missing"}'] == 1
