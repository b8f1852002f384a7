"""In the supervisor: carries one command in a sandbox over a WebSocket: input, output, signals, end.

The client's first message says what to run (`Command`, JSON). Then its binary messages are standard input,
and its texts `{"signal": N}`, `{"resize": [rows, columns]}` or `{"stdin": "end"}`. Ours: binary, one byte
that says which stream (1 or 2) and the bytes; texts `{"taken": N}` (bytes of input that the sandbox took: the
credit of a client that must stay heard), `{"warning": …}`, and as the last one `{"exit": N}` or
`{"signal": N}`, with `limit`, `message` and `hint` if a limit ended it, or `{"error": …}`. A client that goes
away kills its command.
"""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from aiohttp import WSMsgType
from aiohttp.web import WebSocketResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coatcheck.containers.filesystem import wrap
from coatcheck.launcher.channel import ChannelBroken, Note, Stream, StreamReset
from coatcheck.launcher.supervisor import Notice, Supervisor
from coatcheck.sandbox.limits import LimitName, OutputBound, explain
from coatcheck.sandbox.refusal import of_agent, refusal
from coatcheck.sandbox.sandbox import SandboxProblem as Problem

STDOUT: Final = b"\x01"
STDERR: Final = b"\x02"
MAX_UNTAKEN: Final = 1024 * 1024
"""Bytes of input that may wait for the command. A client keeps to 256 KiB; who floods is cut off."""
MAX_WAITING: Final = 256
"""Messages that may wait for the command, for the same reason: a small one costs, too."""
KILLED: Final = 9
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Command(BaseModel):
    """What to run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    command: list[str] = Field(min_length=1, max_length=10_000)
    environment: dict[str, str] = Field(default_factory=dict, max_length=1000)
    cwd: str | None = None
    identity: str | None = None
    pty: tuple[int, int] | None = Field(None, description="Rows and columns.")
    stdin: Literal["stream", "none"] = "stream"
    timeout: float | None = Field(None, gt=0, le=31_536_000, description="Seconds; then it is killed.")
    output_bytes: int | None = Field(
        None, ge=0, description="Then it is killed. At most what the operator allows."
    )


async def serve_command(ws: WebSocketResponse, sandbox: Supervisor) -> None:
    """Run what the client asks for, until it ended or the client went away."""
    asked = await _asked(ws, sandbox)
    if asked is None:
        return
    notices: asyncio.Queue[Notice] = asyncio.Queue(8)

    def listen(notice: Notice) -> None:
        if not notices.full():  # a client that reads nothing misses warnings, not we memory
            notices.put_nowait(notice)

    sandbox.listeners.add(listen)
    try:
        channel = await sandbox.channel()
        stream = await channel.open("exec", _fields(asked, sandbox))
        async with stream:
            await _Running(ws, sandbox, asked, stream, notices).run()
    except StreamReset as error:
        await _say(ws, refusal(of_agent(error.reason)))
    except ChannelBroken as error:
        await _say(ws, refusal(Problem.NOT_RUNNING, str(error)))
    except ValueError:
        await _say(ws, refusal(Problem.BAD_REQUEST, "too long, or a NUL character in it"))
    finally:
        sandbox.listeners.discard(listen)


async def _asked(ws: WebSocketResponse, sandbox: Supervisor) -> Command | None:
    message = await ws.receive()
    if message.type is not WSMsgType.TEXT:
        return None
    try:
        asked = Command.model_validate_json(message.data)
    except ValidationError as error:
        where = {".".join(map(str, each["loc"])) or "it" for each in error.errors(include_input=False)}
        await _say(ws, refusal(Problem.BAD_REQUEST, ", ".join(sorted(where))[:200]))
        return None
    if asked.identity is not None and sandbox.spec.identity(asked.identity) is None:
        await _say(ws, refusal(Problem.UNKNOWN_IDENTITY))
        return None
    return asked


def _fields(asked: Command, sandbox: Supervisor) -> list[tuple[str, str]]:
    who = (
        sandbox.spec.identity(asked.identity) if asked.identity is not None else sandbox.spec.identities[0]
    ) or sandbox.spec.identities[0]
    home = f"/home/{who.name}"
    environment = (
        {"HOME": home, "USER": who.name, "LOGNAME": who.name, "PATH": PATH, "LANG": "C.UTF-8"}
        | ({"TERM": "xterm-256color"} if asked.pty is not None else {})
        | dict(sandbox.environment(who.name))
        | asked.environment
    )
    command: Sequence[str] = asked.command
    if sandbox.spec.filesystem is not None:
        wrapped = wrap(sandbox.spec.filesystem, command, environment, sandbox.spec.machine.isolation)
        command, environment = wrapped.arguments, dict(wrapped.environment)
    fields = [("arg", each) for each in command]
    fields += [("env", f"{name}={value}") for name, value in environment.items()]
    fields += [("identity", who.name), ("cwd", asked.cwd or home)]
    if asked.pty is not None:
        fields.append(("pty", f"{asked.pty[0]},{asked.pty[1]}"))
    elif asked.stdin == "none":
        fields.append(("stdin", "none"))
    return fields


class _Running:
    """A command that runs."""

    def __init__(
        self,
        ws: WebSocketResponse,
        sandbox: Supervisor,
        asked: Command,
        stream: Stream,
        notices: asyncio.Queue[Notice],
    ) -> None:
        self._ws = ws
        self._stream = stream
        self._timeout = asked.timeout
        self._notices = notices
        self._sandbox = sandbox
        most = sandbox.spec.ceiling.output_bytes
        self._output_bytes = (
            sandbox.spec.limits.output_bytes if asked.output_bytes is None else min(asked.output_bytes, most)
        )
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)
        self._untaken = 0
        self._gone = False

    async def run(self) -> None:
        helpers = [asyncio.create_task(work) for work in (self._listen(), self._feed(), self._pass_on())]
        try:
            last = await self._output_in_time()
            if not self._gone:
                await _say(self._ws, last)
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _output_in_time(self) -> Notice:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._output()
        except TimeoutError:
            self._stream.reset("cancelled")
            return {
                "signal": 9,
                "limit": "time",
                "message": f"the command was killed after its {self._timeout:g} s",
                "hint": "Give it more with timeout.",
            }
        except StreamReset:
            if self._gone:
                return {}
            raise

    async def _output(self) -> Notice:
        last: Notice = {}
        limit = ""
        bound = OutputBound(self._output_bytes)
        while (item := await self._stream.read()) is not None:
            if isinstance(item, Note):
                last = _ending(item) or last
                limit = item.get("limit") or limit
                continue
            if allowed := bound.allow(len(item.data)):
                await self._ws.send_bytes((STDERR if item.stderr else STDOUT) + item.data[:allowed])
            if bound.exceeded:
                self._stream.reset("cancelled")
                return {"signal": 9} | self._words(LimitName.OUTPUT)
        if not last:
            return refusal(Problem.GUEST_FAILED)
        hits = self._sandbox.hits()
        # Behind a policy's `filesystem` a shell tells of the kill, as 137.
        if LimitName.MEMORY in hits and (last.get("signal") == KILLED or last.get("exit") == 128 + KILLED):
            limit = LimitName.MEMORY
        elif LimitName.PROCESSES in hits and last.get("exit"):
            limit = limit or LimitName.PROCESSES
        return last | (self._words(LimitName(limit)) if limit in set(LimitName) else {})

    def _words(self, limit: LimitName) -> Notice:
        """Which limit it was, and how to have more: never just a dead process."""
        spec = self._sandbox.spec
        limits = replace(spec.limits, output_bytes=self._output_bytes)
        message, hint = explain(limit, limits, spec.ceiling)
        return {"limit": limit, "message": message, "hint": hint}

    async def _listen(self) -> None:
        """What the client says. Never waits for the command, so that a signal is always heard."""
        async for message in self._ws:
            if message.type is WSMsgType.BINARY:
                self._untaken += len(message.data)
                if self._untaken > MAX_UNTAKEN or self._input.full():
                    break
                self._input.put_nowait(message.data)
            elif message.type is WSMsgType.TEXT:
                if not await self._obey(message.data):
                    break
        self._gone = True
        self._stream.reset("cancelled")

    async def _obey(self, text: str) -> bool:
        try:
            said = json.loads(text)
        except ValueError:
            return False
        match said:
            case {"signal": int(number)} if 0 < number < 65:
                await self._stream.note([("signal", str(number))])
            case {"resize": [int(rows), int(columns)]} if 0 < rows < 10_000 and 0 < columns < 10_000:
                await self._stream.note([("resize", f"{rows},{columns}")])
            case {"stdin": "end"} if not self._input.full():
                self._input.put_nowait(None)
            case _:
                return False
        return True

    async def _feed(self) -> None:
        with contextlib.suppress(StreamReset, ChannelBroken, ConnectionError):
            while (data := await self._input.get()) is not None:
                await self._stream.write(data)
                self._untaken -= len(data)
                await self._ws.send_str(json.dumps({"taken": len(data)}))
            await self._stream.end()

    async def _pass_on(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await self._ws.send_str(json.dumps(await self._notices.get()))


def _ending(note: Note) -> Notice | None:
    """`{"exit": N}` or `{"signal": N}`, checked: it comes from the guest."""
    for name, most in (("exit", 255), ("signal", 64)):
        text = note.get(name)
        if text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= most:
            said: dict[str, Any] = {name: int(text)}
            return said
    return None


async def _say(ws: WebSocketResponse, said: Notice) -> None:
    with contextlib.suppress(ConnectionError):
        await ws.send_str(json.dumps(said))
