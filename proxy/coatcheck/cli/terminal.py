"""Our standard streams, lent to a command in a sandbox: input, output, signals, a terminal if we have one."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from coatcheck.client.sandbox import Ended, Process

CHUNK = 64 * 1024
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""What somebody sends to us is meant for the command; with a terminal, Ctrl-C goes as the byte that it is."""
MOST_INTERRUPTS = 3
"""A command that ignores as many is left, and killed with that."""


class Signals:
    """Ours, for as long as the block lasts. Before `to`, the first one cancels the task that made this."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._process: Process | None = None
        self._interrupts = 0
        self._sending: set[asyncio.Task[None]] = set()
        self.came: int | None = None
        """The signal because of which nothing is run, or no longer."""

    def __enter__(self) -> Self:
        for number in FORWARDED:
            self._loop.add_signal_handler(number, self._arrived, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (*FORWARDED, signal.SIGWINCH):
            self._loop.remove_signal_handler(number)

    def to(self, process: Process, pty: bool) -> None:
        """From now on `process` gets them, and a terminal's new sizes."""
        self._process = process
        if pty:
            self._loop.add_signal_handler(signal.SIGWINCH, lambda: self._send(process.resize(*size())))

    def _arrived(self, number: int) -> None:
        self._interrupts += number == signal.SIGINT
        if self._process is None or self._interrupts > MOST_INTERRUPTS:
            self.came = number
            if self._task is not None:
                self._task.cancel()
        else:
            self._send(self._process.signal(number))

    def _send(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def size() -> tuple[int, int]:
    """Rows and columns of our terminal."""
    columns, rows = shutil.get_terminal_size()
    return rows, columns


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Our terminal passes every key on; as it was, afterwards, also after an error."""
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


async def attach(process: Process, tell: Callable[[str, str], None], *, stdin: bool) -> Ended:
    """Carry everything between our streams and the command until it ends; how it ended. ControlError.

    Output is written in a thread of its own: a reader that is slow (`less`) must not keep signals waiting.
    """
    loop = asyncio.get_running_loop()
    if stdin:
        threading.Thread(target=_feed, args=(process, loop), daemon=True).start()
    told = 0
    with ThreadPoolExecutor(1, "output") as writer:
        async for output in process:
            descriptor = 2 if output.stderr else 1
            await loop.run_in_executor(writer, _write, descriptor, output.data)
            for warning in process.warnings[told:]:
                tell("warning", warning)
            told = len(process.warnings)
    return await process.wait()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _feed(process: Process, loop: asyncio.AbstractEventLoop) -> None:
    """In a thread: files, pipes and terminals can all be read there, and not all of them by an event loop."""
    with contextlib.suppress(OSError, RuntimeError, asyncio.CancelledError):
        while data := os.read(0, CHUNK):
            asyncio.run_coroutine_threadsafe(process.write(data), loop).result()
        asyncio.run_coroutine_threadsafe(process.end_input(), loop).result()
