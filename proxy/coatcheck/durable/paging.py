"""In the supervisor: hands another process's memory back to the host while that process is stopped
(process_madvise(2))."""

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

_PROCESS_MADVISE: Final = 440
"""Its number on every architecture; the C library has no name for it before glibc 2.36."""
_PAGEOUT: Final = 21
_PIECES: Final = 512
"""Ranges a call; the kernel takes 1024."""


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


def page_out(pid: int) -> int:
    """Let the kernel write the memory of process `pid` to swap. Bytes that it wrote: 0 on a host without
    swap, or where we may not (it takes CAP_SYS_NICE). Blocking; never an error: it is a hint."""
    with contextlib.suppress(OSError):
        if len(Path("/proc/swaps").read_text().splitlines()) < 2:  # it would only cost page faults later
            return 0
        before = _swapped(pid)
        descriptor = os.pidfd_open(pid)
        try:
            _advise(descriptor, _ranges(pid))
        finally:
            os.close(descriptor)
        return max(0, _swapped(pid) - before)
    return 0


def _ranges(pid: int) -> list[_Range]:
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights = line.split()[:2]
        if "w" in rights:  # what is read-only is a file's, and the host drops that anyway
            start, end = (int(number, 16) for number in place.split("-"))
            found.append(_Range(start, end - start))
    return found


def _advise(pidfd: int, ranges: list[_Range]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for at in range(0, len(ranges), _PIECES):
        piece = ranges[at : at + _PIECES]
        libc.syscall(_PROCESS_MADVISE, pidfd, (_Range * len(piece))(*piece), len(piece), _PAGEOUT, 0)


def _swapped(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Swap:"):
            return int(line.split()[1]) * 1024
    return 0
