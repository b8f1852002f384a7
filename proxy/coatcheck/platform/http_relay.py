"""One HTTP or WebSocket request passed on to another server, and its answer passed back, both streamed.

For the control API in front of supervisors, and for supervisors in front of what listens inside. The other
server may be a sandbox's: its answer is framed anew by us, so that nothing in it can be taken for ours.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

from aiohttp import (
    BaseConnector,
    ClientError,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    DummyCookieJar,
    WSCloseCode,
    WSMsgType,
    WSServerHandshakeError,
)
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_ws import WebSocketResponse
from multidict import CIMultiDict
from yarl import URL

MAX_MESSAGE: Final = 4 * 1024 * 1024
"""Bytes of a WebSocket message, which is whole in memory once each way."""
CONNECT_SECONDS: Final = 20.0
WATCH_SECONDS: Final = 1.0
"""How often a connection that nobody is reading from is looked at: its client may be gone."""

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host"}
)
_WEBSOCKET: Final = frozenset(
    {"sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol",
     "sec-websocket-accept"}
)  # fmt: skip
_OURS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "expect"})
"""What a client proves itself to us with, which is nobody else's: least of all a sandbox's. Cookies, too: all
sandboxes stand behind one host name, and one's would be sent to the other."""
_NOT_THEIRS: Final = frozenset(
    {"set-cookie", "strict-transport-security", "alt-svc", "server", "date", "content-length",
     "clear-site-data"}
)  # fmt: skip
"""What one sandbox must not say for the whole of our name."""


class NotReached(Exception):
    """The other server cannot be reached, or does not speak HTTP. Nothing has been answered yet."""


def session(connector: BaseConnector) -> ClientSession:
    """A client for `relay`: no cookies, environment, redirects, decompression, or headers of its own."""
    return ClientSession(
        connector=connector,
        auto_decompress=False,
        cookie_jar=DummyCookieJar(),
        trust_env=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        timeout=ClientTimeout(total=None, connect=CONNECT_SECONDS),
    )


async def relay(
    request: BaseRequest, client: ClientSession, url: URL, added: Mapping[str, str]
) -> StreamResponse:
    """Pass `request` on to `url` and its answer back. `added`: headers of every answer.

    NotReached when there was no answer. An answer that breaks off is broken off here, too.
    """
    if request.headers.get("upgrade", "").lower() == "websocket":
        return await _relay_websocket(request, client, url, added)
    headers = _kept(request.headers.items(), _HOP_BY_HOP | _OURS)
    body = request.content if request.can_read_body else None
    response: StreamResponse | None = None
    try:
        async with client.request(
            request.method, url, headers=headers, data=body, allow_redirects=False
        ) as answer:
            response = StreamResponse(status=answer.status, headers=_answered(answer.headers.items(), added))
            if answer.content_length is not None:
                response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response
    except (ClientError, OSError, TimeoutError) as error:
        if response is None:
            raise NotReached(type(error).__name__) from None
        _break_off(request)
        return response


async def _relay_websocket(
    request: BaseRequest, client: ClientSession, url: URL, added: Mapping[str, str]
) -> StreamResponse:
    asked = [each.strip() for each in request.headers.get("sec-websocket-protocol", "").split(",")]
    protocols = [each for each in asked if each]
    headers = _kept(request.headers.items(), _HOP_BY_HOP | _OURS | _WEBSOCKET)
    try:
        theirs = await client.ws_connect(
            url, headers=headers, protocols=protocols, max_msg_size=MAX_MESSAGE, autoclose=False
        )
    except WSServerHandshakeError as error:
        if error.status < 400:
            raise NotReached("no WebSocket") from None
        return StreamResponse(status=error.status, headers=dict(added))
    except (ClientError, OSError, TimeoutError) as error:
        raise NotReached(type(error).__name__) from None
    chosen = () if theirs.protocol is None else (theirs.protocol,)
    ours = WebSocketResponse(protocols=chosen, compress=False, max_msg_size=MAX_MESSAGE, autoclose=False)
    ours.headers.update(added)
    code: int = WSCloseCode.INTERNAL_ERROR  # what broke off must not look like an end
    try:
        await ours.prepare(request)
        code = await _both_ways(request, ours, theirs)
    finally:
        # Each side is heard out (RFC 6455, 7.1.1): a side that writes into a connection that was just closed
        # loses what is still waiting to be read in it, such as a command's last output.
        await asyncio.gather(theirs.close(code=code), ours.close(code=code))
    return ours


async def _both_ways(request: BaseRequest, ours: WebSocketResponse, theirs: ClientWebSocketResponse) -> int:
    """Until one side ends: the code with which it closed."""
    ways = [asyncio.create_task(_pass_on(ours, theirs)), asyncio.create_task(_pass_on(theirs, ours))]
    watch = asyncio.create_task(_watch(request))
    try:
        pending = {watch, *ways}
        while watch in pending and len(pending) > 1:
            ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                # A side that cannot be written to ends nothing: what it said before is still to come.
                if way in ended and (code := way.result()) is not None:
                    return code
        return WSCloseCode.INTERNAL_ERROR
    finally:
        for task in (watch, *ways):
            task.cancel()
        await asyncio.gather(watch, *ways, return_exceptions=True)


async def _pass_on(
    source: WebSocketResponse | ClientWebSocketResponse, sink: WebSocketResponse | ClientWebSocketResponse
) -> int | None:
    """The code with which `source` closed; None when `sink` is gone."""
    with contextlib.suppress(ConnectionError):
        while True:
            message = await source.receive()
            match message.type:
                case WSMsgType.BINARY:
                    await sink.send_bytes(message.data)
                case WSMsgType.TEXT:
                    await sink.send_str(message.data)
                case WSMsgType.CLOSE:
                    return message.data or WSCloseCode.OK
                case _:
                    return WSCloseCode.INTERNAL_ERROR
    return None


async def _watch(request: BaseRequest) -> None:
    """Until the client has disconnected: nothing else notices it while both directions wait."""
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
        await asyncio.sleep(WATCH_SECONDS)


def _kept(headers: Iterable[tuple[str, str]], without: frozenset[str]) -> CIMultiDict[str]:
    items = list(headers)
    named = {
        word.strip().lower()
        for name, value in items
        if name.lower() == "connection"
        for word in value.split(",")
    }
    return CIMultiDict((name, value) for name, value in items if name.lower() not in without | named)


def _answered(headers: Iterable[tuple[str, str]], added: Mapping[str, str]) -> CIMultiDict[str]:
    kept = _kept(headers, _HOP_BY_HOP | _NOT_THEIRS)
    for name in [name for name in kept if name.lower().startswith("access-control-")]:
        kept.popall(name, None)
    kept.update(added)
    return kept


def _break_off(request: BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
