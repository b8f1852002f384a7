"""What a sandbox runs in, whatever isolates it: the values that describe one, the protocol that drives it.

Implementations: `microvm.MicroVM` (QEMU) and `container.ContainerMachine` (bubblewrap).
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from coatcheck.decision.session import Isolation
from coatcheck.platform.errors import CoatcheckError
from coatcheck.sandbox.resources import Resources, Size


class MachineError(CoatcheckError):
    """A machine cannot be had, or is gone. The message says what happened; `hint` what to do next."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A named disk that outlives sandboxes; one sandbox has it at a time. See `disks.open_volume`."""

    store: Path
    """Directory of all volumes, 0700, below the state directory."""
    tenant: str
    name: str
    """Unique in its tenant: two tenants' volumes of one name are two disks."""
    at: str
    """Absolute path in the guest where it is mounted."""
    size_mib: int
    """Of a volume that is made now, and the ceiling that an existing one is held to."""


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine that is wanted. Everything in it is decided: defaults and ceilings are `limits`' business."""

    isolation: Isolation
    """What its session was opened as. A machine that cannot give exactly that does not start: a credential
    may have been granted for it."""
    image: Path | None
    """Directory of a built image (vmlinuz, initrd, root.ext4, manifest.json); None: the host's own files."""
    resources: Resources
    """The limit on processes is enforced by what starts them there."""
    volumes: tuple[Volume, ...] = ()
    generation: int = 1
    disk_bytes_per_second: int = 256 * 1024 * 1024
    """Each disk, reads and writes together: a sandbox that floods its disk leaves the host's to others."""
    disk_operations_per_second: int = 20_000
    starts_with: Size | None = None
    """Of an elastic one, whose `resources` are the most that it can be given while it runs. None:
    it has those from start to end."""
    boot_seconds: float = 60.0
    """Until the guest's agent must have spoken. A slow machine without KVM takes 10."""

    @property
    def needed_mib(self) -> int:
        """Memory that the host must have for it to start."""
        return self.starts_with.memory_mib if self.starts_with is not None else self.resources.memory_mib


class RemainKind(StrEnum):
    MEMORY = "memory"
    DISK = "disk"
    DEVICE_STATE = "device state"
    FILE = "file"
    PROCESS = "process"
    """Of a process: its memory, environment and open files, through /proc/<pid>."""


@dataclass(frozen=True, slots=True)
class Remain:
    """Something of a paused machine that could hold what was in it; what inspection scans."""

    name: str
    """For people: `guest memory`, `overlay disk`."""
    kind: RemainKind
    path: Path | None = None
    pid: int | None = None
    """One of the two: a file, or a process of this host."""


class Machine(Protocol):
    """One machine, from `start` to `stop`. Not reusable. All methods belong to one event loop."""

    @property
    def isolation(self) -> Isolation: ...

    async def start(self) -> socket.socket:
        """Start it; the guest's channel, connected and non-blocking, after the guest's first byte came.

        The caller owns the socket and must always read it: a guest that finds its port full stands still.
        MachineError when it does not come up; nothing is left behind then.
        """

    async def wait(self) -> str:
        """Waits until it ended or was stopped, and says why, in words for a person."""

    async def pause(self) -> None:
        """No instruction of the guest runs until `resume`. Idempotent. MachineError when it is gone."""

    async def resume(self) -> None: ...

    async def remains(self) -> Sequence[Remain]:
        """What is left of it to look at. Only while paused, and valid until `resume` or `stop`."""

    async def stop(self) -> None:
        """End it. Idempotent; afterwards nothing is left: no process, socket, mount or file."""
