"""In the supervisor: runs a microVM across several QEMU processes: it is saved, put to sleep, resumed and
resized."""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coatcheck.containers import jail
from coatcheck.decision.session import Isolation
from coatcheck.durable import device_state, paging
from coatcheck.durable.private_memory import copy_own
from coatcheck.durable.sizing import Sizing
from coatcheck.durable.snapshots import surroundings
from coatcheck.durable.snapshots.directory import (
    DEVICES,
    MEMORY,
    OVERLAY,
    Snapshot,
    Unfinished,
    is_template,
    kept_in,
)
from coatcheck.durable.snapshots.manifest import Manifest, Origin, Surroundings, open_key
from coatcheck.durable.spec import Saving
from coatcheck.launcher import disks
from coatcheck.launcher.microvm import MicroVM
from coatcheck.launcher.qmp import Qmp
from coatcheck.launcher.tasks import in_thread, together
from coatcheck.sandbox.machine import MachineError, MachineSpec, Remain, RemainKind

MIB = 1024 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class SavedMachine:
    """A machine that was copied, and is no snapshot before `DurableMicroVM.finish`."""

    files: Unfinished
    qemu_version: str


class DurableMicroVM:
    """One virtual machine over several QEMUs; see `sandbox.machine.Machine`."""

    def __init__(self, spec: MachineSpec, saving: Saving, directory: Path) -> None:
        self.vm = MicroVM(spec, directory)
        self._saving = saving
        self._private = False
        """Its memory is a template's, mapped privately."""
        self._asleep: Path | None = None
        self.sizing = Sizing.of(spec, self._control, lambda: self.vm.emulator, lambda: self.vm.memory)
        """None: it was built with one size."""

    @property
    def isolation(self) -> Isolation:
        return self.vm.isolation

    @property
    def pid(self) -> int:
        return self.vm.pid

    def bind(self, spec: MachineSpec, saving: Saving) -> None:
        """It is somebody's from now on: as whose it is saved. Its hardware stays what it was."""
        self.vm.spec, self._saving = spec, saving

    async def start(self) -> socket.socket:
        restore = self._saving.restore
        return await (self.vm.start() if restore is None else self.vm.begin(lambda _: self._restore(restore)))

    async def wait(self) -> str:
        return await self.vm.wait()

    async def pause(self) -> None:
        self._check_awake()
        await self.vm.pause()

    async def resume(self) -> None:
        self._check_awake()
        self._devices.unlink(missing_ok=True)
        await self.vm.resume()

    async def remains(self) -> Sequence[Remain]:
        kept = kept_in(self._saving.snapshots, self._asleep)
        if self._asleep is not None:
            return [*kept, *self.vm.volumes()]
        # Where memory is mapped privately, what was written is in no file.
        own = [Remain("QEMU", RemainKind.PROCESS, pid=self.pid)] if self._private else []
        remains = await self.vm.remains()
        await device_state.save(self.vm.control(), os.open(self._devices, _NEW, 0o600))
        state = Remain("device state", RemainKind.DEVICE_STATE, path=self._devices)
        return [*remains, state, *own, *kept]

    async def stop(self) -> None:
        self._devices.unlink(missing_ok=True)
        await self.vm.stop()

    @property
    def _devices(self) -> Path:
        """What QEMU knows of its devices, for an inspection of what remains; until it goes on, or ends."""
        return self.vm.directory / "device-state"

    async def page_out(self) -> int:
        """Let the host use a paused machine's memory for others, as far as it has swap. Bytes given back."""
        if not self.vm.paused:
            raise MachineError("the machine runs, and would fetch its memory back", "pause it first")
        return await asyncio.to_thread(paging.page_out, self.pid)

    # --- saved -------------------------------------------------------------------------------------------

    async def save(self, directory: Path) -> SavedMachine:
        """A copy of all that it is, to become a snapshot in `directory`: `finish` it, or `files.discard()`.

        The guest stands still from here on, also after an error; then nothing is left of the copy.
        """
        qmp, memory = self._control(), self.vm.memory
        need = os.fstat(memory).st_blocks * 512 + os.fstat(self.vm.overlay).st_blocks * 512 + MIB
        files = Unfinished(directory, need, self._saving.reserve_mib)
        try:
            await in_thread(files.begin)
            if self._private:  # which nobody writes to: it is copied while the guest runs
                await in_thread(lambda: files.copy(MEMORY, memory, os.fstat(memory).st_size))
            await self.pause()
            await device_state.save(qmp, files.create(DEVICES))
            await in_thread(lambda: self._copy(files))
            return SavedMachine(files, await device_state.version(qmp))
        except BaseException:
            await in_thread(files.discard)
            raise

    async def finish(self, saved: SavedMachine, origin: Origin) -> Manifest:
        """What `save` copied becomes a snapshot, which is there once this returns. The guest may run."""
        return await in_thread(
            lambda: saved.files.finish(
                origin, self.vm.spec.generation, self._around(saved.qemu_version, self.vm.khz), self._key()
            )
        )

    def _copy(self, files: Unfinished) -> None:
        memory, overlay = self.vm.memory, self.vm.overlay
        if self._private:
            files.amend(MEMORY, lambda target: copy_own(self.pid, memory, target))
        else:
            files.copy(MEMORY, memory, os.fstat(memory).st_size)
        files.copy(OVERLAY, overlay, os.fstat(overlay).st_size)

    def _key_file(self) -> Path:
        if self._saving.snapshot_key is None:
            raise MachineError("this machine was given no key for snapshots")
        return self._saving.snapshot_key

    def _key(self) -> bytes:
        return open_key(self._key_file())

    def _around(self, qemu_version: str, khz: int | None) -> Surroundings:
        remembered = self._key_file().with_suffix(".digests")
        return surroundings.around(self.vm.spec, self.vm.image(), remembered, qemu_version, khz)

    # --- asleep, and gone on with ------------------------------------------------------------------------

    async def sleep(self, directory: Path, origin: Origin) -> Manifest:
        """Save it as `finish` does, and end its QEMU: it takes no memory until `wake`."""
        manifest = await self.finish(await self.save(directory), origin)
        self._asleep = directory
        self._devices.unlink(missing_ok=True)
        await self.vm.end_emulator()
        return manifest

    async def wake(self) -> None:
        """Load it again; its CPUs stand still until `resume`. It sleeps on when that fails."""
        if self._asleep is None or self.vm.stopped:
            raise MachineError("the machine does not sleep")
        try:
            await self._restore(self._asleep)
        except BaseException:
            await self.vm.end_emulator()
            raise
        self._asleep = None

    async def _restore(self, directory: Path) -> None:
        seconds = self.vm.spec.boot_seconds
        try:
            async with asyncio.timeout(seconds):
                await self.load(directory)
        except TimeoutError:
            raise MachineError(
                f"the machine was not loaded within {seconds:g} s", "try again on a less busy host"
            ) from None

    async def load(self, directory: Path) -> None:
        """All that can go on at once does: a sandbox is to be back in a fifth of what a boot takes."""
        vm, program = self.vm, jail.find_qemu()
        libraries, khz, snapshot, _ = await together(
            jail.libraries(program),
            vm.clock(),
            in_thread(lambda: Snapshot(directory, self._key())),
            vm.open_parts(),
        )
        saved = snapshot.manifest.surroundings
        surroundings.check(saved, await in_thread(lambda: self._around("", khz)))
        vm.khz = saved.tsc_khz
        devices = await in_thread(snapshot.load_devices)
        try:
            vm.memory = self._memory_for(snapshot)
            vm.overlay = disks.open_new(vm.overlay_file, vm.spec.resources.disk_mib)
            emulator, *_ = await together(
                vm.launch(program, libraries, incoming=True, private=self._private),
                in_thread(lambda: self._private or snapshot.load(MEMORY, vm.memory)),
                in_thread(lambda: snapshot.load(OVERLAY, vm.overlay)),
            )
            await device_state.load(await emulator.answer(), devices)
        finally:
            os.close(devices)
        vm.paused = True
        vm.watch(emulator)

    def _memory_for(self, snapshot: Snapshot) -> int:
        """To be filled, or a template; what slept has memory of its own afterwards."""
        template = self._saving.template
        self._private = template is not None and self._asleep is None
        if template is None or not self._private:
            spec = self.vm.spec
            return disks.make_memory(spec.resources.memory_mib, self.vm.user, spec.needed_mib)
        if not is_template(template, snapshot.manifest.memory.size):
            raise MachineError(
                "what was given as a template is none", "open it from the snapshot's directory"
            )
        if self.sizing is not None:
            self.sizing.fixed = "it is a clone, and what it does not use belongs to its siblings as well"
        return os.dup(template)

    def _check_awake(self) -> None:
        if self._asleep is not None and not self.vm.stopped:
            raise MachineError("the machine sleeps", "wake it first")

    def _control(self) -> Qmp:
        self._check_awake()
        return self.vm.control()
