"""In the supervisor: is the supervisor as a process: what it closes at its start, and how long it lives."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Final

from coatcheck.launcher.spec import MAX_BYTES
from coatcheck.platform.process_memory import hide_memory

if TYPE_CHECKING:
    from coatcheck.launcher.supervisor import Supervisor

ANSWER_SECONDS: Final = 10.0
"""For the daemon to answer."""
LATER: Final = ("coatcheck.launcher.api", "coatcheck.metadata.service", "coatcheck.telemetry.log")
"""What a booting guest does not wait for: half a second of imports."""


def read_spec() -> bytes:
    """From standard input. Nobody reads this process's memory from here on: handles are in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)
    hide_memory()
    return sys.stdin.buffer.readline(MAX_BYTES)


def keep_to_ourselves(descriptors: Iterable[int]) -> None:
    """The machine must not keep us alive in the daemon's eyes."""
    for each in descriptors:
        os.set_inheritable(each, False)


async def load_the_rest() -> None:
    """While the machine starts."""
    for name in LATER:
        await asyncio.to_thread(import_module, name)
    from coatcheck.telemetry.log import LogFormat, configure

    configure(LogFormat.HUMAN, "warning")


async def live(
    sandbox: "Supervisor",
    serving: AbstractAsyncContextManager[None],
    run: Callable[[], Awaitable[tuple[object, str]]],
) -> None:
    """Until it ended; a signal ends it."""
    from coatcheck.sandbox.sandbox import Ending

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, sandbox.end, Ending.KILLED, "its supervisor was asked to stop")
    for number in (signal.SIGHUP, signal.SIGPIPE):
        with contextlib.suppress(ValueError):
            signal.signal(number, signal.SIG_IGN)
    async with serving:
        ending, detail = await run()
    logging.getLogger(__name__).info("sandbox %s ended: %s: %s", sandbox.spec.id, ending, detail)
