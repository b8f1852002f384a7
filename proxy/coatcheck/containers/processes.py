"""A process and all its descendants, as the host sees them: find, stop, continue and end them."""

import contextlib
import os
import signal
import time
from pathlib import Path

STOP_SECONDS = 5.0
"""Time limit for stopping a tree. Each round stops all processes of it, so even a fork bomb ends soon."""

KILL_SECONDS = 1.0
"""Time limit for killed processes to be gone. One that is left is frozen or waits for a disk."""
_POLL_SECONDS = 0.005


def tree(first: int) -> tuple[int, ...]:
    """`first` and all its descendants. A sandbox's process 1 adopts each process that loses its parent, so of
    that one none is missing."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name, in parentheses, is the process's own choice: it may hold spaces and parentheses.
                after_name = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(after_name[1])
    found = {first} if first in parents else set()
    waiting = list(found)
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, its in parents.items() if its == parent and pid not in found]
        found.update(children)
        waiting += children
    return tuple(sorted(found))


def stop_tree(first: int) -> None:
    """No instruction of any of them runs until `continue_tree`. TimeoutError when they outrun us."""
    deadline = time.monotonic() + STOP_SECONDS
    stopped: set[int] = set()
    while time.monotonic() < deadline:
        found = set(tree(first))
        if found <= stopped:
            return
        for pid in found - stopped:
            _signal(pid, signal.SIGSTOP)
        stopped = found
    raise TimeoutError("the processes fork faster than they can be stopped")


def continue_tree(first: int) -> None:
    for pid in tree(first):
        _signal(pid, signal.SIGCONT)


def has_ended(leader: int) -> bool:
    """Whether our child `leader`, which leads a session, has ended. If so, all others of the session have
    been killed. Ask before it is reaped: until then nobody else can have its number."""
    try:
        if os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
    except ChildProcessError:
        return True  # reaped: its session was seen to then
    deadline = time.monotonic() + KILL_SECONDS
    while (left := _session(leader)) and time.monotonic() < deadline:
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return True


def _session(leader: int) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in ("Z", "X"):
                    found.append(int(entry.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
