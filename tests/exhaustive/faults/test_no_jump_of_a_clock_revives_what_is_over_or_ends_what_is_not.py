"""The wall clock is set back and forward, the machine sleeps, certificates run out."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import debian
from tests.exhaustive.faults.clocks import Clocks, clocks
from tests.exhaustive.faults.daemon_and_origin import LEASE, daemon_and_origin
from tests.known_secrets import known_secret
from tests.planes.raw_origin import RawOrigin
from tests.system.e2e.daemon_process import DaemonProcess, OpenedSession
from tests.upstreams import UpstreamTls

DAY = 86_400


@dataclass
class World:
    daemon: DaemonProcess
    clocks: Clocks
    origin: RawOrigin
    secret: Path

    async def ask(self, session: OpenedSession) -> int:
        """The status that curl, whose clocks are the daemon's, was told; 0 when there was no listener, 60
        when it did not accept our certificate."""
        process = await asyncio.create_subprocess_exec(
            "curl", "--silent", "--output", "/dev/null", "--max-time", "60", "--proxy", session.url,
            "--write-out", "%{http_connect} %{http_code} %{exitcode}", "--cacert", str(session.ca),
            "--header", f"Authorization: Bearer {session.handle}", "https://api.openai.com/v1/models",
            env=self.clocks.environment | {"PATH": "/usr/bin:/bin"}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        tunnel, status, code = (int(word) for word in out.split())
        return 60 if code == 60 else status or (tunnel if tunnel != 200 else 502)

    async def over(self, session: OpenedSession) -> None:
        """It is refused, by its listener for a minute and then by nobody, and nothing of it leaves."""
        before = len(self.origin.visits)
        assert await self.ask(session) in (0, 401, 403)
        assert len(self.origin.visits) == before

    def doctor(self) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "coatcheck", "doctor"],
            env=dict(self.daemon.settings), capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout

    async def missing(self) -> list[str]:
        missing: list[str] = (await self.daemon.control("GET", "/readyz")).json()["missing"]
        return missing


@pytest.fixture
async def world(
    place: Path, tmp_path: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> AsyncIterator[World]:
    """It begins a month ago, so that its CA is older than any jump back."""
    debian.need("curl")
    moved = clocks(tmp_path)
    moved.set(-30 * DAY)
    secrets = tmp_path / "secrets"
    async with daemon_and_origin(
        place,
        secrets,
        upstream_tls,
        real_keys["openai"],
        environment=moved.environment,
        secret_ttl=str(LEASE),
    ) as (daemon, origin):
        yield World(daemon, moved, origin, secrets / "openai/key")


async def test_jumps(world: World) -> None:
    """Forward by a month, back by a day, a night's sleep, beyond the CA's end, and to where it began."""
    daemon, clocks = world.daemon, world.clocks
    old = await daemon.open_session("tcp")
    assert await world.ask(old) == 200

    clocks.set(0)
    await world.over(old)  # older than any session may get
    live = await daemon.open_session("tcp")
    assert await world.ask(live) == 200, "the certificate of a month ago was shown again"

    clocks.set(-DAY)
    assert await world.ask(live) == 200, "the certificate that was shown is of tomorrow"
    await world.over(old)
    assert await world.ask(await daemon.open_session("tcp")) == 200

    rotated = known_secret("a key after a rotation")
    world.secret.write_text(rotated)
    assert await world.ask(live) == 200
    assert rotated.encode() not in b"".join(world.origin.heads), "it is not yet time to read it again"
    clocks.suspend(DAY)
    await world.over(live)  # its keeper did not renew it
    live = await daemon.open_session("tcp")
    assert await world.ask(live) == 200
    assert rotated.encode() in world.origin.heads[-1]

    clocks.set(3700 * DAY)
    await world.over(live)
    late = await daemon.open_session("tcp")
    before = len(world.origin.visits)
    assert await world.ask(late) == 503
    assert len(world.origin.visits) == before
    assert await world.missing() == ["certificate authority"]
    assert "expired on" in world.doctor()

    clocks.set(0)
    assert await world.missing() == []
    assert await world.ask(await daemon.open_session("tcp")) == 200
    assert len(world.origin.visits) == len([r for r in daemon.records() if r.get("outcome") == "inject"])
