"""Listening: who is let in at all, how many, and for how long.

Our own accept loop, because whom the kernel names as no caller gets one sentence and no parser.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

from coatcheck.control.dispatch import internal, refused
from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.control.reading import MAX_BODY

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 256
"""Of one listener. Each has its own count: a full TCP port does not lock out the socket."""
MAX_REFUSING: Final = 16
"""Connections that are being told that they are no caller; beyond it they are closed without a word."""
IDLE_SECONDS: Final = 10.0
"""For a request's head, and between two requests. Also ends a head that comes a byte at a time."""
HANDSHAKE_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 1.0
"""How long a refused peer's request is read away, so that it sees the answer and not a broken pipe."""
MAX_LINE: Final = 4096
MAX_HEADERS: Final = 64
MAX_FIELD: Final = 8192

type Handle = Callable[[BaseRequest], Awaitable[StreamResponse]]
type Admit = Callable[[socket.socket], bytes | None]
"""None to let a connection in, else the whole answer that it gets instead."""


class _Connection(RequestHandler):
    """aiohttp's, except that a request it cannot parse is answered as JSON and logged without its text:
    the offending line may be the one with the token."""

    __slots__ = ()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        if status >= 500:
            logger.error("a control request failed: %s", type(exc).__name__)
            problem = internal()
        else:
            problem = ControlProblem(
                Refusal.MALFORMED, "this is not an HTTP request, or its head is too large", "Send HTTP/1.1."
            )
        response = refused(problem)
        response.force_close()
        return response


class _Server(Server):
    def __call__(self) -> RequestHandler:
        return _Connection(
            self,
            loop=self._loop,
            access_log=None,  # type: ignore[arg-type]  # it would write paths and user agents
            keepalive_timeout=IDLE_SECONDS,
            max_line_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            max_field_size=MAX_FIELD,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,
        )


class Listener:
    """One listening socket. Belongs to the control API's loop."""

    def __init__(
        self, listening: socket.socket, handle: Handle, admit: Admit, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listening = listening
        self._admit = admit
        self._tls = tls
        self._server = _Server(handle, request_factory=_request)
        self._entering: set[asyncio.Task[None]] = set()
        self._refusing: set[asyncio.Task[None]] = set()

    async def keep_open(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                # Out of descriptors, mostly. Without a pause this would be a busy loop on a full backlog.
                logger.error("cannot accept control connections: %s", error.strerror)
                await asyncio.sleep(0.1)
                continue
            try:
                self._receive(connection)
            except OSError:
                connection.close()

    def _receive(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        answer = self._admit(connection)
        if answer is not None:
            if len(self._refusing) >= MAX_REFUSING:
                connection.close()
            else:
                _keep(self._refusing, asyncio.create_task(_turn_away(connection, answer)))
        elif len(self._server.connections) + len(self._entering) >= MAX_CONNECTIONS:
            connection.close()
        else:
            _keep(self._entering, asyncio.create_task(self._enter(connection)))

    async def _enter(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._server,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls is not None else None,
            )
        except (OSError, ssl.SSLError, TimeoutError):
            connection.close()  # a peer that speaks no TLS, or went away

    async def close(self) -> None:
        self._listening.close()
        for task in (*self._entering, *self._refusing):
            task.cancel()
        await self._server.shutdown(1.0)


def _keep(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _turn_away(connection: socket.socket, answer: bytes) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            await loop.sock_sendall(connection, answer)
            connection.shutdown(socket.SHUT_WR)
            for _ in range(16):
                if not await loop.sock_recv(connection, 4096):
                    break
    except (OSError, TimeoutError):
        pass
    finally:
        connection.close()


def answer_bytes(response: Response) -> bytes:
    """A refusal without a parser: the same body, and the connection ends."""
    body = response.body
    if not isinstance(body, bytes):
        raise TypeError("a refusal's body is bytes")
    head = (
        f"HTTP/1.1 {response.status} {response.reason}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: "asyncio.Task[None]"
) -> BaseRequest:
    return BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=MAX_BODY
    )
