"""QEMU's machine protocol, as much of it as one machine needs: JSON objects, one a line, on a socket.

QEMU is not trusted here: a guest may have broken out into it. Lines, answers and waits are bounded.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from coatcheck.sandbox.machine import MachineError

ANSWER_SECONDS = 20.0
"""QEMU answers in milliseconds; on a host that is starved of CPU, in seconds."""
GONE_SECONDS = 2.0
LONGEST_LINE = 1024 * 1024
"""Bytes. The longest answer to what we ask has a few KiB."""

type Event = Mapping[str, Any]


class QmpError(MachineError):
    """QEMU refused a command, is silent, or is gone."""


class Qmp:
    """One connection. Commands are answered in their order; events come in between."""

    def __init__(self, connected: socket.socket, on_event: Callable[[str, Event], None]) -> None:
        """Takes `connected` over. `on_event` gets each event's name and data, in the event loop."""
        connected.setblocking(False)
        self._socket = connected
        self._on_event = on_event
        self._turn = asyncio.Lock()  # one command under way: answers then need no ids
        self._answer: asyncio.Future[Any] | None = None
        self._greeted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    async def negotiate(self, seconds: float = ANSWER_SECONDS) -> None:
        """Wait for QEMU's greeting and leave capabilities mode. QmpError when it does not come."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._greeted)
        except TimeoutError as error:
            raise QmpError(f"QEMU did not greet within {seconds:g} s") from error
        await self.execute("qmp_capabilities")

    async def execute(
        self,
        command: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        descriptor: int | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Any:
        """The command's `return`. `descriptor` goes with it, for `getfd`. QmpError otherwise."""
        message: dict[str, Any] = {"execute": command}
        if arguments is not None:
            message["arguments"] = arguments
        line = json.dumps(message).encode() + b"\n"
        # Of our own: whoever asked may be cancelled and close theirs before it is sent.
        given = None if descriptor is None else os.dup(descriptor)
        asked = asyncio.ensure_future(self._ask(command, line, given, seconds))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            # It is answered all the same, and that must not be taken for the next one's answer.
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def _ask(self, command: str, line: bytes, descriptor: int | None, seconds: float) -> Any:
        try:
            async with self._turn:
                if self._reading.done():
                    raise QmpError(f"QEMU has ended: it cannot run {command}")
                answer = self._answer = asyncio.get_running_loop().create_future()
                async with asyncio.timeout(seconds):
                    if descriptor is not None:
                        # One small message on an idle socket: it never blocks half-way.
                        socket.send_fds(self._socket, [line], [descriptor])
                    else:
                        await asyncio.get_running_loop().sock_sendall(self._socket, line)
                    return await answer
        except TimeoutError as error:
            # Its answer could still come, and be taken for the next one's.
            self._reading.cancel()
            raise QmpError(f"QEMU did not answer {command} within {seconds:g} s") from error
        except OSError as error:
            raise QmpError(f"QEMU is gone: {command}: {error.strerror}") from error
        finally:
            self._answer = None
            if descriptor is not None:
                os.close(descriptor)

    async def gone(self) -> None:
        """Until QEMU closed its end, or GONE_SECONDS: then all that it said has been heard."""
        await asyncio.wait([self._reading], timeout=GONE_SECONDS)

    async def close(self) -> None:
        """Idempotent."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._socket.close()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        pending = b""
        problem = "QEMU closed its control socket"
        try:
            while received := await loop.sock_recv(self._socket, 65536):
                *lines, pending = (pending + received).split(b"\n")
                if len(pending) > LONGEST_LINE:
                    problem = f"QEMU sent a line of more than {LONGEST_LINE} bytes"
                    break
                for line in lines:
                    self._dispatch(line)
        except OSError as error:
            problem = f"QEMU's control socket: {error.strerror}"
        except ValueError:
            problem = "QEMU sent something that is not a JSON object"
        finally:
            for waiting in (self._greeted, self._answer):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(QmpError(problem))
            # Nobody has to wait for a greeting: an exception that none fetched is no news.
            if self._greeted.done() and not self._greeted.cancelled():
                self._greeted.exception()

    def _dispatch(self, line: bytes) -> None:
        if not line.strip():
            return
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("not an object")
        if "QMP" in message:
            if not self._greeted.done():
                self._greeted.set_result(None)
        elif "event" in message:
            data = message.get("data")
            self._on_event(str(message["event"]), data if isinstance(data, dict) else {})
        elif self._answer is not None and not self._answer.done():
            error = message.get("error")
            if error is None:
                self._answer.set_result(message.get("return"))
            else:
                words = error.get("desc") if isinstance(error, dict) else None
                self._answer.set_exception(QmpError(f"QEMU refused: {words or error}"))
