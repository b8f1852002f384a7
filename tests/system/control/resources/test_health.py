"""What an orchestrator and Prometheus ask."""

import asyncio

import pytest

from tests.system.control.conftest import Control


async def test_probes_need_no_caller(control: Control) -> None:
    """They tell nothing about anybody."""
    assert (await control.ask("GET", "/healthz")).json["status"] == "ok"
    ready = await control.ask("GET", "/readyz")
    assert (ready.status, ready.json) == (200, {"ready": True, "missing": []})


async def test_readiness_says_what_is_missing(control: Control) -> None:
    """503, while /healthz stays good: a daemon that drains must not be restarted."""
    control.daemon.exchange.draining = True
    answer = await control.ask("GET", "/readyz")
    assert (answer.status, answer.json["missing"]) == (503, ["accepting requests"])
    control.daemon.state.swap_policies({})
    assert (await control.ask("GET", "/readyz")).json["missing"] == ["accepting requests", "policies"]
    assert (await control.ask("GET", "/healthz")).status == 200
    assert (await asyncio.to_thread(control.owner.readiness))["ready"] is False


@pytest.mark.parametrize(
    ("caller", "status"),
    [("auditor", 200), ("operator", 200), ("acme-operator", 403), ("ci-launcher", 403), (None, 401)],
)
async def test_metrics_are_for_those_who_see_all_tenants(
    control: Control, caller: str | None, status: int
) -> None:
    """Prometheus gets an auditor's token."""
    answer = await control.ask("GET", "/metrics", caller=caller)
    assert answer.status == status
    if status == 200:
        assert answer.headers["content-type"].startswith("text/plain")
        assert b"coatcheck_sessions" in answer.body
