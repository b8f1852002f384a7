"""Vault is killed: what is at hand serves up to its bound, then requests are refused with a reason."""

import asyncio
import time
from pathlib import Path

from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.vault import VaultConfig, VaultStore
from demo.upstreams.server import TlsServer
from tests.daemon import running_daemon
from tests.known_secrets import remember_secret
from tests.planes.wire import http_client
from tests.system.e2e.story import MODELS, bearer, policy, reason, until
from tests.upstreams import UpstreamTls

TTL, STALE = 0.5, 1.5


async def test_bounded_staleness(
    place: Path,
    tmp_path: Path,
    upstream_tls: UpstreamTls,
    origin_server: TlsServer,
    real_keys: dict[str, str],
) -> None:
    """Between TTL and TTL + max_stale the old value serves; from then on 503, and the origin sees nothing."""
    async with EmbeddedVault.start(log=place / "openbao.log") as bao:
        remember_secret("a short-lived OpenBao's root token", bao.root_token)
        await bao.put("openai", {"api_key": real_keys["openai"]})
        vault = VaultStore(
            VaultConfig(url=bao.url, login=await bao.daemon_login(tmp_path), timeout_seconds=1)
        )
        async with running_daemon(
            place,
            policy(secret="vault:secret/openai#api_key"),
            upstream_ca=upstream_tls.ca,
            connect_to={"api.openai.com:443": origin_server.port},
            stores={"vault": vault},
            secret_ttl=TTL,
            secret_max_stale=STALE,
        ) as daemon:
            sandbox = await daemon.sandbox()
            async with http_client(daemon, sandbox) as http:

                async def ask() -> tuple[float, int, str]:
                    began = time.monotonic()
                    answer = await http.get(MODELS, headers=bearer(sandbox))
                    return began, answer.status_code, reason(answer)

                assert (await ask())[1] == 200
                bao.process.kill()
                await bao.process.wait()
                killed = time.monotonic()  # the last good read was before this

                await asyncio.sleep(TTL)
                began, status, _ = await ask()
                assert status == 200 or began > killed + STALE

                began, status, why = await until(ask, lambda seen: seen[1] != 200)
                assert (status, why) == (503, "secret_unavailable")
                assert began < killed + TTL + STALE + 1.0

                before = len(origin_server.seen)
                answer = await http.get(MODELS, headers=bearer(sandbox))
                assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
                assert len(origin_server.seen) == before
        assert daemon.decisions()[-1]["reason"] == "secret_unavailable"
