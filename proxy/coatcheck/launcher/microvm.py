"""A sandbox as a virtual machine without a network device: QEMU's `microvm`, in a jail.

What the guest has beside its CPUs and memory: one port (its channel), a console that it can only write to,
disks, and a source of chance. Everything that QEMU opens was opened here and is passed on as a descriptor.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from coatcheck.decision.session import Isolation
from coatcheck.launcher import disks, jail
from coatcheck.launcher.bubblewrap import Bubblewrap
from coatcheck.launcher.cgroup import Cgroup
from coatcheck.launcher.console import Console
from coatcheck.launcher.limits import LimitName
from coatcheck.launcher.machine import MachineError, MachineSpec, Remain, RemainKind
from coatcheck.launcher.qemu import TRANSLATIONS_MIB, Disk, Hardware, arguments
from coatcheck.launcher.qmp import Event, Qmp, QmpError
from coatcheck.launcher.time_stamp_counter import tsc_khz

MIB = 1024 * 1024
OVERHEAD_MIB = 256
"""QEMU itself beside the guest's memory and its translations: program, libraries, buffers, page tables."""
ADDRESSES_MIB = 2048
"""The same where only addresses can be limited: each of its threads reserves 72 MiB and uses little of it."""
LOW_PRIORITY = 10
"""`nice`, where no cgroup holds the CPU: the neighbours go first."""
SAVE_SECONDS = 30.0
"""For the devices' state, some 70 KiB."""
_CONTROL, _CHANNEL, _CONSOLE, _KERNEL, _INITRD, _MEMORY, _FIRST_DISK = 3, 6, 7, 8, 9, 10, 11
"""Descriptors as QEMU knows them; 4 and 5 are bubblewrap's own."""
_ENDINGS = {
    "guest-shutdown": "the guest powered off",
    "guest-reset": "the guest restarted, and a sandbox does not come back",
    "host-signal": "QEMU was told to end by a signal",
}


