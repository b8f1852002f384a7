"""SIGHUP reloads the policies at once; a bad one is told and ignored, and the process lives on."""

import asyncio
import os
import signal
from pathlib import Path

from demo.upstreams.server import TlsServer
from tests.system.e2e.daemon_process import daemon_process
from tests.system.e2e.story import policy, until
from tests.upstreams import UpstreamTls


async def test_sighup(
    place: Path,
    tmp_path: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> None:
    """The changed file looks unchanged to a daemon that watches sizes and times, so that only the signal
    tells."""
    allowing = policy(secret="file:openai/key#value")
    forbidding = allowing.replace("[GET, POST]", "[PUT, HEAD]")
    broken = allowing.replace("[GET, POST]", "[GET; POST]")
    assert len(allowing) == len(forbidding) == len(broken)
    async with daemon_process(
        place,
        tmp_path / "secrets",
        allowing,
        key=real_keys["openai"],
        upstream_tls=upstream_tls,
        port=origin_server.port,
    ) as daemon:
        session = await daemon.open_session("tcp")
        assert await session.ask() == (200, "")
        times = os.stat(daemon.policy)

        def rewrite(text: str) -> None:
            with daemon.policy.open("r+") as file:
                file.write(text)
            os.utime(daemon.policy, ns=(times.st_atime_ns, times.st_mtime_ns))

        rewrite(forbidding)
        await asyncio.sleep(1.5)  # longer than the watch's second: it has looked, and seen nothing
        assert await session.ask() == (200, "")
        daemon.send(signal.SIGHUP)
        await until(session.ask, lambda got: got == (403, "method_not_allowed"))

        rewrite(broken)
        daemon.send(signal.SIGHUP)

        async def log() -> str:
            return daemon.log

        await until(log, lambda text: "default.yaml:" in text and "the old one stays" in text)
        assert "mitmproxy" not in daemon.log, "a library's words, which nobody can act upon"
        assert await session.ask() == (403, "method_not_allowed")

        rewrite(allowing)
        daemon.send(signal.SIGHUP)
        await until(session.ask, lambda got: got == (200, ""))
