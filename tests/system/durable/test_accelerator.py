"""The verdict on KVM: each way in which it can be of no use is said in one line, and never an exception."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from coatcheck.containers.jail import find_qemu
from coatcheck.decision.session import Isolation
from coatcheck.durable import accelerator
from coatcheck.durable.accelerator import DEVICE, LOOP_SECONDS, Verdict, judge, probe_device


async def verdict(device: Path, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    monkeypatch.setattr(accelerator, "DEVICE", device)
    return await judge(Path("/nonexistent/qemu"), None, None)


async def test_a_machine_without_kvm_is_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As most cloud machines and containers are."""
    found = await verdict(tmp_path / "kvm", monkeypatch)
    assert found.isolation is Isolation.EMULATED
    assert "there is no" in found.why


async def test_a_device_that_is_no_hypervisor_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else may stand at that path."""
    found = await verdict(Path("/dev/null"), monkeypatch)
    assert (found.kvm, found.why) == (
        False,
        "emulated, because KVM cannot run a guest: Inappropriate ioctl for device",
    )


@pytest.mark.skipif(os.geteuid() == 0 and not DEVICE.exists(), reason="nothing to take the right from")
async def test_a_closed_device_says_how_to_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commonest reason on a laptop."""

    def closed(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", closed)
    found = await verdict(tmp_path / "kvm", monkeypatch)
    assert "usermod -aG kvm" in found.why


@pytest.mark.needs_debian("qemu-system-x86_64")
async def test_the_verdict_is_a_line_and_fits_what_was_measured() -> None:
    """On this machine, whatever it is: the probe, QEMU's own word and the verdict do not contradict."""
    began = time.perf_counter()
    found = await judge(find_qemu(), None, None)
    assert found.isolation in (Isolation.HARDWARE, Isolation.EMULATED)
    assert "\n" not in found.why
    assert time.perf_counter() - began < 60
    try:
        seconds = probe_device(DEVICE)
    except accelerator.UselessError:
        assert not found.kvm
    else:
        assert seconds <= LOOP_SECONDS


async def test_it_is_measured_once_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again when QEMU, the device's mode or the machine's boot is another."""
    program, cache, device = tmp_path / "qemu", tmp_path / "verdict.json", tmp_path / "kvm"
    program.write_bytes(b"one")
    monkeypatch.setattr(accelerator, "DEVICE", device)
    first = await judge(program, None, cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    stored = json.loads(cache.read_text())
    stored["verdict"]["why"] = "remembered"
    cache.write_text(json.dumps(stored))
    assert (await judge(program, None, cache)).why == "remembered"
    program.write_bytes(b"another")
    assert await judge(program, None, cache) == first


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"key": 1}', b"\xff", b'{"key": "", "verdict": {}}'])
async def test_a_broken_memory_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """A file that was cut is no verdict."""
    cache = tmp_path / "verdict.json"
    cache.write_bytes(content)
    cache.chmod(0o600)
    monkeypatch.setattr(accelerator, "DEVICE", tmp_path / "kvm")
    assert "there is no" in (await judge(tmp_path / "qemu", None, cache)).why
    assert json.loads(cache.read_text())["verdict"]["isolation"] == "emulated"


async def test_a_memory_that_others_wrote_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides which credentials a sandbox gets."""
    cache = tmp_path / "verdict.json"
    monkeypatch.setattr(accelerator, "DEVICE", tmp_path / "kvm")
    await judge(tmp_path / "qemu", None, cache)
    stored = json.loads(cache.read_text())
    stored["verdict"] = {"isolation": "hardware", "why": "trust me"}
    cache.write_text(json.dumps(stored))
    cache.chmod(0o666)
    assert (await judge(tmp_path / "qemu", None, cache)).isolation is Isolation.EMULATED


@pytest.mark.needs_debian("qemu-system-x86_64")
@pytest.mark.skipif(not DEVICE.exists(), reason="no /dev/kvm")
async def test_a_qemu_that_does_not_come_up_with_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU aborts on some machines where the loop runs: its last line is the reason."""
    monkeypatch.setattr(accelerator, "probe_device", lambda device: 0.001)
    found = await judge(find_qemu(), None, None)
    assert found.kvm or found.why.startswith("emulated, because QEMU does not come up with it: ")


async def test_a_qemu_that_cannot_be_started_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that asks for a machine then hears that it is missing; here it is only no hypervisor."""
    monkeypatch.setattr(accelerator, "probe_device", lambda device: 0.001)
    found = await judge(Path("/nonexistent/qemu"), None, None)
    assert "QEMU cannot be started" in found.why


async def test_a_kernel_that_does_not_come_up_is_emulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The canary: on the machine where this was seen, all before it was well and Linux never came up."""

    async def well(qemu: Path) -> None: ...

    slow = tmp_path / "qemu"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(accelerator, "probe_device", lambda device: 0.001)
    monkeypatch.setattr(accelerator, "_ask_qemu", well)
    monkeypatch.setattr(accelerator, "BOOT_SECONDS", 0.1)
    assert "does not come up with it within 0.1 s" in (await judge(slow, tmp_path / "vmlinuz", None)).why
    slow.write_text("#!/bin/sh\necho assertion >&2\nexit 134\n")
    monkeypatch.setattr(accelerator, "BOOT_SECONDS", 20)
    assert (
        "QEMU fails while a kernel boots with it: assertion" in (await judge(slow, tmp_path / "k", None)).why
    )
    slow.write_text("#!/bin/sh\nexit 0\n")
    assert (await judge(slow, tmp_path / "k", None)).isolation is Isolation.HARDWARE
