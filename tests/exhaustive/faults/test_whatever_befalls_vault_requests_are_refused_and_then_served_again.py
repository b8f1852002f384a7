"""Vault sealed, killed in the middle of a request, restarted, frozen, its token revoked, its answers wrong.

Each time: 503 and the reason, nothing at the origin, the other credential's requests unharmed, metrics and
readiness that say it, and service again without a restart of ours.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from coatcheck.secrets.configured import make_stores
from coatcheck.secrets.memory import MemoryStore
from coatcheck.settings.daemon import Settings
from demo.upstreams.server import TlsServer
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.exhaustive.faults.own_bao import OwnBao
from tests.planes.wire import http_client
from tests.secrets.slow_front import SlowFront
from tests.system.e2e.story import reason, until
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: vault:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
  anthropic:
    secret: memory:secret/anthropic#api_key
    hosts: [api.anthropic.com]
    inject: {header: X-Api-Key}
rules:
  - {name: a, hosts: [api.openai.com], methods: [GET], credentials: [openai]}
  - {name: b, hosts: [api.anthropic.com], methods: [GET], credentials: [anthropic]}
"""

TTL = 0.01
"""Seconds. Each request asks Vault, or waits for a read that another one began."""

WRONG = {
    "500": (500, '{"errors":["no"]}'),
    "no json": (200, "<html></html>"),
    "another shape": (200, '{"data":[42]}'),
    "no such field": (200, '{"data":{"data":{"other":"x"},"metadata":{"version":1}}}'),
    "a line break in it": (
        200,
        '{"data":{"data":{"api_key":"aaaaaaaaaaaaaaaaaaaaaaa\\r\\nX: y"},"metadata":{"version":1}}}',
    ),
    "half of it": (200, '{"data":{"data":{"api_key":"sk-half-of-a-secret-is-none'),
}
WHY = {"no such field": "secret_missing", "a line break in it": "secret_unusable"}


def answered(status: int, body: str) -> bytes:
    length = len(body) + (900 if "half" in body else 0)
    return f"HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}".encode()


@dataclass
class World:
    daemon: TestDaemon
    sandbox: Sandbox
    http: httpx.AsyncClient
    origin: TlsServer
    front: SlowFront

    async def ask(self) -> tuple[int, str]:
        """Of the credential whose secret is in Vault. What the last request had read again is old by then."""
        await asyncio.sleep(10 * TTL)
        headers = {"Authorization": f"Bearer {self.sandbox.handles['openai']}"}
        answer = await self.http.get("https://api.openai.com/v1/models", headers=headers)
        return answer.status_code, reason(answer)

    async def other(self) -> int:
        """Of the credential whose secret is not."""
        headers = {"X-Api-Key": self.sandbox.handles["anthropic"], "anthropic-version": "2023-06-01"}
        return (await self.http.get("https://api.anthropic.com/v1/models", headers=headers)).status_code

    async def refused(self, why: str = "secret_unavailable") -> None:
        """The one is refused, the other served; of the first nothing left, and all of it is told."""
        before = self.seen()
        status, told = await self.ask()
        assert (status, told) == (503 if why == "secret_unavailable" else status, why)
        assert self.seen() == before, "something left without its secret"
        assert await self.other() == 200
        decided = [d for d in self.daemon.decisions() if d["destination"] == "https://api.openai.com"][-1]
        assert (decided["outcome"], decided["reason"]) == ("deny", why)

    async def served(self) -> None:
        """As soon as Vault can be asked again: no restart, no word from anybody."""
        await until(self.ask, lambda seen: seen == (200, ""), patience=60)
        await until(self.breaker, lambda is_open: is_open == 0)

    async def asked(self) -> int:
        """How often Vault was asked for the secret."""
        return self.front.asked["openai"]

    async def breaker(self) -> float:
        return self.metric("coatcheck_vault_breaker_open")

    def metric(self, name: str) -> float:
        lines = self.daemon.metrics.render().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)

    def failures(self, kind: str) -> float:
        return self.metric(f'coatcheck_vault_fetch_failures_total{{kind="{kind}"}}')

    def seen(self) -> int:
        return len([seen for seen in self.origin.seen if seen.host == "api.openai.com"])


