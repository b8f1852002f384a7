"""SIGTERM ends the daemon in order: what runs may finish until a deadline, what is new is refused."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from demo.upstreams.server import TlsServer
from tests.system.e2e.daemon_process import DaemonProcess, daemon_process
from tests.system.e2e.story import policy, until
from tests.upstreams import UpstreamTls

type StartDaemon = Callable[[float], AbstractAsyncContextManager[DaemonProcess]]


@pytest.fixture
def draining_in(
    place: Path,
    tmp_path: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> StartDaemon:
    """`draining_in(2.0)`: a daemon that gives streams so many seconds."""

    def start(seconds: float) -> AbstractAsyncContextManager[DaemonProcess]:
        return daemon_process(
            place,
            tmp_path / "secrets",
            policy(secret="file:openai/key#value"),
            key=real_keys["openai"],
            upstream_tls=upstream_tls,
            port=origin_server.port,
            drain_seconds=str(seconds),
        )

    return start


async def test_a_stream_finishes_and_new_requests_do_not_begin(
    draining_in: StartDaemon, origin_server: TlsServer
) -> None:
    """On connections that are open new requests get 503 `draining`, new connections are not accepted, the
    control API opens no session, and the stream's last event arrives before the process ends with 0."""
    async with draining_in(60) as daemon:
        session = await daemon.open_session("tcp")
        stream, kept = await session.connect(), await session.connect()
        assert await session.request(stream, "/sse?n=30&gap_ms=100") == (200, "")
        await stream.reader.readuntil(b"\n\n")
        daemon.send(signal.SIGTERM)

        async def draining() -> bool:
            return any(record.get("what") == "draining" for record in daemon.records())

        await until(draining, lambda begun: begun)
        assert await session.request(kept) == (503, "draining")
        assert await session.ask() == (0, "")
        refused = await daemon.control(
            "POST", "/v1/sessions", tenant="acme", subject="late", policy="default", listen="tcp"
        )
        assert refused.status_code == 503 and refused.json()["error"]["reason"] == "draining"
        async with asyncio.timeout(20):
            assert b'"n":29' in await stream.reader.readuntil(b"0\r\n\r\n")
        code, seconds = await daemon.ended()
        assert code == 0 and seconds < 30, "it waited although nothing ran any more"
    assert len(origin_server.seen) == 1
    assert [record["what"] for record in daemon.records() if record["type"] == "daemon"][-2:] == [
        "draining",
        "stopped",
    ]


async def test_a_stream_that_does_not_end_is_cut_off_at_the_deadline(draining_in: StartDaemon) -> None:
    """And so that nobody takes it for complete; the process ends in time."""
    async with draining_in(1) as daemon:
        session = await daemon.open_session("tcp")
        stream = await session.connect()
        assert await session.request(stream, "/sse?n=10000&gap_ms=20") == (200, "")
        began = time.monotonic()
        daemon.send(signal.SIGTERM)
        code, _ = await daemon.ended()
        assert code == 0
        assert 0.9 < time.monotonic() - began < 40
        assert not (await stream.rest()).endswith(b"0\r\n\r\n")
    (end,) = [record for record in daemon.records() if record["type"] == "completion"]
    assert end["aborted"] == "draining"


async def test_a_second_sigterm_does_not_wait(draining_in: StartDaemon) -> None:
    """An operator who cannot wait for the deadline says so twice."""
    async with draining_in(60) as daemon:
        session = await daemon.open_session("tcp")
        stream = await session.connect()
        assert await session.request(stream, "/sse?n=10000&gap_ms=20") == (200, "")
        daemon.send(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert daemon.process is not None and daemon.process.returncode is None
        daemon.send(signal.SIGTERM)
        code, seconds = await daemon.ended()
        assert code == 0 and seconds < 40
