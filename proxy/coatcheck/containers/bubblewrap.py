"""bubblewrap as our child: started with given descriptors, and held until its user IDs are mapped."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence

from coatcheck.containers.child import Child, found
from coatcheck.sandbox.machine import MachineError

SETUP_SECONDS = 20.0
"""It makes namespaces in milliseconds; on a machine that is busy with many others it takes longer."""
STOP_SECONDS = 10.0
"""Until the kernel has taken back the memory of everything that was killed."""
BLOCK, INFO = 4, 5
"""Descriptors for `--userns-block-fd` and `--info-fd`."""
_TOLD_BYTES = 4096


class Bubblewrap:
    """One run of it. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._child = Child()
        self._pidfd = -1
        self.first = 0
        """Its process 1, as the host numbers it; 0 before `start`."""

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
        words = [found("bwrap"), *arguments]
        if user is not None:
            become = (f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all")
            words = [found("setpriv"), *become, "--", *words]
        block_read, block_write = os.pipe2(os.O_CLOEXEC)
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._child.spawn(words, {**descriptors, BLOCK: block_read, INFO: info_write})
            finally:
                os.close(block_read)
                os.close(info_write)  # the other end is bubblewrap's alone: its death is an end of file
            first = await self._told(info_read)
            self._pidfd, self.first = os.pidfd_open(first), first
            await prepare(first)
            os.write(block_write, b"1")
        except BaseException:
            self._kill()  # before the pipe closes: bubblewrap would take that for the word to go on
            raise
        finally:
            os.close(block_write)
            os.close(info_read)

    async def wait(self) -> int:
        """Until it ended: its exit code, 128+n when process 1 ended by signal n."""
        return await self._child.wait()

    def ended(self) -> bool:
        return self._child.ended()

    def said(self) -> str:
        """The last line that it, or process 1, wrote to standard error."""
        return self._child.said()

    async def stop(self) -> None:
        """End everything in the namespaces, and wait until it is gone. Idempotent."""
        self._kill()
        await self._child.close(STOP_SECONDS)
        self.first = 0
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _kill(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                # Process 1 takes its whole namespace along, and bubblewrap, which waits for it.
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        else:
            # With its child, which it may have made already: that one waits for it, and would for ever.
            self._child.kill()

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
