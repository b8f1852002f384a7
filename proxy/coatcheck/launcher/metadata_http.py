"""HTTP/1.1 on one stream of the guest: h11 parses, everything is bounded, one answer a request.

A browser, a proxy or a server that was tricked into fetching an address (SSRF) is a program of the sandbox,
too, and may be steered by somebody else than the agent. What such requests look like is refused, as cloud
providers' metadata services do: a Host that is not ours (DNS rebinding), a header that says who passed it on.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import h11

from coatcheck.launcher.channel import Note, Stream

IMDS_HOST: Final = "169.254.169.254"
CONTAINER_HOST: Final = "169.254.170.2"
"""From which AWS SDKs take container credentials; they refuse the other one for that."""
HOSTS: Final = frozenset({IMDS_HOST, CONTAINER_HOST})

MAX_HEAD: Final = 8 * 1024
MAX_BODY: Final = 1024
"""Stream. Only a new size is sent, in sixty; some clients send an empty JSON object with everything."""
MAX_REQUESTS: Final = 100
"""On one connection."""
REQUEST_SECONDS: Final = 10.0
"""For a whole request, from the answer before it: a byte at a time holds a place no longer than silence."""

_PASSED_ON: Final = frozenset({"forwarded", "via", "x-real-ip", "origin", "referer"})
_PASSED_ON_PREFIXES: Final = ("x-forwarded-", "sec-fetch-")


@dataclass(frozen=True, slots=True)
class Asked:
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


async def converse(stream: Stream, respond: Callable[[Asked], Awaitable[Answer]]) -> None:
    """Answer requests until the guest ends the stream, breaks a rule, or has had its share of them."""
    connection = h11.Connection(h11.SERVER, MAX_HEAD)
    with contextlib.suppress(TimeoutError, h11.LocalProtocolError):
        for _ in range(MAX_REQUESTS):
            request: h11.Request | None = None
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    request, body = await _request(connection, stream)
                if request is None:
                    break
                answer = await respond(_checked(request, body))
            except Refused as refused:
                answer = refused.answer
            except h11.RemoteProtocolError as error:
                answer = Refused(
                    error.error_status_hint, "malformed", "this is not an HTTP/1.1 request"
                ).answer
            async with asyncio.timeout(REQUEST_SECONDS):  # a guest that does not read
                await _send(
                    connection, stream, answer, head=request is not None and request.method == b"HEAD"
                )
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                break
            connection.start_next_cycle()
    await stream.end()


async def _request(connection: h11.Connection, stream: Stream) -> tuple[h11.Request | None, bytes]:
    """The next whole request; None when there is no other."""
    request: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await stream.write(connection.send(go_on) or b"")
            item = await stream.read()
            if not isinstance(item, Note):
                connection.receive_data(item.data if item is not None else b"")
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY:
                raise Refused(413, "too_large", f"a request's body has at most {MAX_BODY} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return request, body
        else:
            return None, b""


def _checked(request: h11.Request, body: bytes) -> Asked:
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name = raw_name.decode("ascii").lower()
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
    target = request.target.decode("latin-1")
    if not target.startswith("/"):
        raise Refused(400, "malformed", "the request's target is not a path")
    return Asked(request.method.decode("ascii"), host, target.partition("?")[0], headers, body)


async def _send(connection: h11.Connection, stream: Stream, answer: Answer, *, head: bool) -> None:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("Server", "coatcheck"),
        *answer.headers,
    ]
    if connection.their_state is not h11.DONE:
        headers.append(("Connection", "close"))
    parts = [
        connection.send(h11.Response(status_code=answer.status, headers=headers)),
        connection.send(h11.Data(data=b"" if head else answer.body)),
        connection.send(h11.EndOfMessage()),
    ]
    await stream.write(b"".join(part for part in parts if part))
