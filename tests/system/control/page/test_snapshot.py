"""What there is now: made from the daemon's own parts, cut to what its reader may see."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coatcheck.control.page import snapshot
from coatcheck.decision.denial import Reason
from coatcheck.decision.policy import Limit, LimitKind, LimitScope
from coatcheck.policy import load_policy
from coatcheck.state.levels import Level
from coatcheck.telemetry.recent import AlarmGroup
from demo.upstreams.server import TlsServer
from tests.planes.wire import http_client
from tests.system.control.conftest import Control
from tests.system.control.page.conftest import log_in
from tests.system.e2e.story import MODELS, bearer, policy

LIMITED = policy(rule="limits: {requests: 5/hour, burst: 5, per: session}")


async def test_sessions_ages_and_the_ca_are_there(control: Control, origin_server: TlsServer) -> None:
    """The newest sessions first, the age of each secret that its tenant could use once it was read, when the
    CA ends."""
    await control.session(subject="older", listen="none")
    sandbox = await control.daemon.sandbox(subject="newer")
    window = await log_in(control)
    assert (await window.now())["secrets"]["ages"] == []
    async with http_client(control.daemon, sandbox) as http:
        assert (await http.get(MODELS, headers=bearer(sandbox))).status_code == 200
    now = await window.now(lambda now: len(now["secrets"]["ages"]) == 2)
    assert {each["credential"] for each in now["secrets"]["ages"]} == {"openai", "anthropic"}
    assert [each["subject"] for each in now["sessions"]["listed"]] == ["newer", "older"]
    assert now["sessions"]["live"] == 2 and now["daemon"]["missing"] == []
    ends = datetime.fromtimestamp(now["daemon"]["ca_not_after"], UTC)
    assert ends - datetime.now(UTC) > timedelta(days=30)
    assert now["choices"] == {"tenants": ["acme"], "policies": {"default": ["anthropic", "openai"]}}
    assert sum(allowed for allowed, _ in now["pace"]) == 1


async def test_ended_sessions_are_gone_from_it(control: Control) -> None:
    """Live means live: lapsed, revoked and ended ones are the audit log's."""
    session = await control.session(listen="none")
    window = await log_in(control)
    await asyncio.to_thread(control.owner.revoke, session)
    assert (await window.now(lambda now: now["sessions"]["live"] == 0))["sessions"]["listed"] == []


async def test_more_sessions_than_a_person_reads_are_counted(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is bounded, the figure is true."""
    monkeypatch.setattr(snapshot, "MAX_SESSIONS", 2)
    for number in range(4):
        await control.session(subject=f"agent-{number}", listen="none")
    now = await (await log_in(control)).now()
    assert now["sessions"]["live"] == 4
    assert [each["subject"] for each in now["sessions"]["listed"]] == ["agent-3", "agent-2"]


async def test_limits_near_their_ceiling_are_there_for_their_tenant(control: Control) -> None:
    """With whom they are about; a session of another tenant is not named."""
    control.daemon.state.swap_policies({"default": load_policy("default", LIMITED.encode())})
    mine, theirs = [await control.daemon.sandbox(tenant=tenant) for tenant in ("acme", "globex")]
    for sandbox in (mine, theirs):
        async with http_client(control.daemon, sandbox) as http:
            for _ in range(5):
                assert (await http.get(MODELS, headers=bearer(sandbox))).status_code == 200
    own = await (await log_in(control, "acme-operator")).now()
    (level,) = own["limits"]
    assert (level["limit"], level["per"], level["who"]) == ("5 requests in 3600 s", "session", "acme/agent")
    assert level["session"] == mine.session.id and 0.9 < level["used"] <= 1.0
    assert len((await (await log_in(control)).now())["limits"]) == 2
    assert [each["credential"] for each in own["secrets"]["ages"]] == ["openai"]


async def test_what_other_daemons_of_a_fleet_tell_is_there_for_its_tenant(control: Control) -> None:
    """Limits and alarms, as our own: who sees one tenant sees nothing of another's, nor what all share."""
    limit = Limit(LimitKind.REQUESTS, 5, 3600.0, 5, LimitScope.TENANT)
    shared = replace(limit, per=LimitScope.RULE)
    control.daemon.exchange.buckets.near_elsewhere = lambda: [
        Level("default", "models", limit, ("acme",), 0.9),
        Level("default", "models", limit, ("globex",), 0.95),
        Level("default", "models", shared, (), 0.85),
    ]
    now = time.time()
    alarm = AlarmGroup("acme", "", Reason.HANDLE_WRONG_HOST, "openai", now, now, 3, "", "")
    control.daemon.telemetry.recent.elsewhere = lambda: [alarm, replace(alarm, tenant="globex")]
    everything = await (await log_in(control)).now()
    assert [each["who"] for each in everything["limits"]] == ["globex", "acme", ""]
    assert len(everything["alarms"]["listed"]) == 2
    own = await (await log_in(control, "acme-operator")).now()
    assert [each["who"] for each in own["limits"]] == ["acme"]
    assert [(each["tenant"], each["count"]) for each in own["alarms"]["listed"]] == [("acme", 3)]


async def test_what_waits_is_shown_to_its_tenant(control: Control) -> None:
    """With what a yes would cover; a yes from the page lets it go."""
    asking = policy(rule="ask: {wait: 10m, remember: 15m}")
    control.daemon.state.swap_policies({"default": load_policy("default", asking.encode())})
    sandbox = await control.daemon.sandbox()
    window, other = await log_in(control, "acme-operator"), await log_in(control, "other-auditor")
    async with http_client(control.daemon, sandbox) as http:
        request = asyncio.ensure_future(http.get(MODELS, headers=bearer(sandbox), timeout=60))
        now = await window.now(lambda now: now["approvals"]["waiting"])
        (each,) = now["approvals"]["waiting"]
        assert (each["method"], each["url"], each["remember"]) == ("GET", MODELS, 900.0)
        assert (await other.now())["approvals"]["waiting"] == []
        said = await window.ask("POST", f"/page/v1/approvals/{each['id']}", {"answer": "yes"})
        assert said.json["approver"] == "acme-operator"
        assert (await request).status_code == 200


async def test_a_plane_that_stands_still_is_said_to(control: Control) -> None:
    """The rest is shown all the same, and can be revoked."""
    window = await log_in(control)
    assert control.daemon.loop is not None

    def meanwhile() -> dict[str, Any]:
        return asyncio.run(window.now(lambda now: "plane" in now["daemon"]["missing"]))

    watching = asyncio.get_running_loop().run_in_executor(None, meanwhile)
    control.daemon.loop.call_soon(time.sleep, 5.0)
    assert (await watching)["approvals"] == {"waiting": None, "more": 0}
