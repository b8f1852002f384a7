"""A Vault that hangs, or drips a byte at a time, delays only those who need what it does not give."""

import asyncio
from pathlib import Path

import httpx
import pytest

from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.vault import VaultConfig, VaultStore
from coatcheck.secrets.vault_login import TokenLogin
from demo.upstreams.server import TlsServer
from tests.daemon import running_daemon
from tests.planes.wire import http_client
from tests.secrets.slow_front import SlowFront
from tests.system.e2e.story import until
from tests.upstreams import UpstreamTls

HOSTS = {
    "a": "api.openai.com",
    "b": "api.anthropic.com",
    "c": "upstream.example",
    "d": "other.example",
}
STALLS = {"stall/b": "hang", "stall/c": "drip head", "stall/d": "drip body"}


def policy(names: str) -> str:
    """With a credential and a rule for each of `names`."""
    credentials = "".join(
        f"""  {name}:
    secret: vault:secret/stall/{name}#api_key
    hosts: [{HOSTS[name]}]
    inject: {{header: Authorization, value: "Bearer {{secret}}"}}
"""
        for name in names
    )
    rules = "".join(
        f"  - {{name: {name}, hosts: [{HOSTS[name]}], methods: [GET], credentials: [{name}]}}\n"
        for name in names
    )
    return f"version: 1\nowner: tests\ncredentials:\n{credentials}rules:\n{rules}"


async def test_two_hundred_requests_for_one_credential_while_three_others_hang(
    bao: EmbeddedVault,
    place: Path,
    upstream_tls: UpstreamTls,
    origin_server: TlsServer,
    real_keys: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A's cache is cold, so A needs Vault too: its value and that value's history are read once for all 200,
    on one of the few threads. A is another tenant's: a tenant waits for all secrets of its policies, as its
    responses are searched for them.

    The three stalled reads hold one thread each, however many requests wait for them; those requests
    wait, and nothing of them reaches the origin.
    """
    # A busy machine takes more than its half minute for the 200.
    monkeypatch.setattr("coatcheck.secrets.cache._FLIGHT_SECONDS", 600.0)
    await bao.put("stall/a", {"api_key": real_keys["openai"]})
    async with SlowFront.start(bao.url, dict(STALLS)) as front:
        vault = VaultStore(
            VaultConfig(url=front.url, login=TokenLogin(token=bao.root_token), timeout_seconds=60)
        )
        (place / "policies").mkdir()
        (place / "policies/calm.yaml").write_text(policy("a"))
        async with running_daemon(
            place,
            policy("bcd"),
            upstream_ca=upstream_tls.ca,
            connect_to={f"{host}:443": origin_server.port for host in HOSTS.values()},
            stores={"vault": vault},
        ) as daemon:
            sandbox, calm = await daemon.sandbox(), await daemon.sandbox(tenant="calm", policy="calm")
            async with http_client(daemon, sandbox) as http, http_client(daemon, calm) as calm_http:
                http.timeout = calm_http.timeout = httpx.Timeout(60)

                def ask(name: str) -> asyncio.Task[httpx.Response]:
                    whose, client = (calm, calm_http) if name == "a" else (sandbox, http)
                    headers = {"Authorization": f"Bearer {whose.handles[name]}"}
                    return asyncio.ensure_future(
                        client.get(f"https://{HOSTS[name]}/v1/models", headers=headers)
                    )

                async def stalled() -> dict[str, int]:
                    return {path: front.stalled[path] for path in STALLS}

                waiting = [ask(name) for name in "bcd" for _ in range(5)]
                await until(stalled, lambda now: set(now.values()) == {1})
                answers = []
                for _ in range(10):
                    answers += await asyncio.gather(*(ask("a") for _ in range(20)))

                assert [answer.status_code for answer in answers] == [200] * 200
                assert not any(task.done() for task in waiting)
                assert await stalled() == dict.fromkeys(STALLS, 1)
                assert front.asked == {"stall/a": 2} | dict.fromkeys(STALLS, 1) | _logins(front)
                assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 200
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)


def _logins(front: SlowFront) -> dict[str, int]:
    """What else was asked, which is about our own token."""
    return {path: count for path, count in front.asked.items() if "auth/token" in path}
