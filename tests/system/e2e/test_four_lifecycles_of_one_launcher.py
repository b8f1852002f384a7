"""Ephemeral, hybrid, shared and long-running sandboxes: one launcher, four policies, real guests."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from coatcheck.client.sandbox import Sandbox, SandboxClient
from coatcheck.durable import reconcile, recovery
from coatcheck.durable.asking import supervisor_pid
from coatcheck.durable.durability import Saved
from coatcheck.sandbox.sandbox import SandboxState
from tests.sandboxes import WANTED, Place, image_cache, place
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
    pytest.mark.asyncio(loop_scope="module"),
]

SECONDS = 120.0
COUNTER = "cd /home/agent; n=0; while n=$((n+1)); do echo $$ $n > new; mv new n; sleep 0.05; done"
"""A program that shows how far it is, and that it is the same one."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    image_cache()
    async with place(all_output, upstream_tls) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(where: Place) -> AsyncIterator[SandboxClient]:
    async with where.client() as made:
        yield made


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.05)


async def made(client: SandboxClient, lifecycle: str, **different: Any) -> Sandbox:
    wanted = {**WANTED, "backend": "microvm", "memory_mib": 160, "disk_mib": 32, "lifecycle": lifecycle}
    return await client.create(**wanted, **different)


def state(where: Place, sandbox: Sandbox) -> str:
    now = where.daemon.sandboxes.settle(sandbox.id)
    return now.state if now is not None else "gone"


def changes(where: Place, sandbox: Sandbox) -> list[str]:
    told = [each for each in where.daemon.records() if each["type"] == "sandbox"]
    return [each["change"] for each in told if each["sandbox"] == sandbox.id]


async def counted(sandbox: Sandbox) -> tuple[str, int]:
    """Its program's id, and how far it is."""
    async with sandbox.read_file("/home/agent/n") as chunks:
        said = b"".join([chunk async for chunk in chunks]).decode().split()
    return said[0], int(said[1])


async def counting(sandbox: Sandbox) -> tuple[str, int]:
    started = await sandbox.run(
        ["sh", "-c", f"({COUNTER}) </dev/null >/dev/null 2>&1 & until [ -s n ]; do :; done"],
        cwd="/home/agent",
    )
    assert started.exit_code == 0
    return await counted(sandbox)


async def test_an_ephemeral_one_ends_when_nobody_needs_it_and_nothing_of_it_is_kept(
    where: Place, client: SandboxClient
) -> None:
    """No word of its maker's is needed for that: its sessions are over, its files are gone."""
    sandbox = await made(client, "ephemeral", idle_seconds=1)
    assert (await sandbox.run(["true"])).exit_code == 0
    await until(lambda: state(where, sandbox) == "ended")
    shown = await sandbox.refresh()
    assert (shown["ending"], shown["recoverable"]) == ("idle", False)
    assert not where.daemon.sandboxes.kept.place(sandbox.id).exists()
    (session,) = shown["sessions"].values()
    assert where.control().show(session)["session"]["status"] == "ended"


async def test_a_hybrid_one_sleeps_between_its_bursts(where: Place, client: SandboxClient) -> None:
    """It takes no process while it sleeps; its program goes on where it was, with new sessions, and when that
    is done it sleeps again."""
    sandbox = await made(client, "hybrid", idle_seconds=1)
    program, far = await counting(sandbox)
    session = sandbox.shown["sessions"]["agent"]
    await until(lambda: where.daemon.sandboxes.is_down(sandbox.id))
    assert state(where, sandbox) == "sleeping" and not where.directory(sandbox.id).exists()
    again, further = await counted(sandbox)  # whoever uses it wakes it
    assert again == program and further >= far
    assert (await sandbox.refresh())["sessions"]["agent"] != session
    await until(lambda: where.daemon.sandboxes.is_down(sandbox.id))
    assert [each for each in changes(where, sandbox) if each in ("sleeping", "woke")][:2] == [
        "sleeping",
        "woke",
    ]
    await sandbox.kill()
    assert not where.daemon.sandboxes.kept.place(sandbox.id).exists()


