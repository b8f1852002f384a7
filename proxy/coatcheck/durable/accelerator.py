"""In the daemon: measures whether this host's KVM is usable. /dev/kvm can open and run guests, and still
be useless.

In a nested or para-virtualised cloud machine every guest instruction may be emulated there, slower than by
QEMU's own translation, and Linux never comes up (seen: 0.5 µs an instruction). So: open it, time a loop in a
guest of our own, ask QEMU, boot a kernel. The first no counts, and is said in one line.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import platform
import socket
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from coatcheck.decision.session import Isolation
from coatcheck.launcher.qmp import Qmp, QmpError
from coatcheck.platform.private_files import PrivateFileError, read_private, write_atomically

DEVICE = Path("/dev/kvm")
LOOPS = 100_000
"""Of two instructions. A CPU needs 0.05 ms for them; 20 ms leave room for a busy host, and an emulated guest
took 110 ms."""
LOOP_SECONDS = 0.020
START_SECONDS = 10.0
BOOT_SECONDS = 5.0
"""For a kernel to find that it has no root; with hardware it takes a third of a second."""

_KVM_GET_API_VERSION, _KVM_CREATE_VM, _KVM_GET_VCPU_MMAP_SIZE = 0xAE00, 0xAE01, 0xAE04
_KVM_CREATE_VCPU, _KVM_RUN = 0xAE41, 0xAE80
_KVM_SET_USER_MEMORY_REGION, _KVM_SET_REGS = 0x4020AE46, 0x4090AE82
_KVM_GET_SREGS, _KVM_SET_SREGS, _SREGS_BYTES = 0x8138AE83, 0x4138AE84, 312
_API_VERSION, _EXIT_HLT = 12, 5
_CODE_AT = 0x1000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a microVM of this machine is."""

    isolation: Isolation
    """HARDWARE or EMULATED."""
    why: str
    """One line for a person."""

    @property
    def kvm(self) -> bool:
        return self.isolation is Isolation.HARDWARE


class UselessError(Exception):
    """KVM is of no use; the message says why."""


async def judge(qemu: Path, kernel: Path | None, cache: Path | None) -> Verdict:
    """Measure, or remember what was measured since this machine's boot with this QEMU. Never raises.

    `kernel` (a bzImage) is booted if all else is well; without it the verdict rests on the rest. `cache`: a
    file in a private directory.
    """
    key = _key(qemu)
    if cache is not None and (known := _remembered(cache, key)) is not None:
        return known
    try:
        await asyncio.to_thread(probe_device, DEVICE)
        await _ask_qemu(qemu)
        if kernel is not None:
            await _boot(qemu, kernel)
        verdict = Verdict(Isolation.HARDWARE, "KVM works: a guest ran at full speed")
    except UselessError as error:
        verdict = Verdict(Isolation.EMULATED, f"emulated, because {error}")
    if cache is not None:
        with contextlib.suppress(OSError):  # it is measured again, that is all
            write_atomically(
                cache, json.dumps({"key": key, "verdict": asdict(verdict)}).encode(), overwrite=True
            )
    return verdict


def _key(qemu: Path) -> str:
    """Changes with the boot, with QEMU, with us, and when somebody opens /dev/kvm to us."""
    words: list[object] = [os.geteuid(), os.getgroups()]
    with contextlib.suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    for path in (qemu, DEVICE):
        with contextlib.suppress(OSError):
            about = path.stat()
            words += [str(path), about.st_size, about.st_mtime_ns, about.st_mode, about.st_uid, about.st_gid]
    return json.dumps(words)


def _remembered(cache: Path, key: str) -> Verdict | None:
    try:
        content = json.loads(read_private(cache))
        if content["key"] != key:
            return None
        return Verdict(Isolation(content["verdict"]["isolation"]), str(content["verdict"]["why"]))
    except (PrivateFileError, ValueError, KeyError, TypeError):
        return None


def probe_device(device: Path) -> float:
    """Run a loop in a guest of ours; the seconds that it took. UselessError when KVM cannot, or crawls."""
    if platform.machine() != "x86_64":
        raise UselessError(f"this machine is {platform.machine()}, and guests are x86-64")
    try:
        system = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UselessError(
            f"there is no {device}: no virtualisation here, or its module is not loaded"
        ) from None
    except PermissionError:
        raise UselessError(
            f"{device} is not open to this user; to use it: usermod -aG kvm <user>, and log in again"
        ) from None
    except OSError as error:
        raise UselessError(f"{device} cannot be opened: {error.strerror}") from error
    try:
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, system)
            # Twice: the first may have been interrupted by something else that this CPU had to do.
            seconds = min(_timed_loop(system), _timed_loop(system))
    except OSError as error:
        raise UselessError(f"KVM cannot run a guest: {error.strerror}") from error
    if seconds > LOOP_SECONDS:
        raise UselessError(
            f"KVM is itself emulated on this host (probe took {seconds * 1000:.0f} ms, expected 0.1 ms)"
        )
    if os.geteuid() == 0 and device.stat().st_mode & 0o006 != 0o006:
        # As root's child it has a user of its own (`jail`), and that one is in no group.
        raise UselessError(
            f"{device} is closed to the users that root's QEMU runs as; to use it: chmod 666 {device}, or run"
            " coatcheck as a user of the group kvm"
        )
    return seconds


