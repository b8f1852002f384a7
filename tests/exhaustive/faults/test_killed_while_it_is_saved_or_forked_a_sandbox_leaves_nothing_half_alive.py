"""A failure of the daemon right before each step of a fork; and `kill -9` of a supervisor, and so of its
machine, at steps of a fork and of a save. One parent for all, under a real daemon."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.client.sandbox import Sandbox, SandboxClient
from coatcheck.control.problem import ControlProblem
from coatcheck.sandbox.sandbox import SandboxProblem
from tests.exhaustive.faults.forking_daemon import FORK
from tests.launcher.steps import Step, right_before, steps_of
from tests.sandboxes import WANTED, Place, family, image_cache, nothing_left, place, until
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
    pytest.mark.asyncio(loop_scope="module"),
]
SECONDS = 120.0
ELSEWHERE = {
    "saved = await asyncio.to_thread(self._kept.saved, sandbox.id, name)",  # of a named snapshot
    "await self._take(partial(self._state.end, made.session, maker))",  # after a failure
    "await asyncio.to_thread(self._kept.drop, point)",  # as the next daemon does
    "return await self._start(admitted, identities, back, boots=True)",  # of the warm pool
}


@dataclass
class World:
    where: Place
    client: SandboxClient
    parent: Sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[World]:
    image_cache()
    wanted: dict[str, Any] = {**WANTED, "backend": "microvm", "memory_mib": 160, "disk_mib": 32}
    async with place(all_output, upstream_tls) as where, where.client() as client:
        yield World(where, client, await client.create(**wanted))


def live(where: Place) -> set[str]:
    """Sessions that may do anything."""
    return {each for each in where.daemon.state.sessions.by_id if not where.daemon.exchange.is_over(each)}


def state(where: Place, sandbox: str) -> str:
    now = where.daemon.sandboxes.settle(sandbox)
    return now.state if now is not None else "gone"


def no_room() -> None:
    raise ControlProblem(SandboxProblem.NO_ROOM, "a test has no room", "Ask another one.")


@pytest.mark.parametrize(
    "step", [each for each in steps_of(FORK, FORK) if each.text not in ELSEWHERE], ids=str
)
async def test_a_fork_that_fails_at_a_step_leaves_none_of_its_copies(world: World, step: Step) -> None:
    """All of them or none: no session, no process, no directory, no memory; and its parent goes on. Those
    that were complete when an answer failed are whole."""
    where, parent = world.where, world.parent
    before = live(where)
    with right_before(step, no_room) as reached:
        with pytest.raises(ControlError, match="a test has no room"):
            await world.client.fork(parent.id, 2)
        assert reached
    others = [each.id for each in where.daemon.sandboxes.all() if each.id != parent.id]
    await asyncio.to_thread(
        until,
        lambda: all(state(where, each) != "starting" for each in others),
        SECONDS,
    )
    if "await self.running(each)" in step.text:
        for other in others:
            found = await world.client.get(other)
            if found.shown["state"] == "running":
                assert found.shown["sessions"]["agent"] != parent.shown["sessions"]["agent"]
                await found.kill()
    await asyncio.to_thread(until, lambda: all(state(where, each) == "ended" for each in others), SECONDS)
    assert live(where) == before
    kept = where.daemon.sandboxes.kept
    assert not list((kept.place(parent.id) / "forks").iterdir())
    assert not any(kept.place(each).exists() or where.directory(each).exists() for each in others)
    assert not where.daemon.sandboxes.admitted()
    assert (await parent.run(["true"])).exit_code == 0


def supervisor_of(where: Place, sandbox: str) -> int | None:
    process = where.daemon.sandboxes.supervisor(sandbox)
    return process.pid if process is not None else None


def _children(pid: int) -> Sequence[psutil.Process]:
    children: Sequence[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return children


def _is_qemu(process: psutil.Process) -> bool:
    try:
        return str(process.name()).startswith("qemu")
    except psutil.NoSuchProcess:  # what prepares a disk ends after a moment
        return False


MOMENTS: dict[str, Callable[[int], object]] = {
    "at once": lambda pid: True,
    "while its machine is loaded": lambda pid: any(map(_is_qemu, _children(pid))),
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


def ended(control: ControlClient, sandbox: str) -> dict[str, Any]:
    """It, once the daemon has looked: a caller that waited for an answer of its supervisor's knows before
    that. Its sessions end with it."""
    until(lambda: control.sandbox(sandbox)["state"] == "ended", SECONDS)
    shown: dict[str, Any] = control.sandbox(sandbox)
    sessions = shown["sessions"].values()
    until(lambda: {control.show(each)["session"]["status"] for each in sessions} == {"ended"}, SECONDS)
    return shown


async def test_killed_while_it_is_saved_or_forked_a_sandbox_leaves_nothing_half_alive(
    world: World,
) -> None:
    """A fork is gone with its session and its parent goes on; what was saved before brings a parent back."""
    where, client, parent = world.where, world.client, world.parent
    control = where.control()
    await asyncio.to_thread(control.take_snapshot, parent.id, "good")
    for when in MOMENTS.values():
        forking = asyncio.create_task(client.fork(parent.id, snapshot="good"))
        clone = await asyncio.to_thread(kill_a_fork, where, parent, when)
        await asyncio.gather(forking, return_exceptions=True)
        shown = await asyncio.to_thread(ended, control, clone)
        assert shown["ending"] in ("supervisor_gone", "start_failed")
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
    gone = await asyncio.to_thread(ended, control, parent.id)
    assert gone["ending"] == "supervisor_gone"
    back = await asyncio.to_thread(control.restore_sandbox, parent.id)
    assert back["state"] in ("starting", "running")
    async with asyncio.timeout(SECONDS):
        again = await client.get(parent.id)
        assert (await again.run(["echo", "back"])).exit_code == 0
    await asyncio.to_thread(until, lambda: [path.name for path in snapshots.iterdir()] == ["good"], SECONDS)
    control.kill_sandbox(parent.id)
