"""The daemon is killed outright and started again: nothing that was given or taken is forgotten."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import run

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


def verified(daemon: DaemonProcess) -> dict[str, object]:
    """What `coatcheck audit verify` says."""
    done = run(
        [sys.executable, "-m", "coatcheck", "audit", "verify", str(daemon.audit), "--json"],
        env=dict(daemon.settings), capture_output=True, text=True, check=False,
    )  # fmt: skip
    report: dict[str, object] = json.loads(done.stdout)
    assert (done.returncode == 0) == report["ok"], done.stderr
    return report


async def test_each_session_gets_back_the_listener_it_had_and_no_other(daemon: DaemonProcess) -> None:
    """A session on a port does not get a socket by a restart, nor one that never had either."""
    on_port = await daemon.open_session("tcp")
    bare = await daemon.control(
        "POST", "/v1/sessions", tenant="acme", subject="none", policy="default", listen="none"
    )
    daemon.send(signal.SIGTERM)
    assert (await daemon.ended())[0] == 0
    await daemon.start()
    assert await on_port.ask() == (200, "")
    assert [path.name for path in (daemon.directory / "run").rglob("*.sock")] == ["control.sock"]
    shown = (await daemon.control("GET", f"/v1/sessions/{bare.json()['session']['id']}")).json()
    assert (shown["session"]["status"], shown["proxy"]["url"]) == ("live", None)


async def test_a_torn_line_is_mended_and_the_chain_stays_whole(daemon: DaemonProcess) -> None:
    """What a crash cut short is set aside and recorded, and everything before it still verifies."""
    session = await daemon.open_session("tcp")
    assert await session.ask() == (200, "")
    await daemon.kill()
    with daemon.audit.open("ab") as log:
        log.write(b'{"type":"decision","seq":99,"half a rec')
    torn = verified(daemon)
    assert torn["ok"] and "torn" in str(torn["findings"])

    await daemon.start()
    assert await session.ask() == (200, "")
    daemon.send(signal.SIGTERM)
    await daemon.ended()
    whole = verified(daemon)
    assert whole["ok"] and whole["findings"] == []
    assert whole["signed_through"] == whole["last_seq"]
    assert "recovered" in [record.get("what") for record in daemon.records()]

    lines = daemon.audit.read_bytes().splitlines(keepends=True)
    daemon.audit.write_bytes(b"".join(lines[:2] + lines[3:]))  # the control: a missing line is found
    assert not verified(daemon)["ok"]


async def test_a_lease_goes_on_running_while_the_daemon_is_dead(daemon: DaemonProcess) -> None:
    """A restart gives no session a second more."""
    opened = await daemon.control(
        "POST", "/v1/sessions", tenant="acme", subject="short", policy="default", lease_seconds=1
    )
    await daemon.kill()
    await daemon.start()
    while time.time() < opened.json()["lease_expires_at"]:  # most machines take longer to start
        await asyncio.sleep(0.02)
    shown = await daemon.control("GET", f"/v1/sessions/{opened.json()['session']['id']}")
    assert shown.json()["session"]["status"] == "lapsed"
