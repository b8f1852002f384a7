"""A child process that gets some of our descriptors, under given numbers, and no others."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from coatcheck.sandbox.machine import MachineError

_TOLD_BYTES = 4096
_ABOVE_ALL = 256
"""Descriptors are moved here first, so that giving one its number closes no other."""
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_PACKAGES = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux", "renice": "bsdutils"}


def found(program: str) -> str:
    """Where it is. MachineError when it is not installed."""
    path = shutil.which(program)
    if path is None:
        raise MachineError(
            f"{program} is missing on this machine",
            f"install it: apt-get install {_PACKAGES.get(program, program)}",
        )
    return path


class Child:
    """One run of it. Belongs to one event loop."""

    def __init__(self) -> None:
        self.pid = 0
        """Of the program that was started; 0 before."""
        self._stderr = -1
        self._ended: asyncio.Future[int] | None = None

    def spawn(self, words: Sequence[str], descriptors: Mapping[int, int]) -> None:
        """Start `words` with `descriptors` (number there -> ours)."""
        with contextlib.ExitStack() as opened:
            self._stderr, write = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, write)
            os.set_blocking(self._stderr, False)
            # Nobody reads it before the end: what makes QEMU complain must not make it wait for us.
            os.set_blocking(write, False)
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            opened.callback(os.close, nothing)
            moves = {0: nothing, 1: nothing, 2: write, **descriptors}
            actions: list[tuple[int, ...]] = [
                (os.POSIX_SPAWN_CLOSE, number)
                for number in map(int, os.listdir("/proc/self/fd"))
                if number > 2 and _inherited(number)
            ]
            for number, descriptor in moves.items():
                above = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE_ALL)
                opened.callback(os.close, above)
                actions.append((os.POSIX_SPAWN_DUP2, above, number))
            # Not subprocess: it cannot give a descriptor a number. What we opened ourselves is closed at the
            # exec, what we inherited is closed above: one descriptor of a directory, and there is no sandbox.
            # A group of its own: Ctrl-C is for the program that drives the sandbox, not for the sandbox.
            # But our own session: by it what is left is found when we are killed (`processes.has_ended`).
            self.pid = os.posix_spawn(words[0], list(words), _ENVIRONMENT, file_actions=actions, setpgroup=0)
        self._watch()

    async def wait(self) -> int:
        """Until it ended: its exit code, 128+n after signal n."""
        if self._ended is None:
            raise MachineError("this sandbox was not started")
        return await asyncio.shield(self._ended)

    def ended(self) -> bool:
        return self._ended is not None and self._ended.done()

    def said(self) -> str:
        """The last line that was written to its standard error."""
        with contextlib.suppress(OSError):
            lines = os.read(self._stderr, _TOLD_BYTES).decode(errors="replace").strip().splitlines()
            return "".join(c for c in lines[-1] if c.isprintable()) if lines else ""
        return ""

    def kill(self) -> None:
        """With those that it started and that are in its group."""
        if self._ended is not None and not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def close(self, seconds: float) -> bool:
        """Wait until it is gone, and whether it is. Idempotent."""
        if self._ended is not None:
            await asyncio.wait([self._ended], timeout=seconds)
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1
        return self._ended is None or self._ended.done()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        ended = self._ended = loop.create_future()
        pidfd = os.pidfd_open(self.pid)

        def reap() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if not ended.done():
                ended.set_result(code if code >= 0 else 128 - code)

        loop.add_reader(pidfd, reap)


def _inherited(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # the one that listed them
        return False


def memory_file(opened: contextlib.ExitStack, content: bytes) -> int:
    """A descriptor from which `content` is read; closed with `opened`."""
    descriptor = os.memfd_create("coatcheck", os.MFD_CLOEXEC)
    opened.callback(os.close, descriptor)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
