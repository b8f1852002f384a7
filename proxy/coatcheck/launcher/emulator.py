"""In the supervisor: runs one QEMU from start to end: a process in its jail, with its control socket and
console."""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from coatcheck.containers import jail
from coatcheck.containers.bubblewrap import Bubblewrap
from coatcheck.containers.cgroup import Cgroup
from coatcheck.decision.session import Isolation
from coatcheck.launcher.console import Console
from coatcheck.launcher.qemu import CONSOLE, CONTROL, TRANSLATIONS_MIB, Hardware, arguments
from coatcheck.launcher.qmp import Event, Qmp, QmpError
from coatcheck.launcher.tasks import in_thread
from coatcheck.sandbox.limits import LimitName
from coatcheck.sandbox.machine import MachineError, MachineSpec

MIB = 1024 * 1024
OVERHEAD_MIB = 256
"""QEMU itself beside the guest's memory and its translations: program, libraries, buffers, page tables."""
ADDRESSES_MIB = 2048
"""The same where only addresses can be limited: each of its threads reserves 72 MiB and uses little of it."""
LOW_PRIORITY = 10
"""`nice`, where no cgroup holds the CPU: the neighbours go first."""
_ENDINGS = {
    "guest-shutdown": "the guest powered off",
    "guest-reset": "the guest restarted, and a sandbox does not come back",
    "host-signal": "QEMU was told to end by a signal",
}


class Emulator:
    """Not reusable. All methods belong to one event loop."""

    def __init__(self, spec: MachineSpec, name: str, user: int | None) -> None:
        """`name`: of its control group, nobody else's. `user`: whom it runs as, where we are root."""
        self._spec = spec
        self._name = name
        self._user = user
        self._bubblewrap = Bubblewrap()
        self._group: Cgroup | None = None
        self._qmp: Qmp | None = None
        self._shutdown = ""
        """QEMU's reason for ending, as its last event said it."""
        self.console = Console()

    @property
    def pid(self) -> int:
        """As this host numbers it; 0 before it was started."""
        return self._bubblewrap.first

    @property
    def group(self) -> Cgroup | None:
        """What holds it; None: this host gives none, or it has ended."""
        return self._group

    def hits(self) -> frozenset[LimitName]:
        """Which limits it ran into since the last call, as the host's kernel counted them."""
        return self._group.hits() if self._group else frozenset()

    def control(self) -> Qmp:
        """MachineError when it is not there."""
        if self._qmp is None or self._bubblewrap.ended():
            raise MachineError("the machine is not running")
        return self._qmp

    async def launch(
        self, program: Path, libraries: tuple[Path, ...], hardware: Hardware, descriptors: Mapping[int, int]
    ) -> None:
        """Start it with `descriptors` (QEMU's numbers -> ours) beside control and console."""
        control, theirs = socket.socketpair()
        self._qmp = Qmp(control, self._on_event)
        with ExitStack() as given:
            given.enter_context(theirs)
            console = given.enter_context(self.console.open())
            sockets = {CONTROL: theirs.fileno(), CONSOLE: console.fileno()}
            await in_thread(self._make_group)
            kvm = self._spec.isolation is Isolation.HARDWARE
            jailed = jail.arguments(jail.Jail(program, libraries, kvm=kvm), arguments(hardware))
            await self._bubblewrap.start(jailed, {**sockets, **descriptors}, self._user, self.prepare)

    async def answer(self) -> Qmp:
        """Its control socket, once it answers there. MachineError with what it said if it does not."""
        try:
            await self.control().negotiate(self._spec.boot_seconds)
        except MachineError as error:
            raise await self.not_started(error) from error
        return self.control()

    async def not_started(self, error: MachineError) -> MachineError:
        """What to raise for `error`, which a command to it had before its guest ran."""
        if not isinstance(error, QmpError):
            return error
        if not self._bubblewrap.ended():
            async with asyncio.timeout(1):
                await self._bubblewrap.wait()
        return MachineError(
            f"QEMU does not start: {self._bubblewrap.said() or error}",
            "coatcheck doctor finds the obstacle",
        )

    async def ended(self) -> None:
        """Until it ended."""
        await self._bubblewrap.wait()

    async def wait(self) -> str:
        """Waits until it ended without our asking, and says why, in words for a person."""
        return await self._why(await self._bubblewrap.wait())

    async def stop(self) -> None:
        """End it. Idempotent; afterwards nothing is left of it."""
        await self._bubblewrap.stop()
        if self._qmp is not None:
            await self._qmp.close()
        await self.console.close()
        if self._group is not None:
            group, self._group = self._group, None
            await asyncio.to_thread(group.close)

    def _make_group(self) -> None:
        spec = self._spec
        self._group = Cgroup.create(
            self._name,
            memory_mib=spec.resources.memory_mib + beside_mib(spec),
            processes=jail.THREADS,
            cpus=spec.resources.cpus,
        )

    async def prepare(self, first: int) -> None:
        """QEMU's user, limits and group, before anything of it runs."""
        enforced: frozenset[LimitName] = frozenset()
        if self._group is not None:
            await asyncio.to_thread(self._group.add, first)
            enforced = self._group.enforces
        spec = self._spec
        addresses = (spec.resources.memory_mib + _overhead(spec) + ADDRESSES_MIB) * MIB
        largest = (
            max(
                spec.resources.memory_mib,
                spec.resources.disk_mib,
                *(volume.size_mib for volume in spec.volumes),
                0,
            )
            * MIB
        )
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

    def _on_event(self, name: str, data: Event) -> None:
        if name == "SHUTDOWN":
            self._shutdown = str(data.get("reason"))

    async def _why(self, code: int) -> str:
        """Why it ended without our asking, from its exit code and its last words."""
        if self._qmp is not None:
            await self._qmp.gone()  # its last event was written before it ended
        if LimitName.MEMORY in self.hits():
            return "QEMU needed more memory than the host gives one of its size, and was killed"
        if panic := self.console.last("Kernel panic"):
            return f"the guest's kernel gave up: {panic}"
        if self._shutdown in _ENDINGS:
            return _ENDINGS[self._shutdown]
        if code > 128:
            return f"QEMU was killed by signal {code - 128}"
        return f"QEMU ended with exit code {code}: {self._bubblewrap.said() or 'it gave no reason'}"


def beside_mib(spec: MachineSpec) -> int:
    """What its group may take beside the guest's memory."""
    return _overhead(spec) + spec.resources.disk_mib  # where the directory is a tmpfs, the overlay is memory


def _overhead(spec: MachineSpec) -> int:
    return OVERHEAD_MIB + (TRANSLATIONS_MIB if spec.isolation is Isolation.EMULATED else 0)
