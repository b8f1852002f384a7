"""Requests that are carried on to a sandbox's supervisor: how many, and how they end when nobody is there."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import UnixConnector
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from yarl import URL

from coatcheck.control.operation import Passage
from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.platform.http_relay import NotReached, relay, session
from coatcheck.sandbox.sandbox import SandboxProblem

MAX_PASSAGES: Final = 128
"""At once: half of what one listener has room for (door.py), so that revoking always gets in."""
MAX_PER_CALLER: Final = 64
UP_SECONDS: Final = 20.0
"""Until a supervisor that was just started listens: about a second; a slow, busy machine needs more."""
POLL_SECONDS: Final = 0.02
SOCKET: Final = "api.sock"
IDLE_BEFORE_PROBE: Final = 60
"""Seconds. A client on another machine that vanished holds a command for about three minutes."""


class Passages:
    """Belongs to the control API's loop."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    async def carry(
        self,
        request: BaseRequest,
        passage: Passage,
        caller: str,
        added: Mapping[str, str],
        alive: Callable[[], bool],
    ) -> StreamResponse:
        """The supervisor's answer, once it is all passed on. `alive`: whether it can still come up."""
        if self._taken.total() >= MAX_PASSAGES or self._taken[caller] >= MAX_PER_CALLER:
            raise ControlProblem(
                Refusal.BUSY,
                "too many commands, files and ports are open at once",
                "Close some of them, then try again.",
            )
        self._taken[caller] += 1
        try:
            _notice_absence(request)
            await _until_up(passage, alive)
            connector = UnixConnector(str(passage.directory / SOCKET), force_close=True)
            async with session(connector) as client:
                url = URL(f"http://localhost{passage.target}", encoded=True)
                return await relay(request, client, url, added)
        except NotReached:
            raise _silent() from None
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]


async def _until_up(passage: Passage, alive: Callable[[], bool]) -> None:
    until = time.monotonic() + UP_SECONDS
    while not (passage.directory / SOCKET).exists():
        if time.monotonic() > until or not alive():
            raise _silent()
        await asyncio.sleep(POLL_SECONDS)


def _silent() -> ControlProblem:
    return ControlProblem(
        SandboxProblem.NOT_STARTED,
        "the sandbox's supervisor does not answer",
        "See `coatcheck sandbox show`, and the daemon's log.",
    )


def _notice_absence(request: BaseRequest) -> None:
    """A client behind a network that went away is noticed by the kernel: a command may be silent for hours,
    and pings of our own would end the one whose reader is only slow."""
    connection = request.transport.get_extra_info("socket") if request.transport is not None else None
    if connection is not None and connection.family != socket.AF_UNIX:
        for option, value in (
            (socket.TCP_KEEPIDLE, IDLE_BEFORE_PROBE),
            (socket.TCP_KEEPINTVL, 20),
            (socket.TCP_KEEPCNT, 6),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
