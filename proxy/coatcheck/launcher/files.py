"""In the supervisor: streams files in and out of a sandbox: of any size, never whole in memory."""

import asyncio
from typing import Final

from aiohttp.web import Request, Response, StreamResponse, json_response

from coatcheck.launcher.channel import ChannelBroken, Chunk, Note, StreamReset
from coatcheck.launcher.supervisor import Supervisor
from coatcheck.sandbox.refusal import of_agent, refusal
from coatcheck.sandbox.sandbox import SandboxProblem as Problem

IDLE_SECONDS: Final = 60.0
"""Without a byte either way: who sends or reads a file and stops is let go."""


def refused(problem: Problem, detail: str = "") -> Response:
    return json_response(refusal(problem, detail), status=problem.status)


async def send_file(request: Request, sandbox: Supervisor) -> StreamResponse:
    """GET: a file's bytes. Broken off without a clean end when the sandbox breaks it off."""
    who = _identity(request, sandbox)
    if who is None:
        return refused(Problem.UNKNOWN_IDENTITY)
    response: StreamResponse | None = None
    try:
        channel = await sandbox.channel()
        stream = await channel.open("read", [("path", request.query.get("path", "")), ("identity", who)])
        async with stream:
            item = await stream.read()  # the first says whether there is anything: until then we can refuse
            response = StreamResponse(headers={"Content-Type": "application/octet-stream"})
            await response.prepare(request)
            while item is not None:
                if isinstance(item, Chunk):
                    async with asyncio.timeout(IDLE_SECONDS):
                        await response.write(item.data)
                item = await stream.read()
            await response.write_eof()
            return response
    except (StreamReset, ChannelBroken, TimeoutError) as error:
        if response is not None and request.transport is not None:
            request.transport.abort()
            return response
        return _broken(error)
    except ValueError:
        return refused(Problem.INVALID_PATH)


async def take_file(request: Request, sandbox: Supervisor) -> Response:
    """PUT: a file, replaced when all of it is there, untouched otherwise."""
    who = _identity(request, sandbox)
    if who is None:
        return refused(Problem.UNKNOWN_IDENTITY)
    mode = request.query.get("mode", "0644")
    if not (mode.isascii() and mode.isdigit() and len(mode) <= 4 and not set(mode) & set("89")):
        return refused(Problem.BAD_REQUEST, "mode is not octal")
    path = request.query.get("path", "")
    try:
        channel = await sandbox.channel()
        stream = await channel.open("write", [("path", path), ("mode", mode), ("identity", who)])
        async with stream:
            sent = 0
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    data = await request.content.readany()
                if not data:
                    break
                await stream.write(data)
                sent += len(data)
            await stream.end()
            written = ""
            while (item := await stream.read()) is not None:
                if isinstance(item, Note):
                    written = item.get("written", written)
            return json_response({"written": sent}) if written == str(sent) else refused(Problem.INCOMPLETE)
    except (StreamReset, ChannelBroken, TimeoutError) as error:
        return _broken(error)
    except ValueError:
        return refused(Problem.INVALID_PATH)


def _identity(request: Request, sandbox: Supervisor) -> str | None:
    """Its name, if the sandbox has it. Checked here: the agent would also write as `root`, for us."""
    name = request.query.get("identity", sandbox.spec.identities[0].name)
    return name if sandbox.spec.identity(name) is not None else None


def _broken(error: Exception) -> Response:
    if isinstance(error, StreamReset):
        return refused(of_agent(error.reason))
    if isinstance(error, TimeoutError):
        return refused(Problem.INCOMPLETE, f"nothing came for {IDLE_SECONDS:g} s")
    return refused(Problem.NOT_RUNNING, str(error))
