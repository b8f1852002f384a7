"""One command that runs in a sandbox: a stream of output, a stream of input, and its end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Self

from aiohttp import ClientWebSocketResponse, WSMsgType

from coatcheck.client.control import ControlError

MAX_UNTAKEN: Final = 256 * 1024
"""Bytes of input on their way: so many that the sandbox is never idle, and so few that a signal is heard."""
CHUNK: Final = 64 * 1024
QUEUE: Final = 16
"""Pieces of output, 32 KiB each at most, that wait to be read; then the command waits."""
_STDERR: Final = 2


@dataclass(frozen=True, slots=True)
class Output:
    """What the command wrote, in order."""

    data: bytes
    stderr: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended."""

    exit_code: int
    """128+n after signal n."""
    signal: int | None = None
    limit: str | None = None
    """Which limit ended it: memory, processes, disk, output, time."""
    message: str = ""
    hint: str = ""
    """How to have more."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that was waited for, with all that it wrote."""

    ended: Ended
    stdout: bytes
    stderr: bytes

    @property
    def exit_code(self) -> int:
        return self.ended.exit_code


class Process:
    """Made by `Sandbox.start`. Read its output to the end, or `close` it, which kills it: a command that
    nobody reads waits, as behind a full pipe. Iterating gives its output; `wait` tells how it ended."""

    def __init__(self, ws: ClientWebSocketResponse) -> None:
        self._ws = ws
        self._output: asyncio.Queue[Output | None] = asyncio.Queue(QUEUE)
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._untaken = 0
        self._taken = asyncio.Event()
        self.warnings: list[str] = []
        """What concerns the whole sandbox, such as its time limit."""
        self._reading = asyncio.create_task(self._read())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Output]:
        while (item := await self.read()) is not None:
            yield item

    async def read(self) -> Output | None:
        """What it wrote next; None after the last. ControlError when it could not be run, or broke off."""
        item = None
        if not (self._reading.done() and self._output.empty()):
            item = await self._output.get()
        if item is None:
            if (error := self._ended.exception()) is not None:
                raise error
        return item

    async def write(self, data: bytes) -> None:
        """Standard input; returns when all of it is on its way. BrokenPipeError once the command ended."""
        for at in range(0, len(data), CHUNK):
            piece = data[at : at + CHUNK]
            while self._untaken and self._untaken + len(piece) > MAX_UNTAKEN and not self._ended.done():
                self._taken.clear()
                await self._taken.wait()
            if self._ended.done():
                raise BrokenPipeError("the command has ended")
            self._untaken += len(piece)
            try:
                await self._ws.send_bytes(piece)
            except ConnectionError:
                raise BrokenPipeError("the command has ended") from None

    async def end_input(self) -> None:
        """Nothing more follows on its standard input."""
        await self._tell({"stdin": "end"})

    async def signal(self, number: int) -> None:
        """To the command's process group."""
        await self._tell({"signal": number})

    async def resize(self, rows: int, columns: int) -> None:
        """Of its terminal."""
        await self._tell({"resize": [rows, columns]})

    async def wait(self) -> Ended:
        """How it ended. Somebody must read its output meanwhile. ControlError as in `read`."""
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Kill it, unless it has ended."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._ws.close()
        self._finish(ControlError("the command was left", "", "closed"))

    async def _tell(self, said: dict[str, Any]) -> None:
        if not self._ended.done():
            try:
                await self._ws.send_str(json.dumps(said))
            except ConnectionError:
                pass  # it has ended; the reader is told so

    async def _read(self) -> None:
        broken = ControlError(
            "the connection to the sandbox broke off, and its command with it",
            "See `coatcheck sandbox show`: it may have ended.",
            "broken",
        )
        try:
            async for message in self._ws:
                if message.type is WSMsgType.BINARY and message.data:
                    await self._output.put(Output(message.data[1:], message.data[0] == _STDERR))
                elif message.type is WSMsgType.TEXT and not self._heard(json.loads(message.data)):
                    break
        finally:
            self._finish(broken)
            with contextlib.suppress(asyncio.QueueFull):  # then the reader comes to the end anyway
                self._output.put_nowait(None)

    def _heard(self, said: dict[str, Any]) -> bool:
        """False: nothing follows."""
        match said:
            case {"taken": int(count)}:
                self._untaken -= count
                self._taken.set()
                return True
            case {"warning": str(text)}:
                self.warnings.append(text)
                return True
            case {"ending": str(why), "message": str(text)}:
                self._finish(ControlError(f"the sandbox ended: {text}", "", why))
            case {"error": {"reason": str(reason), "message": str(text), "hint": str(hint)}}:
                self._finish(ControlError(text, hint, reason))
            case {"exit": int(code)}:
                self._finish(_ended(code, None, said))
            case {"signal": int(number)}:
                self._finish(_ended(128 + number, number, said))
            case _:
                return True  # of a later version
        return False

    def _finish(self, how: Ended | ControlError) -> None:
        if not self._ended.done():
            if isinstance(how, Ended):
                self._ended.set_result(how)
            else:
                self._ended.set_exception(how)
                self._ended.exception()  # nobody need ask
        self._taken.set()


def _ended(code: int, number: int | None, said: dict[str, Any]) -> Ended:
    return Ended(code, number, said.get("limit"), said.get("message", ""), said.get("hint", ""))
