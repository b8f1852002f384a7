"""`kill -9` of the daemon at each step of a claim from its warm pool. The next daemon is the next victim."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.exhaustive.faults.dying_daemon import STEPS
from tests.sandboxes import _groups, until
from tests.system.e2e.daemon_process import DaemonProcess, daemon_process
from tests.system.e2e.story import policy
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("bwrap", "runc")
WANTED: Mapping[str, Any] = {"tenant": "acme", "subject": "agent", "policy": "default"}
SECONDS = 120.0


async def one_stands_by(daemon: DaemonProcess) -> tuple[Path, set[int]]:
    """Its directory and its processes."""
    async with asyncio.timeout(SECONDS):
        while 'warm_pool{state="ready"} 1.0' not in (await daemon.control("GET", "/metrics")).text:
            await asyncio.sleep(0.1)
    assert daemon.process is not None
    known = {each["id"].removeprefix("sbx_") for each in await sandboxes(daemon)}
    (directory,) = (each for each in (daemon.directory / "run/sandboxes").iterdir() if each.name not in known)
    children = psutil.Process(daemon.process.pid).children(recursive=True)
    return directory, {each.pid for each in children}


async def sandboxes(daemon: DaemonProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await daemon.control("GET", "/v1/sandboxes")).json()["sandboxes"]
    return found


async def dies_claiming(daemon: DaemonProcess) -> tuple[Path, set[int]]:
    """What stood by when it did."""
    standing_by = await one_stands_by(daemon)
    with pytest.raises(httpx.TransportError):
        await daemon.control("POST", "/v1/sandboxes", backend="namespace", **WANTED)
    await daemon.ended()
    return standing_by


async def begins_again(daemon: DaemonProcess, dies_at: str) -> None:
    daemon.settings = {**daemon.settings, "DIE_AT": dies_at}
    await daemon.start()


def gone(directory: Path, processes: set[int]) -> None:
    until(lambda: not any(map(psutil.pid_exists, processes)), SECONDS)
    until(lambda: not directory.exists(), SECONDS)
    until(lambda: not _groups(directory.name), SECONDS)


async def test_killed_while_a_sandbox_is_claimed_a_daemon_leaves_nothing_half_alive(
    all_output: Path, tmp_path: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> None:
    """What stood by ends with it, and the session as the next one starts; what was told whose it is goes on,
    and is its owner's under the next daemon."""
    first, *others = STEPS
    wrapper = (sys.executable, str(Path(__file__).with_name("dying_daemon.py")))
    async with daemon_process(
        all_output / "k",  # short: sockets are in it
        tmp_path / "secrets",
        policy(secret="file:openai/key#value"),
        key=real_keys["openai"],
        upstream_tls=upstream_tls,
        port=1,
        wrapper=wrapper,
        environment={"DIE_AT": first, "PYTHONPATH": os.pathsep.join(sys.path)},
        warm_pool="1",
        warm_pool_backend="namespace",
    ) as daemon:
        for following in others:
            directory, processes = await dies_claiming(daemon)
            await begins_again(daemon, following)
            await asyncio.to_thread(gone, directory, processes)
            assert {each["state"] for each in await sandboxes(daemon)} <= {"ended"}
        directory, _ = await dies_claiming(daemon)
        await begins_again(daemon, "")
        (claimed,) = (each for each in await sandboxes(daemon) if each["state"] != "ended")
        assert claimed["id"] == f"sbx_{directory.name}"
        async with asyncio.timeout(SECONDS):
            while claimed["state"] != "running":
                claimed = (await daemon.control("GET", f"/v1/sandboxes/{claimed['id']}")).json()["sandbox"]
        live = (await daemon.control("GET", "/v1/sessions?status=live")).json()["sessions"]
        assert [each["id"] for each in live] == [*claimed["sessions"].values()]
        answer = await daemon.control("POST", f"/v1/sandboxes/{claimed['id']}/kill")
        assert answer.json()["sandbox"]["state"] == "ended"
        await asyncio.to_thread(gone, directory, set())
