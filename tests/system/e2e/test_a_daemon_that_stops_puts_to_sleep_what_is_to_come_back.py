"""A daemon is stopped in order, as for an update: what is to come back goes on with the next one."""

import asyncio
from pathlib import Path

import pytest

from coatcheck.client.sandbox import Sandbox, SandboxClient
from tests.daemon import TestDaemon, running_daemon
from tests.sandboxes import POLICY, WANTED, image_cache
from tests.system.e2e.counting import counted, counting, made
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs", "bwrap")]


def told(daemon: TestDaemon, sandbox: Sandbox) -> list[tuple[str, str, str]]:
    """Each change of it, with how it ended, and why."""
    return [
        (each["change"], each["ending"], each["detail"])
        for each in daemon.records()
        if each["type"] == "sandbox" and each["sandbox"] == sandbox.id
    ]


async def test_a_daemon_that_stops_puts_to_sleep_what_is_to_come_back(
    all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """Its program never knew: the same one counts on, with new sessions, and by nobody's word. One that
    nobody wanted to keep ends, and says why."""
    image_cache()
    directory = all_output / "stopped"
    secrets = {"memory:secret/openai#api_key": "", "memory:secret/anthropic#api_key": ""}
    async with running_daemon(
        directory, POLICY, secrets, upstream_ca=upstream_tls.ca, connect_to={}
    ) as daemon:
        async with SandboxClient(daemon.settings.control) as client:
            stays = await made(client, "long-running")
            ends = await client.create(**WANTED)
            program, far = await counting(stays)
            session = stays.shown["sessions"]["agent"]
            await daemon.drain()
        assert daemon.sandboxes.is_down(stays.id) and not daemon.sandboxes.is_down(ends.id)
        assert daemon.state.status(session) == "ended"
    assert [change for change, _, _ in told(daemon, stays)] == ["created", "running", "sleeping"]
    assert told(daemon, ends)[-1] == ("ended", "daemon_gone", "the daemon was stopped")
    async with running_daemon(
        directory, POLICY, secrets, upstream_ca=upstream_tls.ca, connect_to={}
    ) as daemon:
        async with asyncio.timeout(120), SandboxClient(daemon.settings.control) as client:
            while (back := await client.get(stays.id)).shown["state"] != "running":
                assert back.shown["state"] in ("sleeping", "starting")
                await asyncio.sleep(0.05)
            assert back.shown["sessions"]["agent"] != session
            again, further = await counted(back)
            assert again == program and further >= far
            while (await counted(back))[1] <= further:
                await asyncio.sleep(0.05)
            assert told(daemon, stays)[-1][0] == "woke" and daemon.sandboxes.kept.interrupted() == ()
            await back.kill()
