"""An upgrade (docs/operators.md): the new daemon begins on the old one's port, then the old one goes."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo.upstreams.server import TlsServer
from tests.planes.wire import Wire
from tests.ports import free_port
from tests.system.e2e.daemon_process import DaemonProcess, OpenedSession, daemon_process
from tests.system.e2e.story import policy, until
from tests.system.e2e.test_three_daemons_of_a_fleet_are_one_to_a_sandbox import database, status_at
from tests.system.fleet.postgres_server import PASSWORD, PostgresServer
from tests.upstreams import UpstreamTls

__all__ = ["database"]
pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")


@dataclass
class Machine:
    """Where both run, one after the other on one port."""

    stack: AsyncExitStack
    directory: Path
    settings: dict[str, Any]
    origin: int
    tls: UpstreamTls
    key: str

    async def start(self, name: str, ca: Path | None = None) -> DaemonProcess:
        place = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="cch-")))
        if ca is not None:  # clients trust one CA, whichever answers
            (place / "state").mkdir(mode=0o700)
            shutil.copytree(ca, place / "state/ca")
        running = daemon_process(
            place, self.directory / name, policy(secret="file:openai/key#value"),
            key=self.key, upstream_tls=self.tls, port=self.origin, **self.settings,
        )  # fmt: skip
        return await self.stack.enter_async_context(running)


@asynccontextmanager
async def machine(
    database: PostgresServer, directory: Path, origin: TlsServer, tls: UpstreamTls, key: str
) -> AsyncIterator[Machine]:
    (directory / "key").touch(0o600)
    (directory / "key").write_text(os.urandom(32).hex())
    (directory / "password").write_text(PASSWORD)
    settings = {
        "proxy_port": str(free_port()),
        "proxy_share_port": "true",
        "proxy_trust_addresses": "true",
        "shared_state": database.url,
        "shared_state_key": str(directory / "key"),
        "shared_state_password_file": str(directory / "password"),
        "drain_seconds": "60",
    }
    async with AsyncExitStack() as stack:
        yield Machine(stack, directory, settings, origin.port, tls, key)


def listeners(port: str) -> int:
    """How many sockets listen at the port; the kernel leads a new connection to one of them."""
    wanted, listens = f":{int(port):04X}", "0A"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[1].endswith(wanted) and line[3] == listens for line in lines)


async def opened(at: DaemonProcess) -> OpenedSession:
    """Of a sandbox that is known by its address, wherever it is led to."""
    origin = {"class": "address", "value": "proxy|127.0.0.1"}
    answer = await at.control(
        "POST", "/v1/sessions", tenant="acme", subject="pod", policy="default", origin=origin
    )
    assert answer.status_code == 201, answer.text
    said = answer.json()
    handle = said["handles"]["openai"]["value"]
    return OpenedSession(said["session"]["id"], said["proxy"]["url"], handle, Path(said["proxy"]["ca"]))


async def led_to(daemon: DaemonProcess, session: OpenedSession) -> Wire:
    """A connection that the kernel happens to lead to this one."""
    assert daemon.process is not None
    serving = psutil.Process(daemon.process.pid)
    for _ in range(100):
        wire = await session.connect()
        own = wire.writer.get_extra_info("sockname")
        if any(each.raddr == own for each in serving.net_connections("tcp")):
            return wire
        wire.writer.transport.abort()
    raise AssertionError("none of a hundred connections was led to it")


async def test_streams_end_well_and_what_is_new_is_the_new_ones(
    database: PostgresServer,
    tmp_path: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> None:
    """The old one's stream goes on to its last event, its idle connection is refused once and closed, and
    every new connection is served meanwhile."""
    async with machine(database, tmp_path, origin_server, upstream_tls, real_keys["openai"]) as here:
        old = await here.start("old")
        session = await opened(old)
        new = await here.start("new", old.directory / "state/ca")
        await until(partial(status_at, new, session.id), lambda status: status == "live")
        stream, kept = await led_to(old, session), await led_to(old, session)

        assert await session.request(stream, "/sse?n=100&gap_ms=100") == (200, "")
        await stream.reader.readuntil(b"\n\n")
        old.send(signal.SIGTERM)
        port = here.settings["proxy_port"]

        async def listening() -> int:
            return listeners(port)

        await until(listening, lambda count: count == 1)
        assert await session.request(kept) == (503, "draining")
        assert b"draining" in await kept.rest()  # to its end: the connection is closed behind it
        assert [await session.ask() for _ in range(10)] == [(200, "")] * 10
        async with asyncio.timeout(60):
            assert b'"n":99' in await stream.reader.readuntil(b"0\r\n\r\n")
        assert (await old.ended())[0] == 0
        assert await session.ask() == (200, "")
        served = [each for each in new.records() if each["type"] == "decision"]
        assert [each["outcome"] for each in served] == ["inject"] * 11
