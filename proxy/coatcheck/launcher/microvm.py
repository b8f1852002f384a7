"""A sandbox as a virtual machine without a network device: QEMU's `microvm`, in a jail.

What the guest has beside its CPUs and memory: one port (its channel), a console that it can only write to,
disks, and a source of chance. Everything that QEMU opens was opened here and is passed on as a descriptor.
It can be saved, and another QEMU goes on where it stood (`snapshots`).
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
from coatcheck.durable.time_stamp_counter import tsc_khz
from coatcheck.launcher import descriptors, disks, jail
from coatcheck.launcher.emulator import Emulator
from coatcheck.launcher.limits import LimitName
from coatcheck.launcher.machine import MachineError, MachineSpec, Remain, RemainKind
from coatcheck.launcher.qmp import Qmp
from coatcheck.launcher.tasks import in_thread, together

MIB = 1024 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class SavedMachine:
    """A machine that was copied, and is no snapshot before `MicroVM.finish`."""

    files: Unfinished
    qemu_version: str


class MicroVM:
    """One virtual machine; see `machine.Machine`."""

    def __init__(self, spec: MachineSpec, directory: Path) -> None:
        """`directory`: the sandbox's own, 0700; the files made in it are removed by `stop`."""
        self._spec = spec
        self._directory = directory
        self._user = jail.user_for(directory)
        self._emulator: Emulator | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watching: asyncio.Task[None] | None = None
        self._files: list[int] = []
        """Kernel, initrd, root, volumes: as long as it lives, the volumes' locks among them."""
        self._memory = self._overlay = -1
        self._channel: socket.socket | None = None
        """QEMU's end of it. What is in flight waits in there while no QEMU runs."""
        self._khz: int | None = None
        self._private = self._paused = self._stopped = False
        self._asleep: Path | None = None
        self.sizing = Sizing.of(spec, self._control, lambda: self._emulator, lambda: self._memory)

    @property
    def isolation(self) -> Isolation:
        return self._spec.isolation

    @property
    def pid(self) -> int:
        """QEMU's, as this host numbers it; 0 before it was started, and while it sleeps."""
        return self._emulator.pid if self._emulator else 0

    def console(self) -> str:
        """The last of what the guest's kernel printed. The guest chose it: for people who diagnose."""
        return self._emulator.console.text() if self._emulator else ""

    def hits(self) -> frozenset[LimitName]:
        """Which limits the whole machine ran into since the last call, as the host's kernel counted them."""
        return self._emulator.hits() if self._emulator else frozenset()

    def bind(self, spec: MachineSpec) -> None:
        """It is somebody's from now on: as whose it is saved. Its hardware stays what it was."""
        self._spec = spec

    async def start(self) -> socket.socket:
        image = self._image()
        ours, self._channel = socket.socketpair()
        ours.setblocking(False)
        try:
            async with asyncio.timeout(self._spec.boot_seconds):
                if self._spec.restore is None:
                    await self._boot(image)
                    await self._first_byte(ours)
                else:
                    await self._load(image, self._spec.restore)
        except BaseException as error:
            ours.close()
            console = self._emulator.console.tail() if self._emulator else ""
            await self.stop()
            if isinstance(error, TimeoutError):
                seconds = self._spec.boot_seconds
                if self._spec.restore is not None:
                    raise _not_loaded(seconds) from None
                raise _not_up(f"said nothing for {seconds:g} s", console) from None
            if isinstance(error, OSError):
                raise MachineError(f"the microVM cannot be started: {error}") from error
            raise
        return ours

    async def wait(self) -> str:
        return await asyncio.shield(self._ended)

    async def pause(self) -> None:
        qmp = self._control()
        if not self._paused:
            self._paused = True  # it may be once this was sent, whether or not we hear the answer
            await qmp.execute("stop")

    async def resume(self) -> None:
        qmp = self._control()
        if self._paused:
            await qmp.execute("cont")
            self._paused = False

    async def remains(self) -> Sequence[Remain]:
        kept = kept_in(self._spec.snapshots, self._asleep)
        volumes = [
            Remain(f"volume {volume.name}", RemainKind.DISK, path=disks.volume_file(volume))
            for volume in self._spec.volumes
        ]
        if self._asleep is not None:
            return [*kept, *volumes]
        if not self._paused:
            raise MachineError("the machine runs, so what is in it changes", "pause it first")
        await device_state.save(self._control(), os.open(self._devices_file, _NEW, 0o600))
        # Where memory is mapped privately, what was written is in no file.
        own = [Remain("QEMU", RemainKind.PROCESS, pid=self.pid)] if self._private else []
        return [
            Remain("guest memory", RemainKind.MEMORY, path=Path(f"/proc/{self.pid}/fd/{descriptors.MEMORY}")),
            *own,
            Remain("overlay disk", RemainKind.DISK, path=self._overlay_file),
            *volumes,
            Remain("device state", RemainKind.DEVICE_STATE, path=self._devices_file),
            *kept,
        ]

    async def stop(self) -> None:
        self._stopped = True
        await self._end_emulator()
        if not self._ended.done():
            self._ended.set_result("it was stopped")
        if self._channel is not None:
            self._channel.close()
        while self._files:
            os.close(self._files.pop())

    # --- saved, and gone on with -------------------------------------------------------------------------

    async def page_out(self) -> int:
        """Let the host use a paused machine's memory for others, as far as it has swap. Bytes given back."""
        if not self._paused:
            raise MachineError("the machine runs, and would fetch its memory back", "pause it first")
        return await asyncio.to_thread(paging.page_out, self.pid)

    async def save(self, directory: Path) -> SavedMachine:
        """A copy of all that it is, to become a snapshot in `directory`: `finish` it, or `files.discard()`.

        The guest stands still from here on, also after an error; then nothing is left of the copy.
        """
        qmp = self._control()
        need = os.fstat(self._memory).st_blocks * 512 + os.fstat(self._overlay).st_blocks * 512 + MIB
        files = Unfinished(directory, need, self._spec.reserve_mib)
        try:
            await in_thread(files.begin)
            if self._private:  # which nobody writes to: it is copied while the guest runs
                await in_thread(lambda: files.copy(MEMORY, self._memory, os.fstat(self._memory).st_size))
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
                origin, self._spec.generation, self._around(saved.qemu_version, self._khz), self._key()
            )
        )

    async def sleep(self, directory: Path, origin: Origin) -> Manifest:
        """Save it as `finish` does, and end its QEMU: it takes no memory until `wake`."""
        manifest = await self.finish(await self.save(directory), origin)
        self._asleep = directory
        await self._end_emulator()
        return manifest

    async def wake(self) -> None:
        """Load it again; its CPUs stand still until `resume`. It sleeps on when that fails."""
        if self._asleep is None or self._stopped:
            raise MachineError("the machine does not sleep")
        try:
            async with asyncio.timeout(self._spec.boot_seconds):
                await self._load(self._image(), self._asleep)
        except TimeoutError:
            await self._end_emulator()
            raise _not_loaded(self._spec.boot_seconds) from None
        except BaseException:
            await self._end_emulator()
            raise
        self._asleep = None

    def _copy(self, files: Unfinished) -> None:
        if self._private:
            files.amend(MEMORY, lambda target: copy_own(self.pid, self._memory, target))
        else:
            files.copy(MEMORY, self._memory, os.fstat(self._memory).st_size)
        files.copy(OVERLAY, self._overlay, os.fstat(self._overlay).st_size)

    def _key_file(self) -> Path:
        if self._spec.snapshot_key is None:
            raise MachineError("this machine was given no key for snapshots")
        return self._spec.snapshot_key

    def _key(self) -> bytes:
        return open_key(self._key_file())

    def _around(self, qemu_version: str, khz: int | None) -> Surroundings:
        remembered = self._key_file().with_suffix(".digests")
        return surroundings.around(self._spec, self._image(), remembered, qemu_version, khz)

    # --- starting ----------------------------------------------------------------------------------------

    @property
    def _overlay_file(self) -> Path:
        return self._directory / "overlay.ext4"

    @property
    def _devices_file(self) -> Path:
        return self._directory / "device-state"

    def _image(self) -> Path:
        if self._spec.isolation not in (Isolation.HARDWARE, Isolation.EMULATED):
            raise MachineError(
                f"a microVM is no isolation of class {self._spec.isolation}",
                "ask for hardware or emulated, or use the namespace backend",
            )
        if self._spec.image is None:
            raise MachineError("a microVM needs an image", "build one: coatcheck image build")
        return self._spec.image

    async def _boot(self, image: Path) -> None:
        program = jail.find_qemu()
        libraries, self._khz, *_ = await together(
            jail.libraries(program), self._clock(), self._open(image), self._make_disk()
        )
        self._memory = disks.make_memory(self._spec.resources.memory_mib, self._user, self._spec.needed_mib)
        emulator = await self._launch(program, libraries, incoming=False)
        self._watching = asyncio.create_task(self._watch(emulator))
        qmp = await emulator.answer()
        try:
            await qmp.execute("cont")  # both ends of everything are there
        except MachineError as error:
            raise await emulator.not_started(error) from error

    async def _load(self, image: Path, directory: Path) -> None:
        """All that can go on at once does: a sandbox is to be back in a fifth of what a boot takes."""
        program = jail.find_qemu()
        libraries, khz, snapshot, _ = await together(
            jail.libraries(program),
            self._clock(),
            in_thread(lambda: Snapshot(directory, self._key())),
            self._open(image),
        )
        saved = snapshot.manifest.surroundings
        surroundings.check(saved, await in_thread(lambda: self._around("", khz)))
        self._khz = saved.tsc_khz
        devices = await in_thread(snapshot.load_devices)
        try:
            self._memory = self._memory_for(snapshot)
            self._overlay = disks.open_new(self._overlay_file, self._spec.resources.disk_mib)
            emulator, *_ = await together(
                self._launch(program, libraries, incoming=True),
                in_thread(lambda: self._private or snapshot.load(MEMORY, self._memory)),
                in_thread(lambda: snapshot.load(OVERLAY, self._overlay)),
            )
            await device_state.load(await emulator.answer(), devices)
        finally:
            os.close(devices)
        self._paused = True
        self._watching = asyncio.create_task(self._watch(emulator))

    async def _open(self, image: Path) -> None:
        """Kernel, initrd, root, volumes: once, and kept while it sleeps."""
        if self._files:
            return
        for name in descriptors.FILES:
            self._files.append(disks.open_part(image, name))
        for volume in self._spec.volumes:
            self._files.append(await disks.open_volume(volume))

    def _memory_for(self, snapshot: Snapshot) -> int:
        """To be filled, or a template; what slept has memory of its own afterwards."""
        template = self._spec.template
        self._private = template is not None and self._asleep is None
        if template is None or not self._private:
            return disks.make_memory(self._spec.resources.memory_mib, self._user, self._spec.needed_mib)
        if not is_template(template, snapshot.manifest.memory.size):
            raise MachineError(
                "what was given as a template is none", "open it from the snapshot's directory"
            )
        if self.sizing is not None:
            self.sizing.fixed = "it is a clone, and what it does not use belongs to its siblings as well"
        return os.dup(template)

    async def _clock(self) -> int | None:
        emulated = self._spec.isolation is Isolation.EMULATED
        return await asyncio.to_thread(tsc_khz) if emulated else None

    async def _make_disk(self) -> None:
        self._overlay = await disks.make_overlay(self._overlay_file, self._spec.resources.disk_mib)

    async def _launch(self, program: Path, libraries: tuple[Path, ...], *, incoming: bool) -> Emulator:
        if self._channel is None:
            raise MachineError("the machine was not started")
        given = descriptors.numbered(self._files, self._memory, self._overlay, self._channel)
        hardware = descriptors.hardware(self._spec, self._khz, incoming=incoming, private=self._private)
        self._emulator = emulator = Emulator(self._spec, f"coatcheck-{self._directory.name}", self._user)
        await emulator.launch(program, libraries, hardware, given)
        return emulator

    async def _first_byte(self, channel: socket.socket) -> None:
        spoke = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, spoke.set)
        try:
            await spoke.wait()
        finally:
            loop.remove_reader(channel)
        try:
            heard = channel.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            heard = b""
        if not heard:
            why = await self.wait()
            raise _not_up(why, self._emulator.console.tail() if self._emulator else "")

    # --- its life ----------------------------------------------------------------------------------------

    def _control(self) -> Qmp:
        if self._asleep is not None and not self._stopped:
            raise MachineError("the machine sleeps", "wake it first")
        if self._emulator is None or self._stopped:
            raise MachineError("the machine is not running")
        return self._emulator.control()

    async def _watch(self, emulator: Emulator) -> None:
        """What it ends of by itself is its end; whoever reads its channel sees that, too."""
        await emulator.ended()
        if self._channel is not None:
            self._channel.close()
        self._ended.set_result(await emulator.wait())

    async def _end_emulator(self) -> None:
        """With its memory and its files."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self._emulator is not None:
            await self._emulator.stop()
        for descriptor in (self._memory, self._overlay):
            if descriptor >= 0:
                os.close(descriptor)
        self._memory = self._overlay = -1
        for file in (self._overlay_file, self._devices_file):
            file.unlink(missing_ok=True)


def _not_up(how: str, console: str) -> MachineError:
    printed = f"; its console ends with:\n{console}" if console else "; it printed nothing"
    return MachineError(
        f"the guest did not come up: {how}{printed}",
        "a busy machine needs longer, try again; if it never comes up: coatcheck image build --force",
    )


def _not_loaded(seconds: float) -> MachineError:
    return MachineError(f"the machine was not loaded within {seconds:g} s", "try again on a less busy host")