async def test_a_shared_one_keeps_its_agents_apart_and_outlives_the_end_of_one(
    where: Place, client: SandboxClient
) -> None:
    """Each call is attributed to the session of whoever made it; one's revocation takes nothing from the
    other, and the last one's is the end of it."""
    people = [{"name": "agent"}, {"name": "tool"}]
    sandbox = await made(client, "shared", identities=people)
    sessions = sandbox.shown["sessions"]

    async def ask(identity: str) -> str:
        curl = 'curl -s -o /dev/null -w "%{http_code}" -H "Authorization: Bearer $OPENAI_API_KEY"'
        call = ["sh", "-c", f"{curl} https://api.openai.com/v1/models"]
        return (await sandbox.run(call, identity=identity)).stdout.decode()

    for identity in ("agent", "tool"):
        assert await ask(identity) == "200"
        assert where.daemon.decisions()[-1]["session"] == sessions[identity]
    await asyncio.to_thread(where.control().revoke, sessions["tool"])
    await until(lambda: "identity_over" in changes(where, sandbox))
    assert await ask("tool") != "200"
    assert await ask("agent") == "200"
    await asyncio.to_thread(where.control().report_sandbox, sandbox.id, "running")  # its lease goes on
    assert state(where, sandbox) == "running"
    await asyncio.to_thread(where.control().revoke, sessions["agent"])
    await until(lambda: state(where, sandbox) == "ended")
    assert (await sandbox.refresh())["ending"] == "session_over"
    await sandbox.kill()


async def test_a_long_running_one_comes_back_by_itself_until_it_is_a_crash_loop(
    where: Place, client: SandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the snapshot that was taken by itself: the same program, new sessions, the same time limit. One
    that dies again is given up; then somebody's word brings it back."""
    sandboxes, may_look = where.daemon.sandboxes, threading.Event()
    snapshots = sandboxes.kept.snapshots

    def wait_and_look(sandbox_id: str) -> Sequence[Saved]:
        found = sandboxes.get(sandbox_id)
        if found is not None and found.state is SandboxState.RUNNING:
            may_look.wait(60)
        return snapshots(sandbox_id)

    monkeypatch.setattr(sandboxes.kept, "snapshots", wait_and_look)
    monkeypatch.setattr(reconcile, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(recovery, "ATTEMPTS", 1)
    sandbox = await made(client, "long-running")
    program, _ = await counting(sandbox)
    may_look.set()
    await until(lambda: "snapshot" in changes(where, sandbox))
    (taken,) = await sandbox.snapshots()
    assert taken["name"].startswith("auto-")
    session, ends = sandbox.shown["sessions"]["agent"], sandbox.shown["expires_at"]
    await asyncio.to_thread(kill_machine, where, sandbox)
    await until(lambda: "restored" in changes(where, sandbox))
    assert (await counted(sandbox))[0] == program
    shown = await sandbox.refresh()
    assert shown["sessions"]["agent"] != session and abs(shown["expires_at"] - ends) < 5
    await asyncio.to_thread(kill_machine, where, sandbox)
    await until(lambda: "given_up" in changes(where, sandbox))
    shown = await sandbox.refresh()
    assert (shown["state"], shown["ending"], shown["recoverable"]) == ("ended", "crash_loop", True)
    assert "died again: machine_ended: QEMU was killed by signal 9" in shown["detail"]
    assert changes(where, sandbox).count("recovering") == 1
    await sandbox.restore()
    assert (await counted(sandbox))[0] == program
    await sandbox.kill()


def kill_machine(where: Place, sandbox: Sandbox) -> None:
    """SIGKILL to its QEMU, and nothing said to anybody."""
    supervisor = supervisor_pid(where.directory(sandbox.id))
    assert supervisor is not None
    (qemu,) = (each for each in psutil.Process(supervisor).children(recursive=True) if "qemu" in each.name())
    qemu.kill()
