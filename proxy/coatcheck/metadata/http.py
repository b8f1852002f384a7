"""HTTP/1.1 on one connection of the guest: aiohttp parses, everything is bounded, one answer a request.

A browser, a proxy or a server that was tricked into fetching an address (SSRF) is a program of the sandbox,
too, and may be steered by somebody else than the agent. What such requests look like is refused, as cloud
providers' metadata services do: a Host that is not ours (DNS rebinding), a header that says who passed it on.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp.web_exceptions import HTTPRequestEntityTooLarge
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

IMDS_HOST: Final = "169.254.169.254"
CONTAINER_HOST: Final = "169.254.170.2"
"""From which AWS SDKs take container credentials; they refuse the other one for that."""
HOSTS: Final = frozenset({IMDS_HOST, CONTAINER_HOST})

MAX_CONNECTIONS: Final = 64
"""Of one sandbox at once."""
MAX_LINE: Final = 4096
MAX_FIELD: Final = 8192
MAX_HEADERS: Final = 64
MAX_BODY: Final = 1024
"""Bytes. Only a new size is sent, in sixty; some clients send an empty JSON object with everything."""
REQUEST_SECONDS: Final = 10.0
"""For a request's head, from the answer before it, and for its body: a byte at a time holds a place no longer
than silence."""
STOP_SECONDS: Final = 1.0

_PASSED_ON: Final = frozenset({"forwarded", "via", "x-real-ip", "origin", "referer"})
_PASSED_ON_PREFIXES: Final = ("x-forwarded-", "sec-fetch-")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Client:
    """One identity of the sandbox, which its connection proves."""

    name: str
    session: str


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """A request whose form has been found good."""

    method: str
    host: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    """Names in lower case, each once."""
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = field(repr=False)
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """The request is answered with `status`. The text is for the program inside; `reason` is a fixed word."""

    def __init__(self, status: int, reason: str, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.headers = headers

    @property
    def answer(self) -> Answer:
        error = {"reason": self.reason, "message": str(self)}
        return Answer(self.status, json.dumps({"error": error}).encode(), headers=self.headers)


type Respond = Callable[[MetadataRequest, Client], Awaitable[Answer]]
"""It raises Refused."""


class Connections:
    """All connections of one sandbox's guest. Belongs to one event loop."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._server: Server | None = None

    async def serve(self, connected: socket.socket, client: Client) -> None:
        """Answer `client` on a socket, which is ours from now on. One too many is closed at once."""
        if self._server is None:  # made here: a server belongs to the loop that it is made in
            self._server = Server(self._handle, request_factory=_request)
        if len(self._server.connections) >= MAX_CONNECTIONS:
            connected.close()
            return
        protocol = _Connection(
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # it would write paths
            keepalive_timeout=REQUEST_SECONDS,
            tcp_keepalive=False,
            max_line_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            max_field_size=MAX_FIELD,
            lingering_time=0,
            auto_decompress=False,
        )
        protocol.client = client
        connected.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connected)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.shutdown(STOP_SECONDS)

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        connection = request.protocol
        if not isinstance(connection, _Connection):
            raise TypeError("a connection of somebody else's")
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                checked = await _checked(request)
            answer = await self._respond(checked, connection.client)
        except TimeoutError:
            answer = Refused(408, "too_slow", "the request did not come in time").answer
        except Refused as refused:
            answer = refused.answer
        response = _response(answer)
        if not request.content.is_eof():
            response.force_close()  # what was not read of it is nobody's next request
        return response


class _Connection(RequestHandler):
    """aiohttp's, except that a request it cannot parse is answered as JSON."""

    __slots__ = ("client",)
    client: Client

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        if status >= 500:
            _log.error("a metadata request failed", extra={"error": type(exc).__name__})
            refused = Refused(500, "internal", "the metadata service failed")
        else:
            refused = Refused(400, "malformed", "this is not an HTTP/1.1 request")
        response = _response(refused.answer)
        response.force_close()
        return response


def _request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: "asyncio.Task[None]"
) -> BaseRequest:
    return BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=MAX_BODY
    )


async def _checked(request: BaseRequest) -> MetadataRequest:
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.raw_headers:
        name = raw_name.decode("latin-1").lower()
        if name in headers:
            raise Refused(400, "malformed", "a header appears twice")
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES):
            raise Refused(
                403, "passed_on", f"a request with the header {name} was not made here, but passed on"
            )
        headers[name] = raw_value.decode("latin-1")
    host = headers.get("host", "")
    if host not in HOSTS:
        raise Refused(400, "wrong_host", f"this service is {IMDS_HOST}, and the request names another host")
    target = request.raw_path
    if not target.startswith("/"):
        raise Refused(400, "malformed", "the request's target is not a path")
    if headers.get("expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # as aiohttp's own: no part of the answer was sent yet
    try:
        body = await request.read()
    except HTTPRequestEntityTooLarge:
        raise Refused(413, "too_large", f"a request's body has at most {MAX_BODY} bytes") from None
    return MetadataRequest(request.method, host, target.partition("?")[0], headers, body)


def _response(answer: Answer) -> Response:
    headers = {"Cache-Control": "no-store", "Server": "coatcheck", **dict(answer.headers)}
    return Response(status=answer.status, body=answer.body, content_type=answer.content_type, headers=headers)
