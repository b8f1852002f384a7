"""A secret that changes in OpenBao is put into requests within the configured time, without a restart."""

import time
from pathlib import Path

from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.vault import VaultConfig, VaultStore
from demo.upstreams.origin import origin
from tests.daemon import running_daemon
from tests.known_secrets import known_secret
from tests.planes.wire import http_client
from tests.system.e2e.story import bearer, policy, until
from tests.upstreams import UpstreamTls

TTL = 1.0


async def test_rotation(bao: EmbeddedVault, place: Path, tmp_path: Path, upstream_tls: UpstreamTls) -> None:
    """The daemon, logged in by AppRole, changes over once and for good, at most a TTL after the rotation.

    Both values are taken out of answers from then on: an origin may still echo the old one.
    """
    old, new = known_secret("before the rotation"), known_secret("after the rotation")
    await bao.put("rotating", {"api_key": old})
    vault = VaultStore(VaultConfig(url=bao.url, login=await bao.daemon_login(tmp_path)))
    keys = {"old": old, "new": new}
    async with (
        origin(upstream_tls.certificate, upstream_tls.key, keys) as upstream,
        running_daemon(
            place,
            policy(secret="vault:secret/rotating#api_key"),
            upstream_ca=upstream_tls.ca,
            connect_to={"api.openai.com:443": upstream.port},
            stores={"vault": vault},
            secret_ttl=TTL,
        ) as daemon,
    ):
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:

            async def used() -> str:
                answer = await http.get("https://api.openai.com/echo", headers=bearer(sandbox))
                assert answer.status_code == 200
                assert old not in answer.text and new not in answer.text
                return upstream.seen[-1].genuine

            assert [await used() for _ in range(5)] == ["old"] * 5
            await bao.put("rotating", {"api_key": new})
            rotated = time.monotonic()
            await until(used, lambda name: name == "new")
            assert time.monotonic() - rotated < TTL + 10.0
            assert [await used() for _ in range(5)] == ["new"] * 5

            echo = await http.post("https://api.openai.com/echo", headers=bearer(sandbox), content=old)
            assert echo.status_code == 200 and old not in echo.text
