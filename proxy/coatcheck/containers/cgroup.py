"""A control group of our own for one sandbox: its memory, processes and CPU, as the kernel counts them.

cgroup v2 where a group was delegated to us, v1 as root. The two differ in file names only. `enforces` leaves
out what cannot be had on this host, and the caller must report that.
"""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coatcheck.sandbox.limits import MIB, LimitName

SPARE_PROCESSES = 4
"""Beyond the sandbox's own limit: the agent, and what it is just starting."""
EMPTY_SECONDS = 5.0
"""A killed process leaves its group once the kernel freed its memory; gigabytes take a moment."""
_PERIOD_MICROSECONDS = 100_000
_MARGIN = 16 * MIB
"""What a group may come to use between a look and a new limit."""
_V2_CONTROLLERS = ("memory", "pids", "cpu")
_V1_CONTROLLERS = ("memory", "pids", "cpu", "freezer")
_EVENTS = ("memory.events", "memory.oom_control")
"""v2's and v1's."""
_LIMIT_OF = {"memory": LimitName.MEMORY, "pids": LimitName.PROCESSES, "cpu": LimitName.CPUS}


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where groups of ours may be made: below our own, so that what limits us limits them."""

    unified: Path | None
    v1: Mapping[str, Path]
    """By controller."""


def find() -> Hierarchies:
    """What this process may use. Nothing is made or changed."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    unified: Path | None = None
    v1: dict[str, Path] = {}
    for words in mounts:
        kind, options = words[words.index("-") + 1], words[-1].split(",")
        for _, controllers, path in own:
            place = Path(words[4] + path)
            if kind == "cgroup2" and not controllers:
                unified = _delegated(place)
            elif kind == "cgroup" and controllers and set(controllers.split(",")) <= set(options):
                if os.access(place, os.W_OK):
                    v1 |= dict.fromkeys(controllers.split(","), place)
    return Hierarchies(unified, v1)


