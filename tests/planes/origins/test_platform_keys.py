"""A platform's keys that are followed at its URL: a cluster changes them, and is away for a while."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from coatcheck.planes.origins import platform_keys
from coatcheck.planes.origins.platform_keys import KeyUrl
from coatcheck.planes.origins.platform_token import PlatformTokens
from demo.upstreams.seen import Ledger
from demo.upstreams.server import TlsServer
from tests.known_secrets import known_secret
from tests.planes.platform import AUDIENCE, ISSUER, Platform
from tests.upstreams import UpstreamTls


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not true():
            await asyncio.sleep(0.02)


@dataclass
class Cluster:
    """The API server's discovery endpoint, which answers service accounts only."""

    platform: Platform
    status: int = 200
    asked: list[str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization", ""))
        return web.Response(status=self.status, body=self.platform.file.read_bytes())


@pytest.fixture
async def cluster(tmp_path: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Cluster]:
    made = Cluster(Platform(tmp_path / "jwks.json"))
    app = web.Application()
    app.router.add_get("/openid/v1/jwks", made.answer)
    async with TlsServer(app, Ledger({}), upstream_tls.certificate, upstream_tls.key) as server:
        made.url = f"https://127.0.0.1:{server.port}/openid/v1/jwks"
        yield made


@pytest.fixture
def keys(cluster: Cluster, upstream_tls: UpstreamTls, tmp_path: Path) -> KeyUrl:
    (tmp_path / "bearer").write_text(known_secret("the pod's own token") + "\n")
    return KeyUrl(cluster.url, upstream_tls.ca, tmp_path / "bearer")


@pytest.fixture
def tokens(keys: KeyUrl) -> PlatformTokens:
    return PlatformTokens(keys, ISSUER, AUDIENCE)


async def test_tokens_count_once_the_keys_were_read(
    cluster: Cluster, keys: KeyUrl, tokens: PlatformTokens
) -> None:
    """It asks with its own token, as Kubernetes demands. Before that, nothing counts."""
    token = cluster.platform.token()
    assert tokens.proof(token, time.time()) is None
    await keys.read()
    assert tokens.proof(token, time.time()) is not None
    assert cluster.asked == [f"Bearer {known_secret("the pod's own token")}"]


async def test_a_new_key_is_read_when_a_token_names_it(
    cluster: Cluster, keys: KeyUrl, tokens: PlatformTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the one that is gone takes its tokens with it. Unknown names do not make it ask more often."""
    monkeypatch.setattr(platform_keys, "RETRY_SECONDS", 0.3)
    cluster.platform.publish("RS256")
    await keys.read()
    following = asyncio.create_task(keys.follow())
    old, new = cluster.platform.token(algorithm="RS256"), cluster.platform.token(algorithm="ES256")
    assert tokens.proof(old, time.time()) is not None
    cluster.platform.publish("ES256")
    began = time.monotonic()
    await until(lambda: tokens.proof(new, time.time()) is not None)
    assert tokens.proof(old, time.time()) is None
    assert len(cluster.asked) <= 2 + (time.monotonic() - began) / 0.3
    following.cancel()


async def test_known_keys_count_for_an_hour_without_the_platform(
    cluster: Cluster, keys: KeyUrl, tokens: PlatformTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its control plane is upgraded. After that, nothing counts until it answers again."""
    token = cluster.platform.token()
    await keys.read()
    cluster.status = 503
    with pytest.raises(ValueError, match="status 503"):
        await keys.read()
    assert tokens.proof(token, time.time()) is not None
    monkeypatch.setattr(platform_keys, "KEPT_SECONDS", 0.0)
    assert tokens.proof(token, time.time()) is None
    monkeypatch.undo()
    cluster.status = 200
    await keys.read()
    assert tokens.proof(token, time.time()) is not None


@pytest.mark.parametrize("content", ["[" * 60_000, '{"keys": []}', "x" * 100_000, "<html>"])
async def test_an_answer_that_is_no_jwks_changes_nothing(
    cluster: Cluster, keys: KeyUrl, tokens: PlatformTokens, content: str
) -> None:
    """What is wrong is an error that following it survives."""
    token = cluster.platform.token()
    await keys.read()
    cluster.platform.file.write_text(content)
    with pytest.raises((ValueError, OSError)):
        await keys.read()
    assert tokens.proof(token, time.time()) is not None


async def test_following_goes_on_after_a_failure(
    cluster: Cluster,
    keys: KeyUrl,
    tokens: PlatformTokens,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told once, however long it lasts, and not what it answered."""
    monkeypatch.setattr(platform_keys, "RETRY_SECONDS", 0.05)
    cluster.status = 401
    following = asyncio.create_task(keys.follow())
    await until(lambda: len(cluster.asked) >= 4)
    cluster.status = 200
    await until(lambda: tokens.proof(cluster.platform.token(), time.time()) is not None)
    assert [each.levelname for each in caplog.records] == ["ERROR"] and "status 401" in caplog.text
    following.cancel()
