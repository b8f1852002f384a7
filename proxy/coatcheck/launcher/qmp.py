"""In daemon and supervisor: drives QEMU's control socket with QEMU's own client library, with a bound on
every wait.

QEMU is not trusted here: a guest may have broken out into it. Lines are bounded, answers are matched by id.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from qemu.qmp import ExecuteError, Message, QMPClient, QMPError, Runstate

from coatcheck.sandbox.machine import MachineError

ANSWER_SECONDS = 20.0
"""QEMU answers in milliseconds; on a host that is starved of CPU, in seconds."""
GONE_SECONDS = 2.0
LONGEST_LINE = 1024 * 1024
"""Bytes. The longest answer to what we ask has a few KiB."""

type Event = Mapping[str, Any]

logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL + 1)  # it logs all that it raises


class QmpError(MachineError):
    """QEMU refused a command, is silent, or is gone."""


class Qmp:
    """One connection. One command at a time: a descriptor belongs to the command that comes next."""

    def __init__(self, connected: socket.socket, on_event: Callable[[str, Event], None]) -> None:
        """Takes `connected` over. `on_event` gets each event's name and data, in the event loop."""
        self._socket = connected
        self._client = QMPClient(readbuflen=LONGEST_LINE)
        self._turn = asyncio.Lock()

        def heard(event: Message) -> bool:
            data = event.get("data")
            on_event(str(event["event"]), data if isinstance(data, dict) else {})
            return False  # nothing is queued: a QEMU that was taken over could fill the queue

        self._client.events.event_filter = heard

    async def negotiate(self, seconds: float = ANSWER_SECONDS) -> None:
        """Wait for QEMU's greeting and leave capabilities mode. QmpError when it does not come."""
        self._socket.setblocking(False)
        try:
            async with asyncio.timeout(seconds):
                await self._client.connect(self._socket)
        except TimeoutError as error:
            raise QmpError(f"QEMU did not greet within {seconds:g} s") from error
        except QMPError as error:
            raise QmpError(f"QEMU's control socket: {error}") from error

    async def execute(
        self,
        command: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        descriptor: int | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Any:
        """The command's `return`. `descriptor` goes with it, for `getfd`. QmpError otherwise."""
        async with self._turn:
            try:
                async with asyncio.timeout(seconds):
                    if descriptor is not None:
                        self._client.send_fd_scm(descriptor)
                    return await self._client.execute(command, arguments)
            except TimeoutError as error:
                raise QmpError(f"QEMU did not answer {command} within {seconds:g} s") from error
            except ExecuteError as error:
                raise QmpError(f"QEMU refused {command}: {error}") from error
            except (QMPError, OSError) as error:
                raise QmpError(f"QEMU has ended: it cannot run {command}") from error

    async def gone(self) -> None:
        """Until QEMU closed its end, or GONE_SECONDS: then all that it said has been heard."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_SECONDS):
                while self._client.runstate is Runstate.RUNNING:
                    await self._client.runstate_changed()

    async def close(self) -> None:
        """Idempotent."""
        if self._client.runstate is not Runstate.IDLE:
            with contextlib.suppress(Exception):  # why it ended is told to whom it concerned
                await self._client.disconnect()
        self._socket.close()
