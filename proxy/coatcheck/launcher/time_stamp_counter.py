"""In the supervisor: measures how fast this CPU's time stamp counter runs: a guest without KVM must be
told.

Left alone it measures the counter against an emulated timer, fails on a host that has other work, and then
stands still for ever.
"""

import contextlib
import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable, Iterator

from coatcheck.sandbox.machine import MachineError

_RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret"""
_APART_SECONDS = 0.020
_TRIES = 32


def tsc_khz() -> int:
    """To about 10 ppm. Takes 20 ms: call it in a thread. MachineError where it cannot be read."""
    if platform.machine() != "x86_64":
        raise MachineError(
            f"this machine is {platform.machine()}, and microVMs need x86-64", "use the namespace backend"
        )
    try:
        with _counter() as read:
            first = _reading(read)
            time.sleep(_APART_SECONDS)
            second = _reading(read)
    except OSError as error:
        raise MachineError(
            f"the CPU's time stamp counter cannot be read: {error.strerror}",
            "allow mapping executable memory (systemd: MemoryDenyWriteExecute=no), which QEMU needs as well",
        ) from error
    return round((second[0] - first[0]) * 1_000_000 / (second[1] - first[1]))


def _reading(read: Callable[[], int]) -> tuple[int, int]:
    """The counter and the clock (ns) at one moment: of several tries the one in which least came between."""
    tries = []
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        ticks = read()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        tries.append((after - before, ticks, (before + after) // 2))
    _, ticks, middle = min(tries)
    return ticks, middle


@contextlib.contextmanager
def _counter() -> Iterator[Callable[[], int]]:
    """A function that reads it. From a file: memory that was written may often not be made executable."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    file = os.memfd_create("rdtsc", os.MFD_CLOEXEC)
    try:
        os.write(file, _RDTSC)
        # Not the module mmap: it gives no address of a map that cannot be written.
        at = libc.mmap(None, len(_RDTSC), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
    finally:
        os.close(file)
    if at == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    try:
        yield ctypes.CFUNCTYPE(ctypes.c_uint64)(at)
    finally:
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(len(_RDTSC)))
