"""Ephemeral and long-running sandboxes: policies of one launcher, real guests. Two more of its lifecycles are
in tests/exhaustive/e2e/test_two_more_lifecycles_of_one_launcher.py."""

import asyncio
import threading
from collections.abc import Sequence

import psutil
import pytest

from coatcheck.client.sandbox import Sandbox, SandboxClient
from coatcheck.durable import reconcile, recovery
from coatcheck.durable.asking import supervisor_pid
from coatcheck.durable.durability import Saved
from coatcheck.sandbox.sandbox import SandboxState
from tests.sandboxes import Place
from tests.system.e2e.counting import (
    changes,
    client,
    counted,
    counting,
    made,
    state,
    until,
    where,
)

__all__ = ["client", "where"]

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
    pytest.mark.asyncio(loop_scope="module"),
]


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
