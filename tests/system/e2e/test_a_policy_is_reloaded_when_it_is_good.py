"""A changed policy file takes effect by itself; a bad one changes nothing and says why."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.planes.wire import http_client
from tests.system.e2e.story import MODELS, bearer, policy, reason, until
from tests.upstreams import UpstreamTls


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


async def test_good_then_bad_then_good(
    daemon: TestDaemon, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each good file is in force within seconds; the bad one is told once, with its line, and ignored.

    Deleting the file is bad, too: it must not leave a daemon without any policy by accident.
    """
    file = place / "policies/default.yaml"
    sandbox = await daemon.sandbox()
    only_chat = policy(rule="paths: [/v1/chat/completions]")
    async with http_client(daemon, sandbox) as http:

        async def ask() -> str:
            return reason(await http.get(MODELS, headers=bearer(sandbox)))

        async def told() -> list[tuple[str, bool]]:
            return [(r["sha256"], r["loaded"]) for r in daemon.records() if r["type"] == "policy"]

        assert await ask() == ""
        file.write_text(only_chat)
        await until(ask, lambda why: why == "path_not_allowed")

        file.write_text(policy().replace("methods: [GET, POST]", "methods: [GET, POST]\n    hots: [a.b]"))
        await until(told, lambda events: events[-1][1] is False)
        assert await ask() == "path_not_allowed"
        assert 'default.yaml:15:5: error: unknown key "hots"; write "hosts"' in caplog.text

        file.unlink()
        await until(told, lambda events: sum(not loaded for _, loaded in events) == 2)
        assert await ask() == "path_not_allowed"

        file.write_text(policy())
        file.chmod(0o644)
        await until(ask, lambda why: why == "")
    events = await told()
    assert [loaded for _, loaded in events] == [True, True, False, False, True]
    assert events[0][0] == events[-1][0] != events[1][0]


async def test_a_running_stream_ends_when_the_new_policy_forbids_it(daemon: TestDaemon, place: Path) -> None:
    """What a new policy takes away is taken from open streams as well: no decision is frozen."""
    sandbox = await daemon.sandbox()
    async with http_client(daemon, sandbox) as http:

        async def listen() -> None:
            url = "https://api.openai.com/sse?n=1000&gap_ms=50"
            async with http.stream("GET", url, headers=bearer(sandbox)) as answer:
                assert answer.status_code == 200
                (place / "policies/default.yaml").write_text(policy(rule="paths: [/v1/chat/completions]"))
                async for _ in answer.aiter_lines():
                    pass

        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await listen()
