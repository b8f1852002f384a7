"""In the supervisor: sets the size of a running microVM: a balloon holds its memory, a control group or
affinity its CPUs.

A `microvm` machine has no hotplug, so it is built with its ceiling. The guest's kernel operates the balloon,
and root in the guest can deflate it. The control group, where there is one, and the ceiling hold even then.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coatcheck.containers.cgroup import Cgroup
from coatcheck.launcher.emulator import Emulator, beside_mib
from coatcheck.launcher.qmp import Qmp
from coatcheck.sandbox.machine import MachineError, MachineSpec
from coatcheck.sandbox.resources import Size

MIB: Final = 1024 * 1024
BALLOON: Final = "balloon"
_PATH: Final = f"/machine/peripheral/{BALLOON}"
POLL_SECONDS: Final = 2
"""How often QEMU asks the guest's driver what is in use; each costs the guest an interrupt."""
STALE_SECONDS: Final = 20.0
"""Numbers that are older say nothing: it was paused, its driver is gone, or it is starved of CPU."""
NEARLY: Final = 8
"""MiB by which a balloon may miss its target and still have reached it: the driver works in pages, and a few
are never free."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a guest has and takes, in MiB."""

    has_mib: int
    """What the balloon leaves it: its kernel's word, and not less than `resident_mib`."""
    resident_mib: int
    """What of it the host has given pages for: our own count, and what it gave up still counts."""
    used_mib: int | None
    """What cannot be taken without ending something, as its kernel says, and never more than `resident_mib`.
    None: it says nothing."""


