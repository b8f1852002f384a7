"""In the supervisor: writes QEMU's command line, a pure function of what a machine is. Files and sockets
come as descriptors.

Nothing in it is named by a path of the host: QEMU runs as another user, in a view of its own (`jail`), and
what it may touch was opened before. No network device is on it, and none can be added: the control socket is
a descriptor, too.
"""

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coatcheck.decision.session import Isolation
from coatcheck.sandbox.machine import MachineSpec

PORT = "coatcheck.0"
"""Of the guest's channel; the guest finds it by /sys/class/virtio-ports/*/name."""
TRANSLATIONS_MIB = 128
"""Translated guest code without KVM. QEMU's own default is 1 GiB, which eight sandboxes do not have; with
128 MiB a boot and a Python start fit, and it is all that they reuse."""

_SECCOMP = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


CONTROL, CHANNEL, CONSOLE, KERNEL, INITRD, MEMORY, FIRST_DISK = 3, 6, 7, 8, 9, 10, 11
"""Descriptors as QEMU knows them: its control socket (QMP), the guest's port, what the guest's kernel prints,
and files. 4 and 5 are bubblewrap's own."""
FILES: Final = ("vmlinuz", "initrd", "root.ext4")
"""Of an image, in the order in which `numbered` takes them."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One machine."""

    spec: MachineSpec
    tsc_khz: int | None
    """Of this host, for a guest without KVM."""
    incoming: bool = False
    """It does not boot: its devices' state comes over the control socket, its memory already exists."""
    private: bool = False
    """What the guest writes to its memory does not go into that file: it is a template, others' as well."""


def numbered(files: Sequence[int], memory: int, overlay: int, channel: socket.socket) -> dict[int, int]:
    """QEMU's numbers -> ours. `files`: kernel, initrd, root, and the volumes."""
    kernel, initrd, root, *volumes = files
    in_order = (kernel, initrd, memory, root, overlay, *volumes)
    return {**dict(enumerate(in_order, KERNEL)), CHANNEL: channel.fileno()}


def kernel_arguments(hardware: Hardware) -> str:
    """What the guest's kernel is told. Readable to everybody in there, so nothing in it is secret."""
    words = [
        "console=ttyS0 quiet",
        # At once: the machine ends, and says why, instead of standing still. By a triple fault: the kernel's
        # other ways lead back into the firmware, which boots it again without QEMU's knowing.
        "panic=-1 oops=panic reboot=t",
        # Its ciphers' self-tests are three fifths of all that it executes until init (measured).
        "cryptomgr.notests",
        # Probes of what a microVM does not have.
        "pci=off i8042.noaux i8042.nokbd random.trust_cpu=on nowatchdog",
    ]
    if hardware.spec.isolation is not Isolation.HARDWARE:
        # Translated code does not speculate as the CPU would, and emulating the barriers costs a fifth.
        words.append("mitigations=off no_timer_check")
        # Else it measures its clock against an emulated timer, which on a busy host fails, and then the
        # kernel stands still for ever in 7 boots of 12 (measured; Linux 6.1, QEMU 7.2).
        words.append(f"tsc=reliable tsc_early_khz={hardware.tsc_khz}")
    return " ".join(words)


