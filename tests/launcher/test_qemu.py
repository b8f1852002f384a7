"""QEMU's command line: each word that protects something, and why."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.session import Isolation
from coatcheck.launcher.qemu import Hardware, arguments, kernel_arguments
from coatcheck.sandbox.machine import MachineSpec, Volume
from coatcheck.sandbox.resources import Resources

SPEC = MachineSpec(
    Isolation.EMULATED,
    None,
    Resources(memory_mib=512, cpus=1, disk_mib=64, processes=64),
    volumes=(Volume(Path("/volumes"), "acme", "cache", "/cache", 64),),
    disk_bytes_per_second=1000,
    disk_operations_per_second=10,
)
EMULATED = Hardware(SPEC, tsc_khz=2793438)
HARDWARE = Hardware(replace(SPEC, isolation=Isolation.HARDWARE), tsc_khz=None)


def values(option: str, hardware: Hardware = EMULATED) -> list[str]:
    words = arguments(hardware)
    return [words[index + 1] for index, word in enumerate(words) if word == option]


def objects(option: str) -> list[dict[str, object]]:
    return [json.loads(value) for value in values(option) if value.startswith("{")]


@pytest.mark.parametrize("hardware", [EMULATED, HARDWARE])
def test_no_network_device_is_on_it(hardware: Hardware) -> None:
    """The proxy is the only way out because there is no other, not because a rule says so."""
    words = arguments(hardware)
    assert not [word for word in words if "net" in word]
    assert "-nodefaults" in words  # which would add one
    assert values("-device", hardware)[:2] == [
        "virtio-serial-device,max_ports=2",
        "virtserialport,chardev=channel,name=coatcheck.0",
    ]


def test_no_configuration_of_the_host_is_read() -> None:
    """/etc/qemu could add devices to all guests."""
    assert "-no-user-config" in arguments(EMULATED)


def test_no_device_but_those_named_is_on_it() -> None:
    """Each is code that a guest talks to."""
    kinds = {value.split(",")[0] for value in values("-device")}
    assert kinds == {"virtio-serial-device", "virtserialport", "virtio-rng-device", "virtio-blk-device"}
    assert values("-display") == ["none"]
    assert values("-monitor") == ["none"]
    assert values("-parallel") == ["none"]


def test_qemu_can_start_no_program_and_gain_no_right() -> None:
    """Its own seccomp filter: the first wall behind a broken device."""
    assert values("-sandbox") == ["on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]


def test_files_and_sockets_are_descriptors() -> None:
    """A path of the host would have to be visible to QEMU; a program that sees a socket can connect to it."""
    assert values("-kernel") + values("-initrd") == ["/proc/self/fd/8", "/proc/self/fd/9"]
    assert objects("-object")[0]["mem-path"] == "/proc/self/fd/10"
    assert [value.partition(",")[2] for value in values("-chardev")] == [
        "id=control,fd=3",
        "id=console,fd=7",
        "id=channel,fd=6",
    ]
    files = [blockdev["filename"] for blockdev in objects("-blockdev") if "filename" in blockdev]
    assert files == ["/dev/fdset/0", "/dev/fdset/1", "/dev/fdset/2"]
    assert values("-add-fd")[0] == "fd=11,set=0,opaque=root"


def test_the_cpus_wait_for_the_host() -> None:
    """A guest that writes to a port nobody reads stands still (measured: 40 s)."""
    assert "-S" in arguments(EMULATED)


def test_a_guest_that_restarts_ends() -> None:
    """Its session is bound to this life of it. A triple fault reaches QEMU; the firmware's way would not."""
    assert "-no-reboot" in arguments(EMULATED)
    assert {"reboot=t", "panic=-1", "oops=panic"} <= set(kernel_arguments(EMULATED).split())


def test_memory_is_a_file_that_the_host_can_look_at() -> None:
    """Inspection scans it; a snapshot keeps it. Not in a core dump, and never merged with other guests'."""
    memory = objects("-object")[0]
    assert (memory["share"], memory["size"]) == (True, 512 << 20)
    (machine,) = values("-machine")
    assert {"memory-backend=memory", "mem-merge=off", "dump-guest-core=off"} <= set(machine.split(","))


def test_the_root_cannot_be_written() -> None:
    """It is every sandbox's: at each of its layers QEMU has it read-only."""
    root = objects("-blockdev")[:2]
    assert [layer["read-only"] for layer in root] == [True, True]
    assert root[1]["file"] == {"driver": "raw", "file": "disk0-file", "read-only": True}


def test_each_disk_has_its_rate() -> None:
    """A sandbox that floods its disk leaves the host's to others."""
    rates = [each for each in objects("-object") if each["qom-type"] == "throttle-group"]
    assert [rate["limits"] for rate in rates] == [{"bps-total": 1000, "iops-total": 10}] * 3
    throttled = [each for each in objects("-blockdev") if each["driver"] == "throttle"]
    assert [each["throttle-group"] for each in throttled] == [rate["id"] for rate in rates]
    drives = [value.split(",")[1] for value in values("-device") if value.startswith("virtio-blk")]
    assert drives == [f"drive={each['node-name']}" for each in throttled]


def test_a_full_host_disk_is_an_error_in_the_guest() -> None:
    """QEMU's default stops the guest without a word."""
    disks = [value for value in values("-device") if value.startswith("virtio-blk")]
    assert all("werror=report,rerror=report" in value for value in disks)


def test_what_lasts_is_flushed_and_what_does_not_is_not() -> None:
    """A volume survives a power cut as far as the guest was told so; nobody reads an overlay again."""
    flushed = {each["node-name"]: each["cache"] for each in objects("-blockdev") if "cache" in each}
    assert flushed["disk1-file"] == {"no-flush": True}
    assert flushed["disk2-file"] == {"no-flush": False}


def test_a_guest_without_kvm_is_told_its_clock() -> None:
    """Measuring it fails on a busy host, and then the kernel stands still for ever (7 boots of 12)."""
    assert {"tsc=reliable", "tsc_early_khz=2793438"} <= set(kernel_arguments(EMULATED).split())
    assert "tsc" not in kernel_arguments(HARDWARE)


def test_mitigations_are_off_only_where_nothing_speculates() -> None:
    """With KVM, two identities share a real CPU."""
    assert "mitigations=off" in kernel_arguments(EMULATED)
    assert "mitigations" not in kernel_arguments(HARDWARE)


def test_a_hardware_guest_cannot_have_guests() -> None:
    """Nested virtualisation is where the host's KVM had most of its holes."""
    assert values("-cpu", HARDWARE) == ["host,-vmx,-svm"]
    assert values("-accel", HARDWARE) == ["kvm"]


def test_translated_code_has_a_bound() -> None:
    """QEMU's own is a GiB for each guest."""
    assert values("-accel") == ["tcg,thread=single,tb-size=128"]
    two = Hardware(replace(SPEC, resources=replace(SPEC.resources, cpus=2)), tsc_khz=1)
    assert values("-accel", two) == ["tcg,thread=multi,tb-size=128"]
    assert values("-smp", two) == ["2"]


def test_chance_has_a_bound() -> None:
    """A guest that reads without end must not keep the host's CPU busy making it."""
    (chance,) = (value for value in values("-device") if "rng" in value)
    assert chance == "virtio-rng-device,rng=entropy,max-bytes=4096,period=1000"
