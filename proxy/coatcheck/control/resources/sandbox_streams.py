"""/v1/sandboxes/{sandbox}/exec, files, ports, http: requests that go on to the sandbox's supervisor.

Authenticated and authorised here, once, when they begin. A sandbox that ends breaks them off.
"""

from typing import Final
from urllib.parse import urlencode

from pydantic import BaseModel

from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation, Passage, Unread
from coatcheck.control.problem import Reason
from coatcheck.control.resources import sandbox_models as models
from coatcheck.control.resources.sandbox_returning import RETURNING
from coatcheck.control.resources.sandboxes import USING, use
from coatcheck.control.resources.sessions import caller_of
from coatcheck.control.sandbox_opening import incarnations, maker
from coatcheck.durable.incarnations import BACK_SECONDS
from coatcheck.sandbox.sandbox import SandboxProblem

_INSIDE: Final[frozenset[Reason]] = (USING | RETURNING) | {
    SandboxProblem.NOT_STARTED,
    SandboxProblem.SANDBOX_BUSY,
    SandboxProblem.FROZEN,
    SandboxProblem.UNKNOWN_IDENTITY,
    SandboxProblem.NETWORK_OPEN,
    SandboxProblem.GUEST_FAILED,
    SandboxProblem.BAD_REQUEST,
}
_FILE: Final[frozenset[Reason]] = _INSIDE | {
    SandboxProblem.FILE_NOT_FOUND,
    SandboxProblem.PERMISSION_DENIED,
    SandboxProblem.NO_SPACE,
    SandboxProblem.IS_DIRECTORY,
    SandboxProblem.INVALID_PATH,
    SandboxProblem.INCOMPLETE,
}


async def run(context: Context, ask: Ask) -> Answer:
    return await _to(context, ask, "/exec", ask.query)


async def file(context: Context, ask: Ask) -> Answer:
    return await _to(context, ask, "/files", ask.query)


async def port(context: Context, ask: Ask) -> Answer:
    return await _to(context, ask, f"/ports/{ask.path['port']}", ask.query)


async def http(context: Context, ask: Ask) -> Answer:
    """`rest` is as the client sent it, query and all: nobody but the server inside reads it."""
    return await _passage(context, ask, f"/http/{ask.path['port']}{ask.path['rest']}")


async def _to(context: Context, ask: Ask, target: str, query: BaseModel) -> Passage:
    given = query.model_dump(exclude_none=True)
    return await _passage(context, ask, f"{target}?{urlencode(given)}" if given else target)


async def _passage(context: Context, ask: Ask, target: str) -> Passage:
    """Using one that sleeps wakes it: by its supervisor, or here if it has none."""
    sandbox = use(context, ask)
    if context.backend.sandboxes.is_down(sandbox.id):
        lives = incarnations(context)
        sandbox = await lives.running(await lives.wake(sandbox, maker(context, caller_of(ask))))
    return Passage(sandbox.id, context.backend.sandboxes.directory(sandbox.id), target)


OPERATIONS = (
    Operation(
        "exec",
        "GET",
        "/v1/sandboxes/{sandbox}/exec",
        Action.OPEN,
        "WebSocket: run a command and stream its input and output; docs/control-api.md has the messages",
        run,
        None,
        reasons=_INSIDE | {SandboxProblem.COMMAND_NOT_FOUND},
        passes=True,
        seconds=BACK_SECONDS,
        websocket=True,
    ),
    Operation(
        "read_file",
        "GET",
        "/v1/sandboxes/{sandbox}/files",
        Action.OPEN,
        "Read a file, streamed",
        file,
        None,
        query=models.FileQuery,
        reasons=_FILE,
        content_type="application/octet-stream",
        passes=True,
        seconds=BACK_SECONDS,
    ),
    Operation(
        "write_file",
        "PUT",
        "/v1/sandboxes/{sandbox}/files",
        Action.OPEN,
        "Write a file from the body, streamed. The file is replaced once all of it has arrived, and"
        " otherwise untouched",
        file,
        None,
        query=models.FileQuery,
        reasons=_FILE,
        passes=True,
        seconds=BACK_SECONDS,
    ),
    Operation(
        "port",
        "GET",
        "/v1/sandboxes/{sandbox}/ports/{port}",
        Action.OPEN,
        "WebSocket: its binary messages are the bytes of a connection to a port on the sandbox's"
        " loopback interface",
        port,
        None,
        query=models.PortQuery,
        reasons=_INSIDE | {SandboxProblem.PORT_REFUSED},
        passes=True,
        seconds=BACK_SECONDS,
        websocket=True,
    ),
    *(
        Operation(
            f"http_{method.lower()}",
            method,
            "/v1/sandboxes/{sandbox}/http/{port}{rest}",
            Action.OPEN,
            "Send a request, or open a WebSocket, to an HTTP server on the sandbox's loopback"
            " interface. Authorization is not passed on",
            http,
            None,
            query=Unread,
            reasons=_INSIDE | {SandboxProblem.PORT_REFUSED},
            content_type="application/octet-stream",
            passes=True,
            seconds=BACK_SECONDS,
        )
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
    ),
)