def arguments(hardware: Hardware) -> tuple[str, ...]:
    """All words after the program's name. The guest's CPUs stand still until `cont`."""
    words = [
        *("-nodefaults", "-no-user-config", "-no-reboot", "-S"),
        *("-display", "none", "-monitor", "none", "-parallel", "none"),
        *("-sandbox", _SECCOMP),
        # mem-merge: pages that are shared with other guests tell by their timing what those hold.
        *("-machine", "microvm,acpi=on,memory-backend=memory,mem-merge=off,dump-guest-core=off"),
        *_processor(hardware),
        *("-m", f"size={hardware.spec.resources.memory_mib}M"),
        *("-object", _json(_memory(hardware))),
        *("-kernel", _path(KERNEL), "-initrd", _path(INITRD)),
        *("-append", kernel_arguments(hardware)),
        *("-chardev", f"socket,id=control,fd={CONTROL}", "-mon", "chardev=control,mode=control"),
        *("-chardev", f"socket,id=console,fd={CONSOLE}", "-serial", "chardev:console"),
        *("-device", "virtio-serial-device,max_ports=2"),
        *("-chardev", f"socket,id=channel,fd={CHANNEL}"),
        *("-device", f"virtserialport,chardev=channel,name={PORT}"),
        # The kernel's own source and no file; bounded, or a guest could burn the host's CPU with it.
        *("-object", _json({"qom-type": "rng-builtin", "id": "entropy"})),
        *("-device", "virtio-rng-device,rng=entropy,max-bytes=4096,period=1000"),
    ]
    if hardware.spec.starts_with is not None:  # a balloon, by which memory can be taken while it runs
        # Without deflate-on-oom: a guest that is short of memory would take more than it was given.
        words += ("-device", "virtio-balloon-device,id=balloon,deflate-on-oom=off,free-page-reporting=off")
    if hardware.incoming:
        # What says how a state is made up is not in it: the same build wrote it.
        words += ["-incoming", "defer", "-machine", "suppress-vmdesc=on"]
        words += ["-global", "migration.send-configuration=off"]
    # The guest finds a disk by its serial number (/sys/block/*/serial), 20 bytes at most.
    volumes = (f"volume{number}" for number in range(len(hardware.spec.volumes)))
    for number, serial in enumerate(("root", "overlay", *volumes)):
        words += _disk(serial, number, hardware.spec)
    return tuple(words)


def _processor(hardware: Hardware) -> Sequence[str]:
    if hardware.spec.isolation is Isolation.HARDWARE:
        # No nested guests: the host's KVM has had most of its holes there.
        return ("-accel", "kvm", "-cpu", "host,-vmx,-svm", "-smp", str(hardware.spec.resources.cpus))
    threads = "multi" if hardware.spec.resources.cpus > 1 else "single"
    return (
        *("-accel", f"tcg,thread={threads},tb-size={TRANSLATIONS_MIB}"),
        # x86-64-v2, which binary packages expect, with a source of chance for the kernel's first seconds.
        # Not `max`: programs then choose AVX2, which costs more to emulate than it saves.
        *("-cpu", "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+lahf-lm,+cx16,+rdrand,-svm"),
        *("-smp", str(hardware.spec.resources.cpus)),
    )


def _memory(hardware: Hardware) -> dict[str, object]:
    return {
        "qom-type": "memory-backend-file",
        "id": "memory",
        "size": hardware.spec.resources.memory_mib * 1024 * 1024,
        "mem-path": _path(MEMORY),
        "share": not hardware.private,
        "dump": False,
        "merge": False,
    }


def _disk(serial: str, number: int, spec: MachineSpec) -> Sequence[str]:
    name = f"disk{number}"
    read_only = serial == "root"
    file: dict[str, object] = {
        "driver": "file",
        "node-name": f"{name}-file",
        # A set of one descriptor: opening it means copying it, so no path is looked up and no right checked.
        "filename": f"/dev/fdset/{number}",
        "locking": "off",  # ours is on the volume, before QEMU runs
        "read-only": read_only,
    }
    throttled: dict[str, object] = {
        "driver": "throttle",
        "node-name": f"{name}-throttled",
        "throttle-group": f"{name}-rate",
        "file": {"driver": "raw", "file": f"{name}-file", "read-only": read_only},
        "read-only": read_only,
    }
    if not read_only:
        # What the guest deletes is given back to the host.
        file["discard"] = throttled["discard"] = "unmap"
        throttled["file"] = {"driver": "raw", "file": f"{name}-file", "discard": "unmap"}
        # What the guest flushes to a volume must be on the host's disk; what is thrown away need not.
        file["cache"] = throttled["cache"] = {"no-flush": serial == "overlay"}
    rate = {
        "qom-type": "throttle-group",
        "id": f"{name}-rate",
        "limits": {
            "bps-total": spec.disk_bytes_per_second,
            "iops-total": spec.disk_operations_per_second,
        },
    }
    return (
        *("-add-fd", f"fd={FIRST_DISK + number},set={number},opaque={serial}"),
        *("-object", _json(rate)),
        *("-blockdev", _json(file), "-blockdev", _json(throttled)),
        # report: by default a full host disk would stop the guest without a word.
        *(
            "-device",
            f"virtio-blk-device,drive={name}-throttled,serial={serial},werror=report,rerror=report",
        ),
    )


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"))