class MicroVM:
    """One virtual machine; see `machine.Machine`."""

    def __init__(self, spec: MachineSpec, directory: Path) -> None:
        """`directory`: the sandbox's own, 0700; the files made in it are removed by `stop`."""
        self._spec = spec
        self._directory = directory
        self._user = _user_for(directory)
        self._bubblewrap = Bubblewrap()
        self._group: Cgroup | None = None
        self._qmp: Qmp | None = None
        self._console = Console()
        self._held = contextlib.ExitStack()
        """Descriptors that stay open as long as it lives, the volumes' locks among them."""
        self._shutdown = ""
        """QEMU's reason for ending, as its last event said it."""
        self._paused = self._saved = self._stopped = False

    @property
    def isolation(self) -> Isolation:
        return self._spec.isolation

    @property
    def pid(self) -> int:
        """QEMU's, as this host numbers it; 0 before it was started."""
        return self._bubblewrap.first

    def console(self) -> str:
        """The last of what the guest's kernel printed. The guest chose it: for people who diagnose."""
        return self._console.text()

    def hits(self) -> frozenset[LimitName]:
        """Which limits the whole machine ran into since the last call, as the host's kernel counted them."""
        return self._group.hits() if self._group else frozenset()

    async def start(self) -> socket.socket:
        image = self._image()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            async with asyncio.timeout(self._spec.boot_seconds):
                with theirs:
                    await self._launch(image, theirs)
                await self._run()
                await self._first_byte(ours)
        except BaseException as error:
            ours.close()
            await self.stop()
            if isinstance(error, TimeoutError):
                raise self._not_up(f"said nothing for {self._spec.boot_seconds:g} s") from None
            if isinstance(error, OSError):
                raise MachineError(f"the microVM cannot be started: {error}") from error
            raise
        return ours

    async def wait(self) -> str:
        code = await self._bubblewrap.wait()
        if self._stopped:
            return "it was stopped"
        return await self._why(code)

    async def pause(self) -> None:
        if not self._paused:
            await self._control().execute("stop")
            self._paused = True

    async def resume(self) -> None:
        if self._paused:
            await self._control().execute("cont")
            self._paused = self._saved = False

    async def remains(self) -> Sequence[Remain]:
        if not self._paused:
            raise MachineError("the machine runs, so what is in it changes", "pause it first")
        if not self._saved:  # nothing of it changes until `resume`; QEMU would refuse to do it twice
            await self._save_devices()
            self._saved = True
        return [
            Remain("guest memory", RemainKind.MEMORY, path=Path(f"/proc/{self.pid}/fd/{_MEMORY}")),
            Remain("overlay disk", RemainKind.DISK, path=self._overlay),
            *(
                Remain(f"volume {volume.name}", RemainKind.DISK, path=disks.volume_file(volume))
                for volume in self._spec.volumes
            ),
            Remain("device state", RemainKind.DEVICE_STATE, path=self._devices),
        ]

    async def stop(self) -> None:
        self._stopped = True
        await self._bubblewrap.stop()
        if self._qmp is not None:
            await self._qmp.close()
        await self._console.close()
        if self._group is not None:
            group, self._group = self._group, None
            await asyncio.to_thread(group.close)
        self._held.close()
        for file in (self._overlay, self._devices):
            file.unlink(missing_ok=True)

    # --- starting ----------------------------------------------------------------------------------------

    @property
    def _overlay(self) -> Path:
        return self._directory / "overlay.ext4"

    @property
    def _devices(self) -> Path:
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

    async def _launch(self, image: Path, channel: socket.socket) -> None:
        program = jail.find_qemu()
        emulated = self._spec.isolation is Isolation.EMULATED
        try:
            async with asyncio.TaskGroup() as together:
                libraries = together.create_task(jail.libraries(program))
                clock = together.create_task(asyncio.to_thread(tsc_khz)) if emulated else None
                opened = together.create_task(self._open(image))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        control, theirs = socket.socketpair()
        self._qmp = Qmp(control, self._on_event)
        with theirs, self._console.open() as console:
            sockets = (theirs, channel, console)
            numbers = range(_KERNEL, _KERNEL + len(opened.result()))
            given = dict(zip(numbers, opened.result(), strict=True))
            given |= dict(
                zip((_CONTROL, _CHANNEL, _CONSOLE), (each.fileno() for each in sockets), strict=True)
            )
            words = arguments(self._hardware(clock.result() if clock else None))
            self._group = await asyncio.to_thread(self._make_group)
            jailed = jail.arguments(jail.Jail(program, libraries.result(), kvm=not emulated), words)
            await self._bubblewrap.start(jailed, given, self._user, self._prepare)

    async def _open(self, image: Path) -> list[int]:
        """Kernel, initrd, memory, root, overlay, volumes: in the order of their numbers there."""
        descriptors = [_open_part(image, name) for name in ("vmlinuz", "initrd")]
        descriptors.append(disks.make_memory(self._spec.memory_mib, self._user))
        descriptors.append(_open_part(image, "root.ext4"))
        for descriptor in descriptors:
            self._held.callback(os.close, descriptor)
        descriptors.append(await disks.make_overlay(self._overlay, self._spec.disk_mib))
        self._held.callback(os.close, descriptors[-1])
        for volume in self._spec.volumes:
            descriptors.append(await disks.open_volume(volume))
            self._held.callback(os.close, descriptors[-1])
        return descriptors

    def _hardware(self, khz: int | None) -> Hardware:
        spec = self._spec
        volumes = (
            Disk(f"volume{index}", _FIRST_DISK + 2 + index, read_only=False, lasting=True)
            for index in range(len(spec.volumes))
        )
        root, overlay = Disk("root", _FIRST_DISK, True), Disk("overlay", _FIRST_DISK + 1, False)
        return Hardware(
            isolation=spec.isolation,
            memory_mib=spec.memory_mib,
            cpus=spec.cpus,
            control=_CONTROL,
            channel=_CHANNEL,
            console=_CONSOLE,
            kernel=_KERNEL,
            initrd=_INITRD,
            memory=_MEMORY,
            disks=(root, overlay, *volumes),
            disk_bytes_per_second=spec.disk_bytes_per_second,
            disk_operations_per_second=spec.disk_operations_per_second,
            tsc_khz=khz,
        )

    def _make_group(self) -> Cgroup | None:
        spec = self._spec
        return Cgroup.create(
            f"coatcheck-{self._directory.name}",
            # The disk, too: where the directory is a tmpfs, the overlay is memory.
            memory_mib=spec.memory_mib + self._overhead() + spec.disk_mib,
            processes=jail.THREADS,
            cpus=spec.cpus,
        )

    def _overhead(self) -> int:
        return OVERHEAD_MIB + (TRANSLATIONS_MIB if self._spec.isolation is Isolation.EMULATED else 0)

    async def _prepare(self, first: int) -> None:
        """QEMU's user, limits and group, before anything of it runs."""
        enforced: frozenset[LimitName] = frozenset()
        if self._group is not None:
            await asyncio.to_thread(self._group.add, first)
            enforced = self._group.enforces
        spec = self._spec
        addresses = (spec.memory_mib + self._overhead() + ADDRESSES_MIB) * MIB
        largest = max(spec.memory_mib, spec.disk_mib, *(volume.size_mib for volume in spec.volumes), 0) * MIB
        words = jail.limits(
            address_space=None if LimitName.MEMORY in enforced else addresses,
            file_size=largest,
            own_user=self._user is not None,
        )
        await jail.confine(first, words, self._user)
        if LimitName.CPUS not in enforced:
            os.setpriority(os.PRIO_PROCESS, first, LOW_PRIORITY)
        # Last: without it bubblewrap gets nowhere, should we be killed at any moment before.
        jail.map_user(first, os.geteuid() if self._user is None else self._user)

    async def _run(self) -> None:
        """Let the CPUs go, now that both ends of everything are there."""
        try:
            await self._control().negotiate(self._spec.boot_seconds)
            await self._control().execute("cont")
        except QmpError as error:
            if not self._bubblewrap.ended():
                async with asyncio.timeout(1):
                    await self._bubblewrap.wait()
            said = self._bubblewrap.said()
            raise MachineError(
                f"QEMU does not start: {said or error}", "coatcheck doctor looks for what stands in its way"
            ) from error

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
            raise self._not_up(await self._why(await self._bubblewrap.wait()))

    def _not_up(self, how: str) -> MachineError:
        tail = self._console.tail()
        printed = f"; its console ends with:\n{tail}" if tail else "; it printed nothing"
        return MachineError(
            f"the guest did not come up: {how}{printed}",
            "a busy machine needs longer, try again; if it never comes up: coatcheck image build --force",
        )

    # --- its life ----------------------------------------------------------------------------------------

    def _control(self) -> Qmp:
        if self._qmp is None or self._stopped or self._bubblewrap.ended():
            raise MachineError("the machine is not running")
        return self._qmp

    def _on_event(self, name: str, data: Event) -> None:
        if name == "SHUTDOWN":
            self._shutdown = str(data.get("reason"))

    async def _why(self, code: int) -> str:
        """Why it ended by itself, from its exit code and its last words."""
        if self._qmp is not None:
            await self._qmp.gone()  # its last event was written before it ended
        if LimitName.MEMORY in self.hits():
            return "QEMU needed more memory than the host gives one of its size, and was killed"
        if panic := self._console.last("Kernel panic"):
            return f"the guest's kernel gave up: {panic}"
        if self._shutdown in _ENDINGS:
            return _ENDINGS[self._shutdown]
        if code > 128:
            return f"QEMU was killed by signal {code - 128}"
        return f"QEMU ended with exit code {code}: {self._bubblewrap.said() or 'it gave no reason'}"

    async def _save_devices(self) -> None:
        """Devices, without memory, into a file that is ours: QEMU can open none."""
        qmp = self._control()
        self._devices.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._devices, flags, 0o600)
        try:
            await qmp.execute("getfd", {"fdname": "state"}, descriptor=descriptor)
        finally:
            os.close(descriptor)
        shared = {"capability": "x-ignore-shared", "state": True}
        await qmp.execute("migrate-set-capabilities", {"capabilities": [shared]})
        await qmp.execute("migrate", {"uri": "fd:state"})
        async with asyncio.timeout(SAVE_SECONDS):
            while (told := (await qmp.execute("query-migrate")).get("status")) != "completed":
                if told in ("failed", "cancelled"):
                    raise MachineError("QEMU could not save the state of its devices", "try again")
                await asyncio.sleep(0.002)


def _user_for(directory: Path) -> int | None:
    """Whom QEMU runs as, where we are root; else it runs as we do."""
    if os.geteuid() != 0:
        return None
    return jail.host_user(directory, Path("/proc/self/uid_map").read_text())


def _open_part(image: Path, name: str) -> int:
    try:
        descriptor = os.open(image / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(
            f"the image's {name} cannot be opened: {image / name}: {error.strerror}",
            "build it: coatcheck image build",
        ) from error
    if os.geteuid() == 0 and not os.fstat(descriptor).st_mode & 0o004:
        os.close(descriptor)
        raise MachineError(
            f"{image / name} is closed to QEMU's user",
            f"nothing in an image is secret: chmod 644 {image / name}",
        )
    return descriptor