@pytest.fixture
async def world(
    vault: OwnBao,
    place: Path,
    tmp_path: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> AsyncIterator[World]:
    """Nothing is kept for long, so that each request asks Vault."""
    vault.put("openai", api_key=real_keys["openai"])
    async with SlowFront.start(vault.url) as front:
        settings = Settings.model_validate(
            vault.login(tmp_path) | {"vault_url": front.url, "vault_timeout": 2.0}
        )
        stores = make_stores(settings) | {
            "memory": MemoryStore({"memory:secret/anthropic#api_key": real_keys["anthropic"]})
        }
        async with running_daemon(
            place,
            POLICY,
            upstream_ca=upstream_tls.ca,
            connect_to=dict.fromkeys(("api.openai.com:443", "api.anthropic.com:443"), origin_server.port),
            stores=stores,
            secret_ttl=TTL,
            secret_max_stale=0.0,
        ) as daemon:
            sandbox = await daemon.sandbox()
            async with http_client(daemon, sandbox) as http:
                http.timeout = httpx.Timeout(60)
                running = World(daemon, sandbox, http, origin_server, front)
                assert await running.ask() == (200, "") and await running.other() == 200
                yield running


async def test_sealed(world: World, vault: OwnBao) -> None:
    vault.seal()
    try:
        for _ in range(4):
            await world.refused()
        assert world.failures("unreachable") >= 3 and await world.breaker() == 1
    finally:
        vault.unseal()
    await world.served()


async def test_killed_in_the_middle_of_a_request_and_restarted(world: World, vault: OwnBao) -> None:
    """What waits is refused when the connection ends; a restarted Vault is sealed before it serves."""
    before = world.seen()
    with vault.frozen():
        waiting = asyncio.create_task(world.ask())
        await until(world.asked, lambda count: count >= 2)
        assert await world.other() == 200 and not waiting.done()
        vault.kill()
    assert await waiting == (503, "secret_unavailable")
    assert world.seen() == before
    await world.refused()
    vault.start()
    await world.refused()
    vault.unseal()
    await world.served()


async def test_frozen(world: World, vault: OwnBao) -> None:
    """Refused when its time is up, all together and not one after the other."""
    with vault.frozen():
        began = time.monotonic()
        assert set(await asyncio.gather(*(world.ask() for _ in range(10)))) == {(503, "secret_unavailable")}
        assert time.monotonic() - began < 20
        assert await world.other() == 200
    await world.served()


async def test_our_token_is_revoked_or_expired(world: World, vault: OwnBao) -> None:
    """One new login, which nobody notices: Vault answers the same to a token that is over either way."""
    for lost in range(2):
        for accessor in vault.client.list("auth/token/accessors")["data"]["keys"]:
            found = vault.client.auth.token.lookup_accessor(accessor)["data"]
            if found["path"] == "auth/approle/login":
                vault.client.auth.token.revoke_accessor(accessor)
        assert await world.ask() == (200, ""), lost
        assert await world.other() == 200


async def test_our_login_is_taken_and_given_again(world: World, vault: OwnBao, tmp_path: Path) -> None:
    """Refused while there is none; the file is read again at each login."""
    (tmp_path / "secret-id").write_text("00000000-0000-0000-0000-000000000000")
    for accessor in vault.client.list("auth/token/accessors")["data"]["keys"]:
        if vault.client.auth.token.lookup_accessor(accessor)["data"]["path"] == "auth/approle/login":
            vault.client.auth.token.revoke_accessor(accessor)
    await world.refused()
    vault.login(tmp_path)
    await world.served()


@pytest.mark.parametrize("answer", WRONG)
async def test_wrong(world: World, answer: str) -> None:
    """Nothing of it is used, quoted, or left in the log."""
    world.front.answers["openai"] = answered(*WRONG[answer])
    await world.refused(WHY.get(answer, "secret_unavailable"))
    told = str(world.daemon.records())
    assert "html" not in told and "aaaaaaaa" not in told
    del world.front.answers["openai"]
    await world.served()