def _timed_loop(system: int) -> float:
    """`mov ecx, LOOPS; loop: dec ecx; jnz loop; hlt` in real mode."""
    if (version := fcntl.ioctl(system, _KVM_GET_API_VERSION)) != _API_VERSION:
        raise UselessError(f"KVM speaks API {version}, not {_API_VERSION}")
    code = b"\x66\xb9" + struct.pack("<I", LOOPS) + b"\x66\x49\x75\xfc\xf4"
    with contextlib.ExitStack() as opened:
        machine = fcntl.ioctl(system, _KVM_CREATE_VM)
        opened.callback(os.close, machine)
        memory = opened.enter_context(mmap.mmap(-1, 0x2000))
        memory[_CODE_AT : _CODE_AT + len(code)] = code
        anchor = ctypes.c_char.from_buffer(memory)
        region = struct.pack("<IIQQQ", 0, 0, 0, len(memory), ctypes.addressof(anchor))
        del anchor  # or the map could not be closed
        fcntl.ioctl(machine, _KVM_SET_USER_MEMORY_REGION, region)
        cpu = fcntl.ioctl(machine, _KVM_CREATE_VCPU)
        opened.callback(os.close, cpu)
        run = opened.enter_context(mmap.mmap(cpu, fcntl.ioctl(system, _KVM_GET_VCPU_MMAP_SIZE)))
        special = bytearray(_SREGS_BYTES)
        fcntl.ioctl(cpu, _KVM_GET_SREGS, special)
        special[0:8] = bytes(8)  # cs.base
        special[12:14] = bytes(2)  # cs.selector
        fcntl.ioctl(cpu, _KVM_SET_SREGS, bytes(special))
        fcntl.ioctl(cpu, _KVM_SET_REGS, struct.pack("<18Q", *[0] * 16, _CODE_AT, 2))
        before = time.perf_counter()
        while True:
            try:
                fcntl.ioctl(cpu, _KVM_RUN)
                break
            except InterruptedError:
                continue
        seconds = time.perf_counter() - before
        (reason,) = struct.unpack_from("<I", run, 8)
    if reason != _EXIT_HLT:
        raise UselessError(f"KVM left a guest for reason {reason} where it should have halted")
    return seconds


async def _ask_qemu(qemu: Path) -> None:
    """QEMU must come up with it: on some machines it cannot set a register, and aborts."""
    words = ("-machine", "microvm", "-accel", "kvm", "-cpu", "host,-vmx,-svm", "-S")
    async with _Qemu(qemu, words) as (process, control):
        qmp = Qmp(control, lambda name, data: None)
        try:
            await qmp.negotiate(START_SECONDS)
            answer = await qmp.execute("query-kvm", seconds=START_SECONDS)
        except QmpError as error:
            said = await _last_line(process)
            raise UselessError(f"QEMU does not come up with it: {said or error}") from error
        finally:
            await qmp.close()
    if not (isinstance(answer, dict) and answer.get("enabled") is True):
        raise UselessError("QEMU does not use it")


async def _boot(qemu: Path, kernel: Path) -> None:
    """The kernel finds no root, panics, and thereby ends QEMU: all of that takes a CPU, timers, a console."""
    words = (
        *(
            "-machine",
            "microvm,acpi=on",
            "-accel",
            "kvm",
            "-cpu",
            "host,-vmx,-svm",
            "-m",
            "256",
            "-no-reboot",
        ),
        *("-kernel", str(kernel), "-append", "console=ttyS0 quiet panic=-1"),
    )
    async with _Qemu(qemu, words) as (process, _):
        try:
            async with asyncio.timeout(BOOT_SECONDS):
                await process.wait()
        except TimeoutError:
            raise UselessError(f"a kernel does not come up with it within {BOOT_SECONDS:g} s") from None
        if process.returncode != 0:
            said = await _last_line(process)
            raise UselessError(f"QEMU fails while a kernel boots with it: {said}")


class _Qemu:
    """A QEMU for a moment: its process, and its control socket."""

    def __init__(self, qemu: Path, words: tuple[str, ...]) -> None:
        self._words = (str(qemu), "-nodefaults", "-no-user-config", "-display", "none", *words)

    async def __aenter__(self) -> tuple[asyncio.subprocess.Process, socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            control = f"socket,id=control,fd={theirs.fileno()}"
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(*self._words, "-chardev", control, "-mon", "chardev=control,mode=control"),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as error:
                ours.close()
                raise UselessError(f"QEMU cannot be started: {error.strerror}") from error
        self._control = ours
        return self._process, ours

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._control.close()


async def _last_line(process: asyncio.subprocess.Process) -> str:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    written = await process.stderr.read(65536) if process.stderr else b""
    said = written.decode(errors="replace").strip()
    return said.splitlines()[-1][:200] if said else ""
