"""An agent that prints its environment puts its handles into the model's context: nothing breaks by it."""

import json
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.planes.wire import http_client
from tests.system.e2e.story import bearer, policy, reason
from tests.upstreams import UpstreamTls

SINK = "https://api.openai.com/sink"


@pytest.fixture
async def daemon(
    place: Path, origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        place,
        policy(),
        {"memory:secret/openai#api_key": real_keys["openai"]},
        upstream_ca=upstream_tls.ca,
        connect_to={"api.openai.com:443": origin_server.port},
    ) as running:
        yield running


def alarms(daemon: TestDaemon) -> list[dict[str, Any]]:
    return [record for record in daemon.records() if record["type"] == "alarm"]


async def test_in_a_body(daemon: TestDaemon, origin_server: TlsServer, real_keys: dict[str, str]) -> None:
    """The body arrives as it was sent, handle and all, with no secret in it; one alarm a session says so."""
    for subject in ("one", "two"):
        sandbox = await daemon.sandbox(subject=subject)
        prompt = json.dumps({"content": "env | sort\n" + "\n".join(sandbox.handles.values())}).encode()
        async with http_client(daemon, sandbox) as http:
            for _ in range(3):
                answer = await http.post(SINK, headers=bearer(sandbox), content=prompt)
                assert answer.json()["sha256"] == sha256(prompt).hexdigest()
    assert [(alarm["session"] != "", alarm["reason"]) for alarm in alarms(daemon)] == [
        (True, "handle_misplaced")
    ] * 2
    assert len({alarm["session"] for alarm in alarms(daemon)}) == 2
    assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 6


async def test_elsewhere_it_is_refused_and_reported_each_time(
    daemon: TestDaemon, origin_server: TlsServer
) -> None:
    """In the URL, a cookie, or a header of its own, a handle is on its way out: that does not leave."""
    sandbox = await daemon.sandbox()
    handle = sandbox.handles["openai"]
    async with http_client(daemon, sandbox) as http:
        refused = [
            await http.get(f"{SINK}?leak={handle}", headers=bearer(sandbox)),
            await http.get(SINK, headers=bearer(sandbox) | {"Cookie": f"a={handle}"}),
            await http.get(SINK, headers=bearer(sandbox) | {"X-Debug": handle}),
            await http.get(f"https://api.openai.com/{handle}", headers=bearer(sandbox)),
        ]
    assert [(answer.status_code, reason(answer)) for answer in refused] == [(403, "handle_misplaced")] * 4
    assert len(alarms(daemon)) == 4
    assert origin_server.seen == []
