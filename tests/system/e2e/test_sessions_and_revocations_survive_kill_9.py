"""The daemon is killed outright and started again: nothing that was given or taken is forgotten."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from demo.upstreams.server import TlsServer
from tests.system.e2e.daemon_process import DaemonProcess, daemon_process
from tests.system.e2e.story import policy
from tests.upstreams import UpstreamTls


@pytest.fixture
async def daemon(
    place: Path,
    tmp_path: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> AsyncIterator[DaemonProcess]:
    async with daemon_process(
        place,
        tmp_path / "secrets",
        policy(secret="file:openai/key#value"),
        key=real_keys["openai"],
        upstream_tls=upstream_tls,
        port=origin_server.port,
        session_lease="60",
        drain_seconds="2",
    ) as running:
        yield running


async def test_sessions_live_on_and_the_revoked_stay_dead(
    daemon: DaemonProcess, origin_server: TlsServer
) -> None:
    """Three sessions; one is revoked, and the daemon dies the moment that was answered.

    Afterwards the others go on at the proxy addresses and with the handles that their sandboxes hold.
    """
    on_port, on_socket = await daemon.open_session("tcp"), await daemon.open_session("unix")
    doomed = await daemon.open_session("tcp")
    sessions = (on_port, on_socket, doomed)
    assert [await session.ask() for session in sessions] == [(200, "")] * 3
    answer = await daemon.control("POST", f"/v1/sessions/{doomed.id}/revoke")
    assert answer.status_code == 200
    await daemon.kill()
    assert [await session.ask() for session in sessions] == [(0, "")] * 3

    await daemon.start()
    assert [await session.ask() for session in sessions] == [(200, ""), (200, ""), (0, "")]
    shown = (await daemon.control("GET", f"/v1/sessions/{doomed.id}")).json()
    assert shown["session"]["status"] == "revoked"
    listed = (await daemon.control("GET", f"/v1/sessions/{on_port.id}")).json()
    assert listed["proxy"]["url"] == on_port.url

    renewed = await daemon.control("POST", f"/v1/sessions/{on_port.id}/renew")
    assert renewed.status_code == 200
    await daemon.control("POST", f"/v1/sessions/{on_port.id}/revoke")
    assert await on_port.ask() == (0, "")
    assert {seen.genuine for seen in origin_server.seen} == {"openai"} and len(origin_server.seen) == 5


async def test_sockets_come_back(daemon: DaemonProcess) -> None:
    """Where its launcher looks for them: the proxy's, the one for redirected connections, and DNS."""
    opened = await daemon.open_session("sandbox")
    path = f"/v1/sessions/{opened.id}"
    before = (await daemon.control("GET", path)).json()["proxy"]
    await daemon.kill()
    await daemon.start()
    assert (await daemon.control("GET", path)).json()["proxy"] == before
    assert await opened.ask() == (200, "")
    for purpose, said, answer in (
        ("transparent", b"no PROXY header.", b"HTTP/1.1"),
        ("dns", b"\xff\xff", b""),
    ):
        reader, writer = await asyncio.open_unix_connection(urlsplit(before[purpose]).path)
        writer.write(said)
        async with asyncio.timeout(5):
            assert (await reader.read(8)) == answer
        writer.close()
