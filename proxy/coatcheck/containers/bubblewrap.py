"""bubblewrap as our child: started with given descriptors, held while its users are mapped, then let go."""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from coatcheck.sandbox.machine import MachineError

SETUP_SECONDS = 20.0
"""It makes namespaces in milliseconds; on a machine that is busy with many others it takes longer."""
STOP_SECONDS = 10.0
"""Until the kernel has taken back the memory of everything that was killed."""
BLOCK, INFO = 4, 5
"""Descriptors for `--userns-block-fd` and `--info-fd`."""
_TOLD_BYTES = 4096
_ABOVE_ALL = 256
"""Descriptors are moved here first, so that giving one its number closes no other."""
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Held:
    """The first process of the new namespaces, before anything was mounted or run in them."""

    pid: int
    pidfd: int


class Bubblewrap:
    """One run of it. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._monitor = 0
        self._first: Held | None = None
        self._stderr = -1
        self._ended: asyncio.Future[int] | None = None

    async def start(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        user: int | None,
        prepare: Callable[[int], Awaitable[None]],
    ) -> None:
        """Start `bwrap arguments` with `descriptors` (number there -> ours), as `user` if given.

        `prepare` gets the number of the first process while bubblewrap waits: that process has its new user
        namespace and has used none of its rights yet. MachineError when bubblewrap ends before.
        """
        block_read, block_write = os.pipe2(os.O_CLOEXEC)
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._spawn(arguments, {**descriptors, BLOCK: block_read, INFO: info_write}, user)
            finally:
                os.close(block_read)
                os.close(info_write)  # the other end is bubblewrap's alone: its death is an end of file
            pid = await self._told(info_read)
            self._first = Held(pid, os.pidfd_open(pid))
            await prepare(pid)
            os.write(block_write, b"1")
        except BaseException:
            self._kill()  # before the pipe closes: bubblewrap would take that for the word to go on
            raise
        finally:
            os.close(block_write)
            os.close(info_read)

    @property
    def first(self) -> int:
        """Its process 1, as the host numbers it; 0 before `start`."""
        return self._first.pid if self._first else 0

    async def wait(self) -> int:
        """Until it ended: its exit code, 128+n when process 1 ended by signal n."""
        if self._ended is None:
            raise MachineError("this sandbox was not started")
        return await asyncio.shield(self._ended)

    def ended(self) -> bool:
        return self._ended is not None and self._ended.done()

    def said(self) -> str:
        """The last line that it, or process 1, wrote to standard error."""
        with contextlib.suppress(OSError):
            lines = os.read(self._stderr, _TOLD_BYTES).decode(errors="replace").strip().splitlines()
            return "".join(c for c in lines[-1] if c.isprintable()) if lines else ""
        return ""

    async def stop(self) -> None:
        """End everything in the namespaces, and wait until it is gone. Idempotent."""
        self._kill()
        if self._ended is not None:
            await asyncio.wait([self._ended], timeout=STOP_SECONDS)
        if self._first is not None:
            os.close(self._first.pidfd)
            self._first = None
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1

    def _kill(self) -> None:
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                # Process 1 takes its whole namespace along, and bubblewrap, which waits for it.
                signal.pidfd_send_signal(self._first.pidfd, signal.SIGKILL)
        elif self._ended is not None and not self._ended.done():
            # With its child, which it may have made already: that one waits for it, and would for ever.
            os.killpg(self._monitor, signal.SIGKILL)

    def _spawn(self, arguments: Sequence[str], descriptors: Mapping[int, int], user: int | None) -> None:
        words = [_found("bwrap"), *arguments]
        if user is not None:
            become = (f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all")
            words = [_found("setpriv"), *become, "--", *words]
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
            # A group of its own: Ctrl-C is for whoever drives the sandbox, not for the sandbox. But our own
            # session: by it what is left is found when we are killed (`processes.has_ended`).
            self._monitor = os.posix_spawn(words[0], words, _ENVIRONMENT, file_actions=actions, setpgroup=0)
        self._watch()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        pidfd = os.pidfd_open(self._monitor)

        def reap() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            _, status = os.waitpid(self._monitor, 0)
            code = os.waitstatus_to_exitcode(status)
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(code if code >= 0 else 128 - code)

        loop.add_reader(pidfd, reap)

    async def _told(self, info: int) -> int:
        """The first process's number, from the JSON object that bubblewrap writes piece by piece."""
        loop = asyncio.get_running_loop()
        os.set_blocking(info, False)
        content = b""
        ready = asyncio.Event()
        loop.add_reader(info, ready.set)
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                while not content.rstrip().endswith(b"}"):
                    await ready.wait()
                    ready.clear()
                    try:
                        piece = os.read(info, _TOLD_BYTES)
                    except BlockingIOError:  # the loop had seen it readable twice
                        continue
                    if not piece:
                        await self.wait()
                        raise MachineError(
                            f"bubblewrap made no sandbox: {self.said() or 'it gave no reason'}",
                            "this kernel must let its users make user namespaces: coatcheck doctor says what"
                            " stands in the way",
                        )
                    content += piece
        except TimeoutError:
            raise MachineError(f"bubblewrap made no sandbox within {SETUP_SECONDS:g} s") from None
        finally:
            loop.remove_reader(info)
        return int(json.loads(content)["child-pid"])


def _inherited(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # the one that listed them
        return False


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise MachineError(f"{program} is missing", "install it: apt-get install bubblewrap util-linux")
    return path


def memory_file(opened: contextlib.ExitStack, content: bytes) -> int:
    """A descriptor from which `content` is read; closed with `opened`."""
    descriptor = os.memfd_create("coatcheck", os.MFD_CLOEXEC)
    opened.callback(os.close, descriptor)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
