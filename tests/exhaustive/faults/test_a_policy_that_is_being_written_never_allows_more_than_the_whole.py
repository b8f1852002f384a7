"""A slow editor writes a policy in place: its first half is valid and allows more than it will in the end."""

import asyncio
import time
from pathlib import Path

from demo.upstreams.server import TlsServer
from tests.daemon import running_daemon
from tests.planes.wire import http_client
from tests.system.e2e.story import MODELS, bearer, policy, reason, until
from tests.upstreams import UpstreamTls

OLD = policy(rule="paths: [/v1/chat/completions]")
HALF = policy()
"""The new one without its last lines: every path is allowed."""
NEW = policy(rule="paths: [/v1/embeddings, /v1/models]")
WRITING = 3.0
"""Seconds: a daemon looks at the files three times meanwhile."""


async def test_half_a_policy(
    place: Path, origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> None:
    """The old one stays in force until the new one stands still; then that is."""
    async with running_daemon(
        place,
        OLD,
        {"memory:secret/openai#api_key": real_keys["openai"]},
        upstream_ca=upstream_tls.ca,
        connect_to={"api.openai.com:443": origin_server.port},
    ) as daemon:
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:

            async def ask() -> str:
                return reason(await http.get(MODELS, headers=bearer(sandbox)))

            assert await ask() == "path_not_allowed"
            with (place / "policies/default.yaml").open("w") as file:
                file.write(HALF)
                end = time.monotonic() + WRITING
                while time.monotonic() < end:
                    file.write("#")
                    file.flush()
                    assert await ask() == "path_not_allowed", "half a policy is in force"
                    await asyncio.sleep(0.05)
                file.seek(0)
                file.truncate()
                file.write(NEW)
            await until(ask, lambda why: why == "")
    loaded = [record["loaded"] for record in daemon.records() if record["type"] == "policy"]
    assert loaded == [True, True]
    assert len(origin_server.seen) == 1
