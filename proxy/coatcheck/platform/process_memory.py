"""Our own process: its memory and its first environment are not others', and how much it may open."""

import ctypes
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)

OPEN_FILES = 65_536
"""As in our systemd unit. Shells give 1,024, because of select(2), and some hundred sandboxes use that up."""
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
"""linux/prctl.h"""


def protect_process(warn: Callable[[str], None] = _log.warning) -> None:
    """No core dumps; other processes of our user cannot read our memory; swap is warned about (I1).

    Root still can: nothing in a process stops that.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hide_memory()
    os.umask(0o077)
    swaps = Path("/proc/swaps")
    if swaps.is_file() and len(swaps.read_text().splitlines()) > 1:
        warn("swap is on: secrets in memory may be written to it. Turn it off, or encrypt it.")


def raise_file_limit() -> None:
    """To OPEN_FILES, or as near as the system lets us. What we start inherits it (as from Go's runtime)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_back_memory() -> None:
    """What ended connections left in cycles is collected, and pages that hold nothing any more go back to the
    system. Some ten milliseconds. By itself the collector looks at what got old when that has grown by a
    fourth, which was 7 KiB a connection for some thousand connections; and glibc keeps pages between blocks
    in use, so that the buffers of a busy hour would stay resident for days (other C libraries do without)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
