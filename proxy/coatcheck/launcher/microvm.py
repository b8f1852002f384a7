"""In the supervisor: runs a sandbox as a virtual machine without a network device: QEMU's `microvm`, in a
jail.

What the guest has beside its CPUs and memory: one port (its channel), a console that it can only write to,
disks, and a source of chance. Everything that QEMU opens was opened here and is passed on as a descriptor.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from coatcheck.containers import jail
from coatcheck.decision.session import Isolation
from coatcheck.launcher import disks, qemu
from coatcheck.launcher.emulator import Emulator
from coatcheck.launcher.qmp import Qmp
from coatcheck.launcher.tasks import together
from coatcheck.launcher.time_stamp_counter import tsc_khz
from coatcheck.sandbox.limits import LimitName
from coatcheck.sandbox.machine import MachineError, MachineSpec, Remain, RemainKind


class MicroVM:
    """One virtual machine; see `machine.Machine`.

    A layer above gives it another QEMU, which goes on where a saved one stood: `begin` with its own way to
    bring one up, `open_parts`, `memory` and `overlay` filled, `launch`, `watch`. `end_emulator` takes one
    away and leaves the channel.
    """

    def __init__(self, spec: MachineSpec, directory: Path) -> None:
        """`directory`: the sandbox's own, 0700; the files made in it are removed by `stop`."""
        self.spec = spec
        self.directory = directory
        self.user = jail.user_for(directory)
        """Whom QEMU runs as, where we are root."""
        self.emulator: Emulator | None = None
        self.memory = self.overlay = -1
        """Descriptors of the guest's memory and of the disk that is thrown away."""
        self.khz: int | None = None
        """What the guest was told of the CPU's time stamp counter."""
        self.paused = self.stopped = False
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watching: asyncio.Task[None] | None = None
        self._files: list[int] = []
        """Kernel, initrd, root, volumes: as long as it lives, the volumes' locks among them."""
        self._channel: socket.socket | None = None
        """QEMU's end of it. What is in flight waits in there while no QEMU runs."""

    @property
    def isolation(self) -> Isolation:
        return self.spec.isolation

    @property
    def pid(self) -> int:
        """QEMU's, as this host numbers it; 0 while there is none."""
        return self.emulator.pid if self.emulator else 0

    def console(self) -> str:
        """The last of what the guest's kernel printed. The guest chose it: for people who diagnose."""
        return self.emulator.console.text() if self.emulator else ""

    def hits(self) -> frozenset[LimitName]:
        """Which limits the whole machine ran into since the last call, as the host's kernel counted them."""
        return self.emulator.hits() if self.emulator else frozenset()

    async def start(self) -> socket.socket:
        return await self.begin(self._boot)

    async def begin(self, bring_up: Callable[[socket.socket], Awaitable[None]]) -> socket.socket:
        """The guest's channel, once `bring_up` has made a machine at its other end. MachineError when that
        failed; nothing is left behind then."""
        self.image()
        ours, self._channel = socket.socketpair()
        ours.setblocking(False)
        try:
            await bring_up(ours)
        except BaseException as error:
            ours.close()
            await self.stop()
            if isinstance(error, OSError):
                raise MachineError(f"the microVM cannot be started: {error}") from error
            raise
        return ours

    async def wait(self) -> str:
        return await asyncio.shield(self._ended)

    async def pause(self) -> None:
        qmp = self.control()
        if not self.paused:
            self.paused = True  # it may be once this was sent, whether or not we hear the answer
            await qmp.execute("stop")

    async def resume(self) -> None:
        qmp = self.control()
        if self.paused:
            await qmp.execute("cont")
            self.paused = False

    async def remains(self) -> Sequence[Remain]:
        if not self.paused:
            raise MachineError("the machine runs, so what is in it changes", "pause it first")
        memory = Path(f"/proc/{self.pid}/fd/{qemu.MEMORY}")
        return [
            Remain("guest memory", RemainKind.MEMORY, path=memory),
            Remain("overlay disk", RemainKind.DISK, path=self.overlay_file),
            *self.volumes(),
        ]

    def volumes(self) -> Sequence[Remain]:
        """The named disks that it has."""
        return [
            Remain(f"volume {volume.name}", RemainKind.DISK, path=disks.volume_file(volume))
            for volume in self.spec.volumes
        ]

    async def stop(self) -> None:
        self.stopped = True
        await self.end_emulator()
        if not self._ended.done():
            self._ended.set_result("it was stopped")
        if self._channel is not None:
            self._channel.close()
        while self._files:
            os.close(self._files.pop())

    # --- starting ----------------------------------------------------------------------------------------

    @property
    def overlay_file(self) -> Path:
        return self.directory / "overlay.ext4"

    def image(self) -> Path:
        """MachineError when it is none that this can run."""
        if self.spec.isolation not in (Isolation.HARDWARE, Isolation.EMULATED):
            raise MachineError(
                f"a microVM is not isolation of class {self.spec.isolation}",
                "ask for hardware or emulated, or use the namespace backend",
            )
        if self.spec.image is None:
            raise MachineError("a microVM needs an image", "build one: coatcheck image build")
        return self.spec.image

    async def _boot(self, channel: socket.socket) -> None:
        seconds = self.spec.boot_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._bring_up()
                await self._first_byte(channel)
        except TimeoutError:
            raise self._not_up(f"said nothing for {seconds:g} s") from None

    async def _bring_up(self) -> None:
        program = jail.find_qemu()
        libraries, self.khz, *_ = await together(
            jail.libraries(program), self.clock(), self.open_parts(), self._make_disk()
        )
        memory_mib = self.spec.resources.memory_mib
        self.memory = disks.make_memory(memory_mib, self.user, self.spec.needed_mib)
        emulator = await self.launch(program, libraries)
        self.watch(emulator)
        qmp = await emulator.answer()
        try:
            await qmp.execute("cont")  # both ends of everything are there
        except MachineError as error:
            raise await emulator.not_started(error) from error

    async def open_parts(self) -> None:
        """Kernel, initrd, root, volumes: once, for every QEMU of it."""
        if self._files:
            return
        for name in qemu.FILES:
            self._files.append(disks.open_part(self.image(), name))
        for volume in self.spec.volumes:
            self._files.append(await disks.open_volume(volume))

    async def clock(self) -> int | None:
        """kHz of the CPU's time stamp counter; None: KVM tells the guest."""
        emulated = self.spec.isolation is Isolation.EMULATED
        return await asyncio.to_thread(tsc_khz) if emulated else None

    async def _make_disk(self) -> None:
        self.overlay = await disks.make_overlay(self.overlay_file, self.spec.resources.disk_mib)

    async def launch(
        self, program: Path, libraries: tuple[Path, ...], *, incoming: bool = False, private: bool = False
    ) -> Emulator:
        """A QEMU over `memory` and `overlay`. See `qemu.Hardware` for the rest."""
        if self._channel is None:
            raise MachineError("the machine was not started")
        given = qemu.numbered(self._files, self.memory, self.overlay, self._channel)
        hardware = qemu.Hardware(self.spec, self.khz, incoming=incoming, private=private)
        self.emulator = emulator = Emulator(self.spec, f"coatcheck-{self.directory.name}", self.user)
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
            raise self._not_up(await self.wait())

    def _not_up(self, how: str) -> MachineError:
        console = self.emulator.console.tail() if self.emulator else ""
        printed = f"; its console ends with:\n{console}" if console else "; it printed nothing"
        return MachineError(
            f"the guest did not come up: {how}{printed}",
            "a busy machine needs longer, try again; if it never comes up: coatcheck image build --force",
        )

    # --- its life ----------------------------------------------------------------------------------------

    def control(self) -> Qmp:
        """MachineError when it does not run."""
        if self.emulator is None or self.stopped:
            raise MachineError("the machine is not running")
        return self.emulator.control()

    def watch(self, emulator: Emulator) -> None:
        """The end of this QEMU is the machine's, unless `end_emulator` brings it about."""
        self._watching = asyncio.create_task(self._watch(emulator))

    async def _watch(self, emulator: Emulator) -> None:
        """What it ends of by itself is its end; the channel's reader sees that, too."""
        await emulator.ended()
        if self._channel is not None:
            self._channel.close()
        self._ended.set_result(await emulator.wait())

    async def end_emulator(self) -> None:
        """With its memory and its files."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self.emulator is not None:
            await self.emulator.stop()
        for descriptor in (self.memory, self.overlay):
            if descriptor >= 0:
                os.close(descriptor)
        self.memory = self.overlay = -1
        self.overlay_file.unlink(missing_ok=True)
