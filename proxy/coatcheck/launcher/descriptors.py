"""In the supervisor: numbers the descriptors that QEMU gets, and the hardware that is made of them."""

import socket
from collections.abc import Sequence
from typing import Final

from coatcheck.launcher.qemu import Disk, Hardware
from coatcheck.sandbox.machine import MachineSpec

CONTROL, CHANNEL, CONSOLE, KERNEL, INITRD, MEMORY, FIRST_DISK = 3, 6, 7, 8, 9, 10, 11
"""4 and 5 are bubblewrap's own."""
FILES: Final = ("vmlinuz", "initrd", "root.ext4")
"""Of an image, in the order in which `numbered` takes them."""


def numbered(files: Sequence[int], memory: int, overlay: int, channel: socket.socket) -> dict[int, int]:
    """QEMU's numbers -> ours. `files`: kernel, initrd, root, and the volumes."""
    kernel, initrd, root, *volumes = files
    in_order = (kernel, initrd, memory, root, overlay, *volumes)
    return {**dict(enumerate(in_order, KERNEL)), CHANNEL: channel.fileno()}


def hardware(spec: MachineSpec, tsc_khz: int | None, *, incoming: bool, private: bool) -> Hardware:
    """A machine of `spec` with those numbers; see `qemu.Hardware` for the rest."""
    volumes = (
        Disk(f"volume{index}", FIRST_DISK + 2 + index, read_only=False, lasting=True)
        for index in range(len(spec.volumes))
    )
    root, overlay = Disk("root", FIRST_DISK, True), Disk("overlay", FIRST_DISK + 1, False)
    return Hardware(
        isolation=spec.isolation,
        memory_mib=spec.resources.memory_mib,
        cpus=spec.resources.cpus,
        control=CONTROL,
        channel=CHANNEL,
        console=CONSOLE,
        kernel=KERNEL,
        initrd=INITRD,
        memory=MEMORY,
        disks=(root, overlay, *volumes),
        disk_bytes_per_second=spec.disk_bytes_per_second,
        disk_operations_per_second=spec.disk_operations_per_second,
        tsc_khz=tsc_khz,
        incoming=incoming,
        private=private,
        balloon=spec.starts_with is not None,
    )