class Sizing:
    """Of one microVM, from its start to its end. Belongs to its event loop."""

    def __init__(
        self,
        start: Size,
        ceiling: Size,
        *,
        beside_mib: int,
        control: Callable[[], Qmp],
        pid: Callable[[], int],
        group: Callable[[], Cgroup | None],
        memory: Callable[[], int],
    ) -> None:
        """As `of`. `beside_mib`: what its group may take beside the guest's memory."""
        self.target = start
        self.fixed = ""
        """Why it cannot be resized, in words; empty where it can."""
        self._ceiling = ceiling
        self._beside = beside_mib
        self._control, self._pid, self._group, self._memory = control, pid, group, memory
        self._held = ""
        self._wall: tuple[int, int] | None = None
        """Of which QEMU, and the guest's part of its group's limit in MiB."""

    @classmethod
    def of(
        cls,
        spec: MachineSpec,
        control: Callable[[], Qmp],
        emulator: Callable[[], Emulator | None],
        memory: Callable[[], int],
    ) -> "Sizing | None":
        """Of the machine that `spec` describes; None: it has one size. The others answer for the QEMU that
        there is now; `memory`: the descriptor of the guest's memory."""
        if spec.starts_with is None:
            return None

        def pid() -> int:
            now = emulator()
            return now.pid if now is not None else 0

        def group() -> Cgroup | None:
            now = emulator()
            return now.group if now is not None else None

        most = spec.resources.size
        beside = beside_mib(spec)
        return cls(
            spec.starts_with, most, beside_mib=beside, control=control, pid=pid, group=group, memory=memory
        )

    async def resize(self, size: Size) -> None:
        """Let it have `size` from now on. What it has too much comes back as fast as its kernel gives it.
        MachineError when that cannot be, and nothing was changed."""
        if self.fixed:
            raise MachineError(self.fixed)
        if not 1 <= size.memory_mib <= self._ceiling.memory_mib or not 1 <= size.cpus <= self._ceiling.cpus:
            raise MachineError(f"this machine was built for {self._ceiling}")
        qmp = self._control()
        if size.memory_mib > self.target.memory_mib:
            self._build_wall(size.memory_mib)  # first: or what it may take would end it
        await qmp.execute("balloon", {"value": size.memory_mib * MIB})
        self.target = size
        self._hold_cpus()

    async def settle(self) -> None:
        """What takes its time: the wall comes down behind the balloon, new threads are held as the others.
        To be called again and again; cheap. MachineError when the machine is gone."""
        self._hold_cpus()
        if self.fixed:
            return
        if self.walled_mib > self.target.memory_mib:
            has = await self.has()
            if has <= self.target.memory_mib + NEARLY:
                self._build_wall(self.target.memory_mib)

    async def use(self) -> Use:
        """MachineError when the machine is gone."""
        if self.fixed:
            raise MachineError(self.fixed)
        qmp = self._control()
        has = await self.has()
        resident = self._resident()
        poll = {"path": _PATH, "property": "guest-stats-polling-interval", "value": POLL_SECONDS}
        await qmp.execute("qom-set", poll)
        said = await qmp.execute("qom-get", {"path": _PATH, "property": "guest-stats"})
        free = available(said, time.time())
        return Use(has, resident, None if free is None else min(max(0, has - free // MIB), resident))

    @property
    def cpus_held_by(self) -> str:
        """What keeps it to its CPUs, for a person who must know how much that is worth."""
        return self._held

    async def has(self) -> int:
        """MiB that the balloon leaves it, as its kernel says, and never less than what the host gave pages
        for. MachineError when the machine is gone."""
        said = await self._control().execute("query-balloon")
        actual = said.get("actual") if isinstance(said, Mapping) else None
        left = actual // MIB if isinstance(actual, int) else self._ceiling.memory_mib
        return min(max(left, self._resident()), self._ceiling.memory_mib)

    def _resident(self) -> int:
        return os.fstat(self._memory()).st_blocks * 512 // MIB

    @property
    def walled_mib(self) -> int:
        """The wall of the QEMU that there is now: another one has a group that holds it to the ceiling."""
        pid, mib = self._wall or (0, 0)
        return mib if pid == self._pid() else self._ceiling.memory_mib

    def _build_wall(self, memory_mib: int) -> None:
        group = self._group()
        if group is not None and group.set_memory(memory_mib + self._beside):
            self._wall = self._pid(), memory_mib

    def _hold_cpus(self) -> None:
        group, cpus = self._group(), self.target.cpus
        if group is not None and group.set_cpus(cpus):
            self._held = "its CPU time is counted (cgroup)"
        elif _hold(self._pid(), None if cpus >= self._ceiling.cpus else cpus):
            self._held = "it runs on so many CPUs of the host, beside whatever else does (affinity)"
        else:
            self._held = "nothing: this host lets us neither count CPU time nor choose CPUs"


def available(said: Any, now: float) -> int | None:
    """Bytes that could be taken without ending anything, in the guest's own word: hostile, so it is a number
    in its own bounds or nothing. None also when it was said long before `now` (Unix time, the host's)."""
    if not isinstance(said, Mapping) or not isinstance(said.get("stats"), Mapping):
        return None
    at = said.get("last-update")
    if not isinstance(at, int) or abs(now - at) > STALE_SECONDS:
        return None
    total, free = (said["stats"].get(f"stat-{name}-memory") for name in ("total", "available"))
    if not isinstance(total, int) or not isinstance(free, int) or not 0 <= free <= total < 1 << 63:
        return None
    return free


def _hold(pid: int, cpus: int | None) -> bool:
    """All threads of `pid` on `cpus` of the CPUs that we may use ourselves; None: on all. Threads made later
    are where those are that make them; QEMU's own filter keeps it from choosing. False: not allowed to."""
    ours = sorted(os.sched_getaffinity(0))
    first = pid % len(ours)  # so that sandboxes do not all share the host's first
    chosen = {ours[(first + number) % len(ours)] for number in range(min(cpus or len(ours), len(ours)))}
    try:
        for _ in range(2):  # one that was made meanwhile, by a thread that was still elsewhere
            for thread in os.listdir(Path("/proc", str(pid), "task")):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), chosen)
    except OSError:
        return False
    return True