def writable(mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether all hierarchies are there and can be written, as runc needs them. In a Kubernetes pod they are
    read-only, also for root."""
    mounts = [line.split() for line in mountinfo.read_text().splitlines()]
    places = [words[4] for words in mounts if words[words.index("-") + 1] in ("cgroup", "cgroup2")]
    return bool(places) and all(os.access(place, os.W_OK) for place in places)


def _delegated(own: Path) -> Path | None:
    """Our group, or the one above it: a group with processes in it may have no groups with limits below
    it, so systemd's DelegateSubgroup= puts a service's processes one down."""
    for place in (own, own.parent):
        with contextlib.suppress(OSError):
            offered = (place / "cgroup.controllers").read_text().split()
            if not set(_V2_CONTROLLERS) & set(offered) or not os.access(place, os.W_OK):
                continue
            wanted = " ".join(f"+{name}" for name in _V2_CONTROLLERS if name in offered)
            (place / "cgroup.subtree_control").write_text(wanted)
            return place
    return None


class Cgroup:
    """Made by `Cgroup.create`. Blocking calls, all short but `close`."""

    def __init__(self, unified: Path | None, v1: Mapping[str, Path]) -> None:
        self._unified = unified
        self._v1 = v1
        self._seen: Counter[LimitName] = Counter()
        self.enforces: frozenset[LimitName] = frozenset()

    @classmethod
    def create(cls, name: str, *, memory_mib: int, processes: int, cpus: int) -> "Cgroup | None":
        """A new group called `name` with these limits; None where none can be had. A group of that name that
        is there is another's: FileExistsError."""
        found = find()
        unified = found.unified / name if found.unified else None
        v1 = {
            controller: found.v1[controller] / name
            for controller in _V1_CONTROLLERS
            if controller in found.v1 and unified is None
        }
        group = cls(unified, v1)
        if any(place.exists() for place in group._places()):
            raise FileExistsError(f"the control group {name} already exists")
        try:
            for place in group._places():
                place.mkdir()
            group.limit(memory_mib, processes, cpus)
        except OSError:
            group.close()
            return None
        if group.enforces:
            return group
        group.close()
        return None

    def add(self, pid: int) -> None:
        """Move process `pid`; what it starts afterwards is in the group, too."""
        for place in self._places():
            (place / "cgroup.procs").write_text(str(pid))

    def set_memory(self, mib: int) -> bool:
        """Another limit for all of it together. False where none is kept, or more than `mib` is in use now:
        then nothing was changed, and nobody killed for it."""
        if LimitName.MEMORY not in self.enforces:
            return False
        wanted = str(mib * MIB)
        if self._unified:
            # memory.max below what is in use would end processes; memory.limit_in_bytes refuses.
            if int((self._unified / "memory.current").read_text()) + _MARGIN > mib * MIB:
                return False
            return _write_if_there(self._unified / "memory.max", wanted)
        place = self._v1["memory"]
        files = [place / "memory.limit_in_bytes", place / "memory.memsw.limit_in_bytes"]
        if int(files[0].read_text()) < mib * MIB:
            files.reverse()  # the second may never be below the first
        done = {file.name: _write_if_there(file, wanted) for file in files}
        return done["memory.limit_in_bytes"]

    def set_cpus(self, cpus: int) -> bool:
        """Another share of CPU time, in whole CPUs. False where this kernel keeps none."""
        if LimitName.CPUS not in self.enforces:
            return False
        quota = cpus * _PERIOD_MICROSECONDS
        if self._unified:
            return _write_if_there(self._unified / "cpu.max", f"{quota} {_PERIOD_MICROSECONDS}")
        return _write_if_there(self._v1["cpu"] / "cpu.cfs_quota_us", str(quota))

    def hits(self) -> frozenset[LimitName]:
        """Which limits were run into since the last call."""
        now = self._counted()
        found = frozenset(name for name, count in now.items() if count > self._seen[name])
        self._seen = now
        return found

    def freeze(self) -> bool:
        """Stop all processes in it. False where this kernel gives no freezer: nothing was done then."""
        return self._freezer(True)

    def thaw(self) -> bool:
        return self._freezer(False)

    def pids(self) -> tuple[int, ...]:
        found: set[int] = set()
        for place in self._places():
            with contextlib.suppress(OSError):
                found |= {int(word) for word in (place / "cgroup.procs").read_text().split()}
        return tuple(sorted(found))

    def kill(self) -> None:
        """All processes in it, however fast they fork."""
        if self._unified:
            with contextlib.suppress(OSError):  # Linux 5.14
                (self._unified / "cgroup.kill").write_text("1")
                return
        deadline = time.monotonic() + EMPTY_SECONDS
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if "freezer" in self._v1:  # what is frozen there dies when it is let go, and runs nothing before
                _write_if_there(self._v1["freezer"] / "freezer.state", "THAWED")
            time.sleep(0.005)

    def close(self) -> None:
        """Remove it; waits up to EMPTY_SECONDS for what was killed in it. Idempotent."""
        deadline = time.monotonic() + EMPTY_SECONDS
        for place in self._places():
            while True:
                try:
                    place.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(0.005)

    def _places(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys([self._unified] if self._unified else self._v1.values()))

    def limit(self, memory_mib: int, processes: int, cpus: int) -> None:
        memory, quota = memory_mib * MIB, cpus * _PERIOD_MICROSECONDS
        held = set()
        if self._unified:
            offered = (self._unified / "cgroup.controllers").read_text().split()
            held = {name for name in _V2_CONTROLLERS if name in offered}
            if "memory" in held:
                (self._unified / "memory.max").write_text(str(memory))
                _write_if_there(self._unified / "memory.swap.max", "0")
            if "pids" in held:
                (self._unified / "pids.max").write_text(str(processes + SPARE_PROCESSES))
            if "cpu" in held:
                (self._unified / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
        for name, place in self._v1.items():
            if name == "memory":
                (place / "memory.limit_in_bytes").write_text(str(memory))
                _write_if_there(place / "memory.memsw.limit_in_bytes", str(memory))
            elif name == "pids":
                (place / "pids.max").write_text(str(processes + SPARE_PROCESSES))
            elif name == "cpu":
                if not _write_if_there(place / "cpu.cfs_quota_us", str(quota)):
                    continue
            held.add(name)
        self.enforces = frozenset(_LIMIT_OF[name] for name in held if name in _LIMIT_OF)

    def _counted(self) -> Counter[LimitName]:
        files = {
            LimitName.MEMORY: (
                self._unified or self._v1.get("memory"),
                _EVENTS[self._unified is None],
                "oom_kill",
            ),
            LimitName.PROCESSES: (self._unified or self._v1.get("pids"), "pids.events", "max"),
        }
        return Counter(
            {name: _number(place / file, word) for name, (place, file, word) in files.items() if place}
        )

    def _freezer(self, frozen: bool) -> bool:
        if self._unified:
            file, word, told = (
                self._unified / "cgroup.freeze",
                str(int(frozen)),
                self._unified / "cgroup.events",
            )
            done = f"frozen {int(frozen)}"
        elif "freezer" in self._v1:
            file = told = self._v1["freezer"] / "freezer.state"
            word = done = "FROZEN" if frozen else "THAWED"
        else:
            return False
        deadline = time.monotonic() + EMPTY_SECONDS
        while time.monotonic() < deadline:
            try:
                file.write_text(word)  # v1 goes on freezing what forked meanwhile when it is told again
                if done in told.read_text():
                    return True
            except OSError:
                return False
            time.sleep(0.002)
        return False


def remove(name: str) -> None:
    """End group `name`, which a supervisor that was killed left behind, and all in it. Idempotent."""
    found = find()
    unified = found.unified / name if found.unified else None
    left = Cgroup(unified, {} if unified else {key: place / name for key, place in found.v1.items()})
    if left.pids():
        left.kill()
    left.close()


def _write_if_there(file: Path, text: str) -> bool:
    """Whether this kernel has it: swap accounting and CPU bandwidth are options of the kernel."""
    try:
        if file.exists():
            file.write_text(text)
            return True
    except OSError:
        return False
    return False


def _number(file: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
    return 0
