"""Our own process against others of the same user: its memory and its first environment are not theirs."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
"""linux/prctl.h"""


def hide_memory() -> None:
    """From now on no process without CAP_SYS_PTRACE may attach to us or read our memory or environment,
    not even a child of ours; nor is there a core dump. A child that executes a program is not affected.

    OSError when the kernel refuses (it does not).
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def die_with_parent() -> None:
    """From now on we are killed when the thread that started us ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
