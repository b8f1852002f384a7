"""Daemon, supervisors and machines are killed at one moment, as when the power goes; then a daemon starts."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from coatcheck.client.control import ControlClient
from coatcheck.client.sandbox import SandboxClient
from coatcheck.durable.asking import supervisor_pid
from tests.exhaustive.faults.daemon_and_origin import daemon_and_origin
from tests.known_secrets import known_secret
from tests.sandboxes import _groups, alive, family, image_cache, until
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs")
SECONDS = 120.0
WANTED: dict[str, Any] = {
    "tenant": "acme", "subject": "agent", "policy": "default", "backend": "microvm", "memory_mib": 160,
    "disk_mib": 32,
}  # fmt: skip


async def test_a_host_that_crashed_brings_its_sandboxes_back(
    all_output: Path, tmp_path: Path, upstream_tls: UpstreamTls
) -> None:
    """Those that were to come back run again, as somebody new; another is listed and waits for a word; one
    that a limit or its owner ended does not rise. Nothing of before is left: no process, group, directory or
    session."""
    cache = image_cache()
    directory = all_output / "crash"
    key = known_secret("a host that crashes", prefix="sk-proj-")
    settings: dict[str, Any] = {"cache_dir": str(cache)}
    async with daemon_and_origin(directory, tmp_path / "secrets", upstream_tls, key, **settings) as (
        daemon,
        _,
    ):
        control = ControlClient(directory / "run/control.sock")
        async with SandboxClient(directory / "run/control.sock") as client:
            back, waits = await asyncio.gather(
                client.create(**WANTED, recover="last-snapshot"), client.create(**WANTED)
            )
            await back.write_file("/home/agent/note", b"before")
            for each in (back, waits):
                await each.snapshot("safe")
            await back.write_file("/home/agent/note", b"after")
        before: dict[str, Any] = {each["id"]: each for each in control.sandboxes()}
        places = {each: directory / "run/sandboxes" / each.removeprefix("sbx_") for each in before}
        supervisors = [supervisor_pid(place) for place in places.values()]
        assert daemon.process is not None
        processes = set().union(
            *(family(pid) for pid in (*supervisors, daemon.process.pid) if pid is not None)
        )
        assert sum(psutil.Process(pid).name().startswith("qemu") for pid in processes) == 2
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        await daemon.kill()
        until(lambda: not any(map(alive, processes)), SECONDS)

        await daemon.start()
        until(lambda: control.sandbox(back.id)["state"] == "running", SECONDS)
        now = {each["id"]: each for each in control.sandboxes()}
        assert (now[waits.id]["state"], now[waits.id]["recoverable"]) == ("ended", True)
        assert now[waits.id]["ending"] == "supervisor_gone"
        assert not places[waits.id].exists() and not _groups(places[waits.id].name)
        for each in before.values():
            for session in each["sessions"].values():
                assert control.show(session)["session"]["status"] == "ended"
        assert now[back.id]["sessions"].keys() == before[back.id]["sessions"].keys()
        assert now[back.id]["sessions"] != before[back.id]["sessions"]
        async with SandboxClient(directory / "run/control.sock") as client:
            again = await client.get(back.id)
            async with again.read_file("/home/agent/note") as chunks:
                assert b"".join([chunk async for chunk in chunks]) == b"before"
        told = [each for each in daemon.records() if each["type"] == "sandbox" and each["sandbox"] == back.id]
        assert [each["change"] for each in told][-3:] == ["ended", "recovering", "restored"]
        for sandbox in before:
            control.kill_sandbox(sandbox)
        assert not any((directory / "state/sandboxes").iterdir())
