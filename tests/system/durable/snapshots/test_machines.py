"""A microVM saved, loaded, cloned, put to sleep and woken, for real: what ran goes on."""

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

import pytest

from coatcheck.decision.session import Isolation
from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.private_memory import own_pages
from coatcheck.durable.snapshots import manifest
from coatcheck.durable.snapshots.directory import FILES
from coatcheck.durable.snapshots.manifest import Manifest, SnapshotError
from coatcheck.durable.snapshots.memory_image import digests
from coatcheck.sandbox.machine import MachineError, RemainKind
from tests.launcher import tiny
from tests.system.durable.snapshots.worlds import ORIGIN, World
from tests.system.launcher.test_microvm import read

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "bwrap", "mke2fs", "cc"),
    pytest.mark.asyncio(loop_scope="module"),
]

# --- saved and gone on with ------------------------------------------------------------------------------


async def test_what_ran_goes_on(
    world: World, snapshot: Path, parent: tuple[DurableMicroVM, tiny.Guest]
) -> None:
    """Processes, memory and disk are as they were; the one that was copied goes on, too, and sees nothing."""
    async with world.machine(snapshot) as (machine, guest):
        await machine.resume()
        first = int(await guest.ask("counted"))
        assert first >= 50
        while int(await guest.ask("counted")) <= first + 50:
            pass
        assert await guest.ask("get overlay") == "on-disk-3141"
        assert await guest.ask("put overlay of-the-clone") == "written"
        assert await parent[1].ask("get overlay") == "on-disk-3141"
        assert int(await parent[1].ask("counted")) > 50


