"""A real Prometheus scrapes the real daemon: a handle in the wrong place raises the alert, nothing before."""

import asyncio
import hashlib
import json
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon import TestDaemon, running_daemon
from tests.known_secrets import known_secret
from tests.ports import free_port
from tests.system.chart.helm import CHART
from tests.system.e2e.story import bearer, policy
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("promtool")

SECONDS = 90.0
"""Scrapes and rules come once a second; a busy machine needs several."""
TOKEN = known_secret("Prometheus' token for the control API", prefix="")
GRANTS = f"""
[[caller]]
name = "prometheus"
token_sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"
role = "auditor"
tenants = ["*"]
"""


@asynccontextmanager
async def prometheus(directory: Path, daemon: int) -> AsyncIterator[httpx.AsyncClient]:
    """With the chart's rules, proving itself as the chart's ServiceMonitor does: by a token."""
    (directory / "token").write_text(TOKEN)
    scrape = {
        "job_name": "coatcheck",
        "static_configs": [{"targets": [f"127.0.0.1:{daemon}"], "labels": {"namespace": "n", "pod": "p"}}],
        "authorization": {"credentials_file": str(directory / "token")},
    }
    intervals = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    rules = [str(CHART / "files/alerts.yaml")]
    configuration = {"global": intervals, "rule_files": rules, "scrape_configs": [scrape]}
    (directory / "prometheus.yml").write_text(json.dumps(configuration))
    port = free_port()
    words = [
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, SECONDS)


async def asked(client: httpx.AsyncClient, path: str, **query: str) -> Any:
    """The `data` of an answer; None while there is none."""
    try:
        answer = await client.get(f"/api/v1/{path}", params=query)
    except httpx.TransportError:
        return None
    return answer.json()["data"] if answer.status_code == 200 else None


async def alerts(client: httpx.AsyncClient) -> dict[str, dict[str, str]]:
    data = await asked(client, "alerts")
    firing = [each["labels"] for each in data["alerts"] if each["state"] == "firing"] if data else []
    return {each["alertname"]: each for each in firing}


async def scraped(client: httpx.AsyncClient, expression: str) -> bool:
    data = await asked(client, "query", query=expression)
    return bool(data and data["result"])


async def misuse(daemon: TestDaemon) -> None:
    """A handle, sent to a host that it is not for."""
    sandbox = await daemon.sandbox()
    async with httpx.AsyncClient(proxy=sandbox.proxy, trust_env=False) as client:
        answer = await client.get("http://elsewhere.example/", headers=bearer(sandbox))
    assert answer.headers["coatcheck-reason"] == "handle_wrong_host"


async def test_a_misused_handle_is_an_alert_within_seconds(tmp_path: Path, upstream_tls: UpstreamTls) -> None:
    """The first of its kind: a counter that began at 1 would have been missed."""
    grants = tmp_path / "grants.toml"
    grants.write_text(GRANTS)
    grants.chmod(0o600)
    settings: dict[str, Any] = {"control_port": 0, "control_grants": grants}
    secrets = {"memory:secret/openai#api_key": known_secret("a key that is not sent")}
    async with running_daemon(
        tmp_path / "daemon", policy(), secrets, upstream_ca=upstream_tls.ca, connect_to={}, **settings
    ) as daemon:
        assert daemon.control is not None
        (tmp_path / "prometheus").mkdir()
        async with prometheus(tmp_path / "prometheus", daemon.control.addresses[0][1]) as client:
            deadline = time.monotonic() + SECONDS
            zero = 'count_over_time(coatcheck_alarms_total{reason="handle_wrong_host"}[1m]) >= 2'
            while not await scraped(client, zero):
                assert time.monotonic() < deadline, await asked(client, "targets")
                await asyncio.sleep(0.2)
            assert await alerts(client) == {}
            await misuse(daemon)
            while "CoatcheckHandleMisused" not in (raised := await alerts(client)):
                assert time.monotonic() < deadline, await asked(client, "rules")
                await asyncio.sleep(0.2)
            alert = raised["CoatcheckHandleMisused"]
            assert (alert["reason"], alert["severity"]) == ("handle_wrong_host", "critical")
            assert raised.keys() == {"CoatcheckHandleMisused"}
