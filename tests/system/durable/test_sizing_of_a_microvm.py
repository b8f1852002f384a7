"""Sizes of a real machine: what a balloon gives back to the host, and what holds when the guest's root lets
the air out of it. One guest serves all; it does not survive the last test."""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.containers import cgroup
from coatcheck.durable import elasticity
from coatcheck.durable.autoscale import Autoscale
from coatcheck.durable.elastic import Elastic
from coatcheck.durable.elasticity import Elasticity, Means
from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.sizing import NEARLY, Sizing, Use
from coatcheck.durable.spec import Saving
from coatcheck.launcher.channel import Channel
from coatcheck.sandbox.limits import Limits
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.resources import Resources, Size
from tests.durable.test_elasticity import Daemon, nobody
from tests.launcher import tiny
from tests.launcher.scripted import ScriptedMachine
from tests.system.launcher.test_microvm import wanted

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "bwrap", "mke2fs", "cc"),
    pytest.mark.asyncio(loop_scope="module"),
]

FLOOR, CEILING = Size(224, 1), Size(1024, 2)
SECONDS = 60.0
"""For a balloon to move on a machine that many share; it takes one or two."""


class Grown:
    def __init__(self, machine: DurableMicroVM, guest: tiny.Guest) -> None:
        assert machine.sizing is not None
        self.machine, self.guest, self.sizing = machine, guest, machine.sizing

    async def until(self, true: Callable[[Use], bool]) -> Use:
        deadline = time.monotonic() + SECONDS
        while True:
            await self.sizing.settle()
            use = await self.sizing.use()
            if true(use):
                return use
            assert time.monotonic() < deadline, use
            await asyncio.sleep(0.05)

    async def has(self, mib: int) -> Use:
        return await self.until(lambda use: abs(use.has_mib - mib) <= NEARLY)


@contextlib.asynccontextmanager
async def elastic(place: Path, image: Path) -> AsyncIterator[Grown]:
    directory = place / secrets.token_hex(8)
    directory.mkdir(mode=0o700)
    plain = wanted(image)
    spec = replace(plain, resources=replace(plain.resources, **asdict(CEILING)), starts_with=FLOOR)
    machine = DurableMicroVM(spec, Saving(), directory)
    guest = tiny.Guest(await machine.start())
    try:
        assert await guest.line() == "hello"
        it = Grown(machine, guest)
        await it.sizing.resize(FLOOR)
        await it.has(FLOOR.memory_mib)
        yield it
    finally:
        guest.close()
        await machine.stop()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("image"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Grown]:
    async with elastic(tmp_path_factory.mktemp("shared"), image) as it:
        yield it


