"""`kill -9` of a supervisor, and so of its machine, at steps of a fork and of a save, under a real daemon."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from coatcheck.control_client import ControlError
from coatcheck.sandbox_client import Sandbox
from tests.sandboxes import WANTED, Place, family, image_cache, nothing_left, place, until
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs")
SECONDS = 120.0


def supervisor_of(where: Place, sandbox: str) -> int | None:
    process = where.daemon.sandboxes._processes.get(sandbox)
    return process.pid if process is not None else None


def _children(pid: int) -> Sequence[psutil.Process]:
    children: Sequence[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return children


MOMENTS: dict[str, Callable[[int], object]] = {
    "at once": lambda pid: True,
    "while its machine is loaded": lambda pid: any(each.name().startswith("qemu") for each in _children(pid)),
}


def kill_a_fork(where: Place, parent: Sandbox, when: Callable[[int], object]) -> str:
    """Its id. It was killed before it was somebody of its own, and nothing of it is left."""
    before = {each.id for each in where.daemon.sandboxes.all()}
    found: dict[str, int] = {}

    def appeared() -> bool:
        for each in where.daemon.sandboxes.all():
            if each.id not in before and (pid := supervisor_of(where, each.id)) is not None:
                found[each.id] = pid
        return bool(found)

    until(appeared, SECONDS)
    ((sandbox, pid),) = found.items()
    until(lambda: when(pid), SECONDS)
    with nothing_left(where.directory(sandbox)) as processes:
        processes |= family(pid)
        os.kill(pid, signal.SIGKILL)
    return sandbox


async def test_killed_while_it_is_saved_or_forked_a_sandbox_leaves_nothing_half_alive(
    all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """A fork is gone with its session and its parent goes on; what was saved before brings a parent back."""
    image_cache()
    wanted: dict[str, Any] = {**WANTED, "backend": "microvm", "memory_mib": 192, "disk_mib": 32}
    async with place(all_output, upstream_tls) as where, where.client() as client:
        control = where.control()
        parent = await client.create(**wanted)
        await asyncio.to_thread(control.take_snapshot, parent.id, "good")
        for when in MOMENTS.values():
            forking = asyncio.create_task(client.fork(parent.id, snapshot="good"))
            clone = await asyncio.to_thread(kill_a_fork, where, parent, when)
            await asyncio.gather(forking, return_exceptions=True)
            shown = control.sandbox(clone)
            assert shown["state"] == "ended" and shown["ending"] in ("supervisor_gone", "start_failed")
            for session in shown["sessions"].values():
                assert control.show(session)["session"]["status"] == "ended"
            assert (await parent.run(["echo", "undisturbed"])).exit_code == 0

        snapshots = where.daemon.sandboxes.kept.place(parent.id) / "snapshots"
        pid = supervisor_of(where, parent.id)
        assert pid is not None
        saving = asyncio.create_task(asyncio.to_thread(control.take_snapshot, parent.id, "half"))

        def kill() -> None:
            until(lambda: any(snapshots.glob(".unfinished-*")), SECONDS)
            with nothing_left(where.directory(parent.id)) as processes:
                processes |= family(pid)
                os.kill(pid, signal.SIGKILL)

        await asyncio.to_thread(kill)
        with pytest.raises(ControlError):
            await saving
        gone = control.sandbox(parent.id)
        assert (gone["state"], gone["ending"]) == ("ended", "supervisor_gone")
        back = await asyncio.to_thread(control.restore_sandbox, parent.id)
        assert back["state"] in ("starting", "running")
        async with asyncio.timeout(SECONDS):
            again = await client.get(parent.id)
            assert (await again.run(["echo", "back"])).exit_code == 0
        assert sorted(path.name for path in snapshots.iterdir()) == ["good"]
        control.kill_sandbox(parent.id)