async def test_a_loaded_guest_stands_still_until_it_is_let_go(world: World, snapshot: Path) -> None:
    """Not an instruction: it may have a new identity to learn first."""
    async with world.machine(snapshot) as (machine, guest):
        await guest.tell("echo late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await guest.line()
        await machine.resume()
        assert await guest.line() == "late"


async def test_a_clone_can_be_saved_and_cloned(world: World, snapshot: Path) -> None:
    """A snapshot of what came from a snapshot."""
    second = world.snapshots / "second"
    async with world.machine(snapshot) as (machine, guest):
        await machine.resume()
        assert await guest.ask("put overlay in-the-clone") == "written"
        await machine.finish(await machine.save(second), ORIGIN)
    async with world.machine(second) as (machine, guest):
        await machine.resume()
        assert await guest.ask("get overlay") == "in-the-clone"
    shutil.rmtree(second)


async def test_a_snapshot_says_what_it_is(world: World, snapshot: Path) -> None:
    """Whose, of which machine, on what."""
    found: Manifest = manifest.read(snapshot, manifest.open_key(world.key))
    assert (found.origin, found.generation) == (ORIGIN, 4)
    assert (found.surroundings.isolation, found.surroundings.memory_mib) == (Isolation.EMULATED, 192)
    assert found.surroundings.qemu_version[0].isdigit()
    assert {path.name for path in snapshot.iterdir()} == {*FILES, manifest.NAME}


async def test_a_machine_is_saved_while_it_is_paused(world: World, snapshot: Path) -> None:
    """Also after an inspection looked at it, and twice; each time it stands still until it is resumed."""
    async with world.machine(snapshot) as (machine, guest):
        await machine.resume()
        await machine.pause()
        (state,) = [each.path for each in await machine.remains() if each.name == "device state"]
        assert len(read(state)) > 10_000
        for name in ("third", "fourth"):
            await machine.finish(await machine.save(world.snapshots / name), ORIGIN)
            shutil.rmtree(world.snapshots / name)
        await guest.tell("echo on")
        await machine.resume()
        assert state is not None and not state.exists()
        assert await guest.line() == "on"


async def test_remains_name_every_snapshot(
    world: World, parent: tuple[DurableMicroVM, tiny.Guest], snapshot: Path
) -> None:
    """A secret that is only there is there: memory, devices, disk, manifest."""
    machine, _ = parent
    await machine.pause()
    try:
        found = {remain.name: remain for remain in await machine.remains()}
    finally:
        await machine.resume()
    assert {f"snapshot first: {name}" for name in (*FILES, manifest.NAME)} <= found.keys()
    assert b"in-memory-2718" in read(found["snapshot first: memory"].path)
    assert b"on-disk-3141" in read(found["snapshot first: overlay"].path)
    assert found["snapshot first: devices"].kind is RemainKind.DEVICE_STATE


# --- clones of one template ------------------------------------------------------------------------------


async def test_clones_at_once_share_a_template_and_nothing_else(
    world: World, snapshot: Path, template: int
) -> None:
    """What one writes, to memory or disk, no other sees; nor does the template."""
    size = os.fstat(template).st_size
    before = digests(template, size)
    async with contextlib.AsyncExitStack() as stack:
        clones = await asyncio.gather(
            *(stack.enter_async_context(world.machine(snapshot, template)) for _ in range(3))
        )
        for number, (machine, guest) in enumerate(clones):
            await machine.resume()
            assert await guest.ask(f"remember clone-{number}-2718") == "remembered"
            assert await guest.ask(f"put overlay clone-{number}") == "written"
        for number, (machine, guest) in enumerate(clones):
            first = int(await guest.ask("counted"))
            assert first >= 50
            while int(await guest.ask("counted")) <= first:
                pass
            assert await guest.ask("get overlay") == f"clone-{number}"
            await machine.pause()
            remains = await machine.remains()
            assert [each.pid for each in remains if each.kind is RemainKind.PROCESS] == [machine.pid]
            own = sum(length for *_, length in own_pages(machine.pid, template))
            assert 0 < own < size // 4
    assert digests(template, size) == before


async def test_a_clone_that_shares_can_be_saved_and_sleep(
    world: World, snapshot: Path, template: int
) -> None:
    """The template with what it wrote itself; it wakes with memory of its own."""
    place = world.snapshots / "of-a-clone"
    async with world.machine(snapshot, template) as (machine, guest):
        await machine.resume()
        assert await guest.ask("remember only-in-the-clone-1618") == "remembered"
        await machine.sleep(place, ORIGIN)
        content = read(place / "memory")
        assert b"only-in-the-clone-1618" in content
        assert b"in-memory-2718" in content
        await machine.wake()
        await machine.resume()
        before = int(await guest.ask("counted"))
        assert before >= 50
        assert RemainKind.PROCESS not in await kinds(machine)
        await machine.finish(await machine.save(world.snapshots / "again"), ORIGIN)
    async with world.machine(world.snapshots / "again") as (machine, guest):
        await machine.resume()
        assert int(await guest.ask("counted")) >= before
    for each in (place, world.snapshots / "again"):
        shutil.rmtree(each)


async def test_a_clone_that_gives_its_pages_back_takes_none_from_the_others(
    world: World, snapshot: Path, template: int
) -> None:
    """Its root may inflate the balloon as he likes. QEMU would punch holes into what all of them map, and may
    not: the template is sealed. (By hand, as its driver would: the host never asks a clone for pages.)
    """
    size = os.fstat(template).st_size
    before = digests(template, size)
    async with world.machine(snapshot, template) as (machine, guest):
        async with world.machine(snapshot, template) as (sibling, other):
            await machine.resume()
            await sibling.resume()
            qmp = machine.vm.control()
            await qmp.execute("balloon", {"value": 96 << 20})
            async with asyncio.timeout(tiny.ANSWER_SECONDS):
                while (await qmp.execute("query-balloon"))["actual"] > 100 << 20:
                    await asyncio.sleep(0.02)
            assert digests(template, size) == before
            for each in (guest, other):
                first = int(await each.ask("counted"))
                assert first >= 50
                while int(await each.ask("counted")) <= first:
                    pass
    assert digests(template, size) == before


async def kinds(machine: DurableMicroVM) -> set[RemainKind]:
    await machine.pause()
    found = {each.kind for each in await machine.remains()}
    await machine.resume()
    return found


# --- asleep ----------------------------------------------------------------------------------------------


async def test_a_machine_sleeps_and_wakes(world: World, snapshot: Path) -> None:
    """No process and no memory meanwhile; what was under way on its channel arrives, both ways, once."""
    async with world.machine(snapshot) as (machine, guest):
        await machine.resume()
        waiting = asyncio.create_task(machine.wait())
        for number in range(2):
            before = int(await guest.ask("counted"))
            await machine.pause()
            await guest.tell("echo before-it-slept")
            pid, place = machine.pid, world.snapshots / f"asleep-{number}"
            held = memories() - 1
            await machine.sleep(place, ORIGIN)
            assert not Path(f"/proc/{pid}").exists()
            assert memories() == held
            await guest.tell("echo while-it-slept")
            with pytest.raises(MachineError, match="the machine sleeps"):
                await machine.pause()
            assert {f"snapshot {place.name}: memory"} <= {each.name for each in await machine.remains()}
            await machine.wake()
            await machine.resume()
            assert [await guest.line(), await guest.line()] == ["before-it-slept", "while-it-slept"]
            assert int(await guest.ask("counted")) >= before
            shutil.rmtree(place)
        assert not waiting.done()
        os.kill(machine.pid, 9)
        assert await waiting == "QEMU was killed by signal 9"


def memories() -> int:
    """How many guests' memories this process keeps."""
    links = (os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum("guest-memory" in link for link in links)


async def test_a_machine_that_cannot_wake_sleeps_on(world: World, snapshot: Path) -> None:
    """Until what stood in the way is gone; its channel stays."""
    async with world.machine(snapshot) as (machine, guest):
        await machine.resume()
        place = world.snapshots / "asleep"
        await machine.sleep(place, ORIGIN)
        os.rename(place / "memory", place / "away")
        for _ in range(2):
            with pytest.raises(SnapshotError, match="the memory of the snapshot asleep cannot be loaded"):
                await machine.wake()
        os.rename(place / "away", place / "memory")
        await machine.wake()
        await machine.resume()
        assert await guest.ask("echo again") == "again"
        with pytest.raises(MachineError, match="does not sleep"):
            await machine.wake()
        shutil.rmtree(place)


async def test_a_machine_can_be_stopped_in_its_sleep(world: World, snapshot: Path) -> None:
    """Its snapshot stays: it can go on another day."""
    place = world.snapshots / "kept"
    async with world.machine(snapshot) as (machine, _):
        await machine.resume()
        await machine.sleep(place, ORIGIN)
        await machine.stop()
        assert await machine.wait() == "it was stopped"
    async with world.machine(place) as (machine, guest):
        await machine.resume()
        assert int(await guest.ask("counted")) >= 50
    shutil.rmtree(place)


async def test_a_paused_machine_gives_back_what_the_host_can_take(
    world: World, parent: tuple[DurableMicroVM, tiny.Guest]
) -> None:
    """Into swap, where there is some; nothing where there is none. Afterwards it goes on."""
    machine, guest = parent
    with pytest.raises(MachineError, match="the machine runs"):
        await machine.page_out()
    await machine.pause()
    given_back = await machine.page_out()
    await machine.resume()
    swap = len(Path("/proc/swaps").read_text().splitlines()) > 1
    assert given_back >= 0 if swap else given_back == 0
    assert await guest.ask("echo on") == "on"