async def until(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def total_mib(guest: tiny.Guest) -> int:
    return int((await guest.ask("read /proc/meminfo")).split()[1]) // 1024


async def test_it_grows_and_shrinks_while_it_runs(shared: Grown) -> None:
    """Programs in it see what it has now, and what it gives up is the host's again."""
    assert await total_mib(shared.guest) <= FLOOR.memory_mib
    await shared.sizing.resize(Size(512, 1))
    await shared.has(512)
    assert FLOOR.memory_mib < await total_mib(shared.guest) <= 512
    assert await shared.guest.ask("touch 250") == "touched"
    full = await shared.until(lambda use: (use.used_mib or 0) > 250)
    assert full.resident_mib >= 250
    assert await shared.guest.ask("release") == "released"
    await shared.sizing.resize(FLOOR)
    less = await shared.has(FLOOR.memory_mib)
    assert less.resident_mib <= FLOOR.memory_mib + NEARLY < full.resident_mib
    assert await shared.guest.ask("echo alive") == "alive"


async def test_it_grows_by_itself_for_what_it_really_uses(
    shared: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its own numbers, which its memory on the host bears out; and shrinks when that is over."""
    monkeypatch.setattr(elasticity, "LOOK_SECONDS", 0.1)
    daemon, agent, now = Daemon([]), ScriptedMachine(), [0.0]
    most = Elastic(FLOOR.memory_mib, 448, 1, 2, autoscale=Autoscale(up_percent=55, cooldown_seconds=1e9))
    grows = Elasticity(
        "sbx_0",
        Limits(Resources(memory_mib=FLOOR.memory_mib)),
        Means(most, shared.sizing, daemon),
        lambda: now[0],
    )
    channel = Channel(await agent.start(), nobody, {})
    talking = asyncio.create_task(channel.run())

    async def ready() -> Channel:
        await channel.ready(SECONDS)
        return channel

    task = asyncio.create_task(grows.run(ready, lambda: True))
    try:
        assert await shared.guest.ask("touch 60") == "touched"
        await until(lambda: daemon.steps == [(448, 2, "autoscaler")], SECONDS)
        await shared.has(448)
        assert await shared.guest.ask("release") == "released"
        await until(lambda: grows.past.low_since is not None, SECONDS)
        now[0] += 901.0
        await until(lambda: daemon.steps[1:] != [] and grows.now.memory_mib < 448, SECONDS)
        await shared.has(grows.now.memory_mib)
    finally:
        for each in (task, talking):
            each.cancel()
        await asyncio.gather(task, talking, return_exceptions=True)
        await agent.stop()
        await shared.sizing.resize(FLOOR)
        await shared.has(FLOOR.memory_mib)


async def test_what_it_says_is_in_use_is_never_more_than_the_host_gave(shared: Grown) -> None:
    """Pages that nobody touched are not in use, whatever its kernel says."""
    use = await shared.until(lambda use: use.used_mib is not None)
    assert use.used_mib is not None and use.used_mib <= use.resident_mib <= CEILING.memory_mib


async def test_a_size_that_it_was_not_built_for_is_refused(shared: Grown) -> None:
    """Nothing is hotplugged."""
    for size in (Size(1025, 1), Size(256, 3), Size(0, 1), Size(256, 0)):
        with pytest.raises(MachineError, match="built for"):
            await shared.sizing.resize(size)
    assert shared.sizing.target == FLOOR


async def test_its_cpus_are_held(shared: Grown) -> None:
    """With two that spin in it: one CPU's time, by the control group."""
    if not shared.sizing.cpus_held_by.startswith("its CPU time"):
        pytest.skip("no control group counts CPU time here")
    assert await shared.guest.ask("spin 2") == "spinning"
    assert await load(shared.machine.pid) < 1.25


async def test_without_a_control_group_threads_are_held_to_cpus(shared: Grown) -> None:
    """All of QEMU's, those that come later included; at the ceiling they may be anywhere."""
    sizing = Sizing(
        FLOOR,
        CEILING,
        beside_mib=0,
        control=shared.machine.vm.control,
        pid=lambda: shared.machine.pid,
        group=lambda: None,
        memory=lambda: shared.machine.vm.memory,
    )
    await sizing.resize(FLOOR)
    assert sizing.cpus_held_by.endswith("(affinity)")
    assert {len(each) for each in affinities(shared.machine.pid)} == {1}
    assert len(set(map(frozenset, affinities(shared.machine.pid)))) == 1
    await sizing.resize(Size(FLOOR.memory_mib, 2))
    assert {frozenset(each) for each in affinities(shared.machine.pid)} == {
        frozenset(os.sched_getaffinity(0))
    }


def affinities(pid: int) -> list[set[int]]:
    return [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]


async def load(pid: int) -> float:
    """CPUs that it takes."""
    before, at = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(1.5)
    return (cpu_seconds(pid) - before) / (time.monotonic() - at)


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def test_root_inside_lets_the_air_out_and_what_holds_is_the_wall(shared: Grown) -> None:
    """Its driver is gone, so it has its ceiling: with a control group it is ended when it takes more than it
    was given, and what QEMU itself may take; without one it may take its ceiling, and never more."""
    has_group = "memory" in cgroup.find().v1 or cgroup.find().unified is not None
    await shared.until(lambda use: shared.sizing.walled_mib == FLOOR.memory_mib or not has_group)
    assert await shared.guest.ask("unload virtio_balloon") == "unloaded"
    await shared.until(lambda use: use.has_mib == CEILING.memory_mib)
    await shared.guest.tell("touch 850")
    if not has_group:
        assert await shared.guest.line() == "touched"
        assert (await shared.sizing.use()).resident_mib <= CEILING.memory_mib
        return
    assert "needed more memory than the host gives one of its size" in await shared.machine.wait()
