"""Three daemons behind one port, on one database: whichever the kernel picks knows the session."""

import asyncio
import os
import shutil
import signal
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.upstreams.server import TlsServer
from tests.planes.wire import Wire
from tests.ports import free_port
from tests.system.e2e.daemon_process import DaemonProcess, OpenedSession, daemon_process
from tests.system.e2e.story import MODELS, PATIENCE, policy, until
from tests.system.fleet.postgres_server import PASSWORD, PostgresServer, postgres_server
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")

SILENCE = 3.0


@dataclass
class FleetOfProcesses:
    daemons: list[DaemonProcess]
    session: OpenedSession

    def served(self) -> list[int]:
        """Requests that each daemon let through."""
        return [
            sum(each.get("type") == "decision" and each["outcome"] == "inject" for each in daemon.records())
            for daemon in self.daemons
        ]

    async def answers(self, count: int) -> set[int]:
        """The statuses of so many requests, each on a connection of its own, which any of them may get."""
        return {await self.ask() for _ in range(count)}

    async def ask(self) -> int:
        trust = ssl.create_default_context(cafile=str(self.session.ca))
        headers = {"Authorization": f"Bearer {self.session.handle}"}
        try:
            async with httpx.AsyncClient(proxy=self.session.url, verify=trust, timeout=PATIENCE) as http:
                return (await http.get(MODELS, headers=headers)).status_code
        except httpx.ProxyError as error:  # CONNECT was refused
            return int(str(error).split()[0])


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with postgres_server() as made:
        yield made


@pytest.fixture
async def fleet(
    database: PostgresServer,
    tmp_path: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> AsyncIterator[FleetOfProcesses]:
    (tmp_path / "key").write_text(os.urandom(32).hex())
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "password").write_text(PASSWORD)
    settings: dict[str, Any] = {
        "proxy_port": str(free_port()),
        "proxy_share_port": "true",
        "proxy_trust_addresses": "true",
        "shared_state": database.url,
        "shared_state_key": str(tmp_path / "key"),
        "shared_state_password_file": str(tmp_path / "password"),
        "shared_state_max_silence": str(SILENCE),
    }
    async with AsyncExitStack() as stack:
        daemons: list[DaemonProcess] = []
        for number in range(3):
            # A socket's path has 107 bytes, and pytest's directories are long.
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cch-")))
            if daemons:  # clients trust one CA, whichever answers
                (place / "state").mkdir(mode=0o700)
                shutil.copytree(daemons[0].directory / "state/ca", place / "state/ca")
            made = daemon_process(
                place, tmp_path / f"secrets-{number}", policy(secret="file:openai/key#value"),
                key=real_keys["openai"], upstream_tls=upstream_tls, port=origin_server.port, **settings,
            )  # fmt: skip
            daemons.append(await stack.enter_async_context(made))
        origin = {"class": "address", "value": "proxy|127.0.0.1"}
        answer = await daemons[0].control(
            "POST", "/v1/sessions", tenant="acme", subject="pod", policy="default", origin=origin
        )
        assert answer.status_code == 201, answer.text
        opened = answer.json()
        session = OpenedSession(
            opened["session"]["id"],
            opened["proxy"]["url"],
            opened["handles"]["openai"]["value"],
            Path(opened["proxy"]["ca"]),
        )
        yield FleetOfProcesses(daemons, session)


async def status_at(daemon: DaemonProcess, session: str) -> str:
    answer = await daemon.control("GET", f"/v1/sessions/{session}")
    return str(answer.json()["session"]["status"]) if answer.status_code == 200 else "unknown"


async def _breaks_off(stream: Wire) -> None:
    """Without a clean end."""
    async with asyncio.timeout(60):
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await _read_on(stream)


async def _read_on(stream: Wire) -> None:
    while await stream.reader.readuntil(b"\n\n"):
        pass


async def test_a_session_of_one_is_a_session_of_all(
    fleet: FleetOfProcesses, database: PostgresServer
) -> None:
    """Opened at the first, served by each, refused by all while the database is silent, revoked at the third,
    and gone for good when the database comes back empty. What runs is cut each time."""
    _, second, third = fleet.daemons
    session = fleet.session

    async def served() -> list[int]:
        assert await fleet.answers(10) == {200}
        return fleet.served()

    await until(served, lambda counts: all(counts))
    assert await status_at(second, session.id) == "live"

    stream = await session.connect()
    assert await session.request(stream, "/sse?n=100000&gap_ms=10") == (200, "")
    await stream.reader.readuntil(b"\n\n")

    database.send(signal.SIGSTOP)
    await _breaks_off(stream)
    await until(lambda: fleet.answers(6), lambda seen: seen == {503}, patience=60)
    readiness = await second.control("GET", "/readyz")
    assert readiness.status_code == 503
    assert "shared state" in readiness.text
    database.send(signal.SIGCONT)
    await until(lambda: fleet.answers(10), lambda seen: seen == {200}, patience=60)

    stream = await session.connect()
    assert await session.request(stream, "/sse?n=100000&gap_ms=10") == (200, "")
    revoked = await third.control("POST", f"/v1/sessions/{session.id}/revoke", why="leaked")
    assert revoked.status_code == 200, revoked.text
    await _breaks_off(stream)
    await until(lambda: fleet.answers(10), lambda seen: seen <= {401, 407})
    for daemon in fleet.daemons:
        await until(partial(status_at, daemon, session.id), lambda seen: seen == "revoked")

    await asyncio.to_thread(database.do, "TRUNCATE fleet, sessions, handles, keys, approvals, leases")
    for daemon in fleet.daemons:
        await until(partial(status_at, daemon, session.id), lambda seen: seen == "unknown")
    assert await fleet.answers(6) <= {401, 407}
