"""A chat's program hears of a held request by the signed webhook, and brings back a person's yes and no."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import standardwebhooks
from aiohttp import web

from demo.upstreams.server import TlsServer
from tests.daemon import running_daemon
from tests.known_secrets import known_secret
from tests.planes.wire import http_client
from tests.system.e2e.story import MODELS, bearer, policy, reason, until
from tests.upstreams import UpstreamTls

TOKEN = known_secret("the chat's token for the control API", prefix="")
KEY = known_secret("the webhook's key", prefix="")
GRANTS = f"""
[[caller]]
name = "chat"
token_sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"
role = "operator"
tenants = ["*"]
"""


@dataclass
class Chat:
    """Where the webhook goes. What is not signed with the shared key is not looked at."""

    url: str = ""
    told: list[dict[str, Any]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        standardwebhooks.Webhook(KEY.encode()).verify(body, dict(request.headers))
        self.told.append(json.loads(body) | {"event": request.headers["Coatcheck-Event"]})
        return web.Response(status=204)

    async def heard(self, event: str, count: int = 1) -> dict[str, Any]:
        """The last of so many."""

        async def look() -> list[dict[str, Any]]:
            return [each for each in self.told if each["event"] == event]

        return (await until(look, lambda found: len(found) == count))[-1]


@asynccontextmanager
async def chat() -> AsyncIterator[Chat]:
    found = Chat()
    app = web.Application()
    app.router.add_post("/hook", found.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield found
    finally:
        await runner.cleanup()


async def test_a_persons_word_comes_back_through_the_program(
    place: Path,
    tmp_path: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> None:
    """Asked without a poll; nothing leaves before the yes; program and person stand in the audit log."""
    for name, text in (("grants.toml", GRANTS), ("key", KEY)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    async with (
        chat() as there,
        running_daemon(
            place, policy(rule="ask: {wait: 10m}"), {"memory:secret/openai#api_key": real_keys["openai"]},
            upstream_ca=upstream_tls.ca, connect_to={"api.openai.com:443": origin_server.port},
            webhook_url=there.url, webhook_secret_file=tmp_path / "key",
            control_port=0, control_grants=tmp_path / "grants.toml",
        ) as daemon,
    ):  # fmt: skip
        assert daemon.control is not None
        sandbox = await daemon.sandbox()
        api = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{daemon.control.addresses[0][1]}/v1/approvals/",
            headers={"Authorization": f"Bearer {TOKEN}"},
            trust_env=False,
        )
        async with api, http_client(daemon, sandbox) as http:
            allowed = asyncio.ensure_future(http.get(MODELS, headers=bearer(sandbox), timeout=60))
            asked = await there.heard("approval_asked")
            assert (asked["method"], asked["destination"]) == ("GET", "https://api.openai.com")
            assert (asked["tenant"], asked["credentials"]) == ("acme", ["openai"])
            assert not origin_server.seen
            word = await api.post(asked["approval"], json={"answer": "yes", "person": "alice"})
            assert word.status_code == 200 and (await allowed).status_code == 200
            assert (await there.heard("approval_approved"))["approver"] == "chat for alice"

            refused = asyncio.ensure_future(http.get(MODELS, headers=bearer(sandbox), timeout=60))
            asked = await there.heard("approval_asked", 2)
            await api.post(asked["approval"], json={"answer": "no", "person": "bob"})
            assert reason(await refused) == "approval_refused"
            assert (await there.heard("approval_refused"))["approver"] == "chat for bob"
        assert len(origin_server.seen) == 1
        assert [record["approver"] for record in daemon.records() if record["type"] == "approval"] == [
            "", "chat for alice", "", "chat for bob",
        ]  # fmt: skip
        everything = json.dumps(there.told)
        assert real_keys["openai"] not in everything and sandbox.handles["openai"] not in everything
