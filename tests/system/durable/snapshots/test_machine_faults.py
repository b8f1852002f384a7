"""What is not whole, or does not fit here, is refused; whatever fails at whichever step leaves nothing."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.session import Isolation
from coatcheck.durable import device_state
from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.snapshots import manifest
from coatcheck.durable.snapshots.directory import FILES
from coatcheck.durable.snapshots.manifest import SnapshotError
from coatcheck.launcher.emulator import Emulator
from coatcheck.launcher.microvm import MicroVM
from coatcheck.sandbox.machine import MachineError
from tests.launcher import tiny
from tests.launcher.steps import Step, Work, right_before, steps_of
from tests.system.durable.snapshots.worlds import World, failing
from tests.system.launcher.test_microvm import groups

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "bwrap", "mke2fs", "cc"),
    pytest.mark.asyncio(loop_scope="module"),
]

# --- refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILES, manifest.NAME])
async def test_an_altered_snapshot_is_refused(world: World, snapshot: Path, name: str) -> None:
    """One byte of whichever file; its guest never runs an instruction."""
    spoiled = world.copy(snapshot)
    with (spoiled / name).open("r+b") as file:
        start = os.lseek(file.fileno(), 0, os.SEEK_DATA) + 100
        before = os.pread(file.fileno(), 1, start)
        os.pwrite(file.fileno(), bytes([before[0] ^ 1]), start)
    said = await failing(world, spoiled)
    assert "was altered" in said or f"the {name} of the snapshot {spoiled.name} is damaged" in said
    shutil.rmtree(spoiled)


async def test_a_truncated_snapshot_is_refused(world: World, snapshot: Path) -> None:
    """By its length; and one whose manifest never came."""
    spoiled = world.copy(snapshot)
    os.truncate(spoiled / "memory", 100 << 20)
    assert "is damaged: it has 104857600 bytes" in await failing(world, spoiled)
    (spoiled / manifest.NAME).unlink()
    assert "there is no complete snapshot" in await failing(world, spoiled)
    shutil.rmtree(spoiled)


async def test_another_qemu_is_refused(
    world: World, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read the state of its devices as something else. Here it has one byte more."""
    found = shutil.which("qemu-system-x86_64")
    assert found
    shutil.copy(found, tmp_path / "qemu-system-x86_64")
    with (tmp_path / "qemu-system-x86_64").open("ab") as file:
        file.write(b"\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "it was saved by another QEMU (" in await failing(world, snapshot)


async def test_another_kernel_is_refused(world: World, snapshot: Path, tmp_path: Path) -> None:
    """Or another root: what the guest holds of it in memory would not fit."""
    for name in ("vmlinuz", "initrd", "root.ext4"):
        shutil.copy(world.image / name, tmp_path / name)
    with (tmp_path / "vmlinuz").open("ab") as file:
        file.write(b"\n")
    said = await failing(world, snapshot, image=tmp_path)
    assert "it was saved with another image: the vmlinuz differs" in said


async def test_another_machine_is_refused(world: World, snapshot: Path) -> None:
    """Of another isolation, or size."""
    said = await failing(world, snapshot, isolation=Isolation.HARDWARE)
    assert "it was isolated as emulated, and this machine gives hardware" in said
    larger = replace(world.spec().resources, memory_mib=256)
    assert "it had 192 MiB of memory, not 256" in await failing(world, snapshot, resources=larger)


async def test_no_space_leaves_nothing_and_the_guest_goes_on(
    world: World, snapshot: Path, parent: tuple[DurableMicroVM, tiny.Guest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before it is stopped, or in the middle of it."""
    machine, guest = parent
    before = sorted(world.snapshots.iterdir())
    machine.bind(world.spec(), replace(world.saving(), reserve_mib=1 << 40))
    with pytest.raises(SnapshotError, match=f"beside the {1 << 40} MiB that stay free"):
        await machine.save(world.snapshots / "none")
    machine.bind(world.spec(), world.saving())
    assert int(await guest.ask("counted")) > 0

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(SnapshotError, match="there is no space for a snapshot"):
            await machine.save(world.snapshots / "none")
    await machine.resume()
    assert int(await guest.ask("counted")) > 0
    assert sorted(world.snapshots.iterdir()) == before


async def test_a_save_that_is_cancelled_leaves_nothing(
    world: World, snapshot: Path, parent: tuple[DurableMicroVM, tiny.Guest]
) -> None:
    """At whatever moment; the guest goes on."""
    machine, guest = parent
    before = sorted(world.snapshots.iterdir())
    for wait in (0.0, 0.01, 0.03):
        saving = asyncio.create_task(machine.save(world.snapshots / "none"))
        await asyncio.sleep(wait)
        saving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await saving).files.discard()
        assert sorted(world.snapshots.iterdir()) == before
        await machine.resume()
        assert int(await guest.ask("counted")) > 0


SAVE: tuple[Work, ...] = (DurableMicroVM.save, device_state.save, device_state.version)
LOAD: tuple[Work, ...] = (
    DurableMicroVM.load,
    MicroVM.launch,
    Emulator.launch,
    Emulator.prepare,
    Emulator.answer,
    device_state.load,
)
ELSEWHERE = {
    "await in_thread(lambda: files.copy(MEMORY, memory, os.fstat(memory).st_size))",  # a clone's
    "await in_thread(files.discard)",  # after a failure, as the next
    "raise await self.not_started(error) from error",
    "await asyncio.sleep(_POLL_SECONDS)",  # a QEMU that loads for long
    "await asyncio.to_thread(self._group.add, first)",  # where there are control groups
}


def of(*works: Work) -> pytest.MarkDecorator:
    """Each step of them that is taken here, whatever becomes of the code."""
    steps = [each for each in steps_of(works, (*SAVE, *LOAD)) if each.text not in ELSEWHERE]
    return pytest.mark.parametrize("step", steps, ids=str)


def killing(machine: DurableMicroVM) -> Callable[[], None]:
    """SIGKILL to its QEMU; before there is one, whatever keeps it from being there."""

    def happens() -> None:
        if not machine.pid:
            raise MachineError("there is no QEMU yet, and will be none")
        with contextlib.suppress(ProcessLookupError):
            os.kill(machine.pid, 9)

    return happens


@of(*SAVE)
async def test_a_qemu_that_dies_while_it_is_saved_leaves_no_snapshot(
    world: World, snapshot: Path, step: Step
) -> None:
    """Right before each step: what is in its memory after that is nothing that anybody wants back."""
    before = sorted(world.snapshots.iterdir())
    async with world.machine(snapshot) as (machine, _):
        await machine.resume()
        with right_before(step, killing(machine)) as reached:
            with pytest.raises(MachineError, match=r"has ended|closed|not running|reset"):
                await machine.save(world.snapshots / "none")
            assert reached
        assert await machine.wait() == "QEMU was killed by signal 9"
    assert sorted(world.snapshots.iterdir()) == before


@of(*LOAD)
async def test_a_qemu_that_dies_while_it_is_loaded_leaves_nothing(
    world: World, snapshot: Path, step: Step
) -> None:
    """Right before each step: nothing half alive is left."""
    directory = world.directory()
    machine = DurableMicroVM(world.spec(), world.saving(snapshot), directory)
    with right_before(step, killing(machine)) as reached:
        with pytest.raises(MachineError):
            await machine.start()
        assert reached
    assert list(directory.iterdir()) == []
    assert groups(f"coatcheck-{directory.name}") == []


async def test_what_died_while_it_was_loaded_has_spoiled_nothing(world: World, snapshot: Path) -> None:
    """After all of the above the snapshot is as it was."""
    async with world.machine(snapshot) as (machine, guest):
        await machine.resume()
        assert int(await guest.ask("counted")) >= 50


async def test_what_can_be_written_to_is_no_template(world: World, snapshot: Path) -> None:
    """A sibling could change what the others run."""
    descriptor = os.memfd_create("open")
    try:
        os.ftruncate(descriptor, 192 << 20)
        assert "given as a template is none" in await failing(world, snapshot, template=descriptor)
    finally:
        os.close(descriptor)
