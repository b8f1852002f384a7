"""In the supervisor: serves the daemon on `api.sock`, and through it the callers that the daemon
authorised."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiohttp.web import (
    Application,
    AppRunner,
    Request,
    Response,
    StreamResponse,
    UnixSite,
    WebSocketResponse,
    json_response,
)
from yarl import URL

from coatcheck.launcher.channel import ChannelBroken, StreamReset
from coatcheck.launcher.commands import serve_command
from coatcheck.launcher.files import refused, send_file, take_file
from coatcheck.launcher.ports import GuestConnector, serve_port
from coatcheck.launcher.spec import SOCKET
from coatcheck.launcher.supervisor import Supervisor
from coatcheck.platform.http_relay import MAX_MESSAGE, NotReached, relay, session
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.refusal import of_agent
from coatcheck.sandbox.sandbox import Ending, SandboxRefused
from coatcheck.sandbox.sandbox import SandboxProblem as Problem

STOP_SECONDS: Final = 1.0
"""For what still runs when the sandbox ends: it has been told."""

type Handler = Callable[[Request], Awaitable[StreamResponse]]
type Ask = Callable[[Request], Awaitable[Mapping[str, object]]]
"""What is answered as JSON. SandboxRefused, ChannelBroken, MachineError: the refusal is."""


@asynccontextmanager
async def serving(sandbox: Supervisor, posts: Mapping[str, Ask] | None = None) -> AsyncIterator[None]:
    """Listen for as long as the block lasts. The sandbox's directory is 0700: nobody else comes here.

    `posts`: what a layer above answers, by its path."""
    app = Application(client_max_size=64 * 1024)
    app.router.add_get("/", _state(sandbox))
    app.router.add_post("/kill", _kill(sandbox))
    app.router.add_post("/pause", _change(sandbox, sandbox.pause))
    app.router.add_get("/remains", _remains(sandbox))
    app.router.add_post("/resume", _change(sandbox, sandbox.resume))
    for path, ask in (posts or {}).items():
        app.router.add_post(path, _answered(ask))
    app.router.add_get("/exec", _exec(sandbox))
    app.router.add_get("/files", _present(sandbox, lambda request: send_file(request, sandbox)))
    app.router.add_put("/files", _present(sandbox, lambda request: take_file(request, sandbox)))
    app.router.add_get(r"/ports/{port:\d{1,5}}", _port(sandbox))
    app.router.add_route("*", r"/http/{port:\d{1,5}}{path:/.*}", _http(sandbox))
    # A client that goes away cancels its handler: nothing waits for a guest on behalf of nobody.
    runner = AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    try:
        await UnixSite(runner, sandbox.spec.directory / SOCKET).start()
        yield
    finally:
        await runner.cleanup()


def _state(sandbox: Supervisor) -> Handler:
    async def answer(request: Request) -> Response:
        return json_response({"id": sandbox.spec.id, "state": sandbox.state})

    return answer


def _kill(sandbox: Supervisor) -> Handler:
    async def answer(request: Request) -> Response:
        asked = await request.json()
        sandbox.end(Ending(asked["ending"]), str(asked["detail"]))
        return json_response({})

    return answer


def _change(sandbox: Supervisor, change: Callable[[], Awaitable[None]]) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            await change()
        except (MachineError, ChannelBroken) as error:
            return refused(Problem.NOT_RUNNING, str(error))
        return json_response({"state": sandbox.state})

    return answer


def _answered(ask: Ask) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return json_response(await ask(request))
        except SandboxRefused as error:
            told = {"reason": error.problem, "message": error.message, "hint": error.hint}
            return json_response({"error": told}, status=error.problem.status)
        except (ChannelBroken, MachineError) as error:
            return refused(Problem.NOT_RUNNING, str(error))

    return answer


def _remains(sandbox: Supervisor) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            remains = await sandbox.machine.remains()
        except MachineError as error:
            return refused(Problem.NOT_RUNNING, str(error))
        return json_response(
            [
                {"name": each.name, "kind": each.kind, "path": each.path and str(each.path), "pid": each.pid}
                for each in remains
            ]
        )

    return answer


def _present(sandbox: Supervisor, handler: Handler) -> Handler:
    async def answer(request: Request) -> StreamResponse:
        with sandbox.presence():
            return await handler(request)

    return answer


def _exec(sandbox: Supervisor) -> Handler:
    async def answer(request: Request) -> StreamResponse:
        ws = WebSocketResponse(compress=False, max_msg_size=MAX_MESSAGE)
        await ws.prepare(request)
        with sandbox.presence():
            await serve_command(ws, sandbox)
        await ws.close()
        return ws

    return answer


def _port(sandbox: Supervisor) -> Handler:
    async def answer(request: Request) -> StreamResponse:
        identity = _identity(request, sandbox)
        if identity is None:
            return refused(Problem.UNKNOWN_IDENTITY)
        ws = WebSocketResponse(compress=False, max_msg_size=MAX_MESSAGE)
        await ws.prepare(request)
        with sandbox.presence():
            await serve_port(ws, sandbox, int(request.match_info["port"]), identity)
        await ws.close()
        return ws

    return answer


def _http(sandbox: Supervisor) -> Handler:
    async def answer(request: Request) -> StreamResponse:
        port = int(request.match_info["port"])
        # As it was sent, not as a router read it: a second reading is the server's inside, and only its.
        target = request.raw_path.removeprefix(f"/http/{request.match_info['port']}")
        url = URL(f"http://localhost:{port or 80}{target}", encoded=True)
        try:
            channel = await sandbox.channel()
            with sandbox.presence():
                async with session(GuestConnector(channel, port, sandbox.spec.identities[0].name)) as client:
                    return await relay(request, client, url, {})
        except StreamReset as error:
            return refused(of_agent(error.reason))
        except NotReached:
            return refused(Problem.PORT_REFUSED)
        except ChannelBroken as error:
            return refused(Problem.NOT_RUNNING, str(error))

    return answer


def _identity(request: Request, sandbox: Supervisor) -> str | None:
    name = request.query.get("identity", sandbox.spec.identities[0].name)
    return name if sandbox.spec.identity(name) is not None else None
