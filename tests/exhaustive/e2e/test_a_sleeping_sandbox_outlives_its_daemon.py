"""A sandbox falls asleep by a command; its daemon stops, another one starts, and it goes on where it was."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.client.sandbox import SandboxClient
from tests.cli.transcript import coatcheck
from tests.daemon import TestDaemon, running_daemon
from tests.sandboxes import POLICY, image_cache
from tests.upstreams import UpstreamTls

COUNTER = "cd /home/agent; n=0; while n=$((n+1)); do echo $n > new; mv new n; sleep 0.05; done"
"""A program that shows how far it is, and that it is the same one."""


async def command(daemon: TestDaemon, *arguments: str) -> Any:
    """`coatcheck sandbox …` as somebody types it; what it says to programs."""
    options = ("--socket", daemon.settings.control, "--json")
    said = await asyncio.to_thread(coatcheck, "sandbox", *arguments, *options, cwd=Path.cwd())
    assert said.code == 0, said.err
    return json.loads(said.out)


async def counts(client: SandboxClient, sandbox_id: str) -> None:
    """Until its program has counted on."""
    sandbox = await client.get(sandbox_id)
    before = b""
    async with asyncio.timeout(60):
        while True:
            async with sandbox.read_file("/home/agent/n") as chunks:
                now = b"".join([chunk async for chunk in chunks])
            if before and int(now) > int(before):
                return
            before = now


async def test_a_sleeping_sandbox_outlives_its_daemon(all_output: Path, upstream_tls: UpstreamTls) -> None:
    """Its record and its memory are all that there is of it meanwhile; its owner's end leaves nothing."""
    image_cache()
    directory = all_output / "asleep"
    secrets = {"memory:secret/openai#api_key": "", "memory:secret/anthropic#api_key": ""}
    async with running_daemon(
        directory, POLICY, secrets, upstream_ca=upstream_tls.ca, connect_to={}
    ) as daemon:
        async with SandboxClient(daemon.settings.control) as client:
            made = await client.create(
                tenant="acme",
                subject="agent",
                policy="default",
                backend="microvm",
                memory_mib=192,
                disk_mib=32,
            )
            async with await made.start(["sh", "-c", COUNTER]):
                async with asyncio.timeout(60):
                    while (await made.run(["cat", "/home/agent/n"])).exit_code:
                        pass
                taken = await command(daemon, "snapshot", made.id, "running")
                assert taken["name"] == "running"
                (asleep,) = await command(daemon, "sleep", made.id)
                assert asleep["state"] == "sleeping"
    async with running_daemon(
        directory, POLICY, secrets, upstream_ca=upstream_tls.ca, connect_to={}
    ) as daemon:
        control = ControlClient(daemon.settings.control)
        (found,) = control.sandboxes()
        assert (found["id"], found["state"]) == (made.id, "sleeping")
        overlay = directory / "state/sandboxes" / made.id.removeprefix("sbx_") / "asleep/overlay"
        overlay.rename(directory / "overlay")
        with pytest.raises(ControlError, match="sleeps on: the overlay of the snapshot") as not_woken:
            await asyncio.to_thread(control.wake_sandbox, made.id)
        assert not_woken.value.reason == "not_woken"
        (directory / "overlay").rename(overlay)
        (awake,) = await command(daemon, "wake", made.id)
        assert awake["state"] == "running"
        assert awake["sessions"].keys() == found["sessions"].keys()
        assert awake["sessions"] != found["sessions"]
        async with SandboxClient(daemon.settings.control) as client:
            await counts(client, made.id)
            (clone,) = await command(daemon, "fork", made.id, "--snapshot", "running")
            await counts(client, clone["id"])
        assert [each["name"] for each in await command(daemon, "snapshots", made.id)] == ["running"]
        (back,) = await command(daemon, "restore", made.id, "--snapshot", "running")
        assert back["state"] == "running"
        place = daemon.sandboxes.kept.place(made.id)
        assert place.is_dir()
        for each in (made.id, clone["id"]):
            control.kill_sandbox(each)
        assert not place.exists()
        assert daemon.sandboxes.kept.held() == frozenset()
