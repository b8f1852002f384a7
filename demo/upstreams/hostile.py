"""What an upstream might do to get at a secret or at the proxy's memory: echoes, floods, stalls.

- `/echo` sends back what it was sent. `in=` body (default), header, cookie, location, trailer;
  `encoding=` plain (default), base64, percent, json, split (a byte a chunk), gzip, deflate, br, zstd.
  A `Range` is honoured: two halves of a secret are two innocent answers.
- `/sse?n=&gap_ms=` counts; each event says when it was sent. `/slow?seconds=` waits before its head.
- `/big?bytes=` streams zeros, `&chunked=1` without a length. `POST /sink` counts what it gets.
- `/ws` echoes messages; to the text `headers` it answers with the request's own headers.
"""

import asyncio
import base64
import gzip
import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import quote

import brotli
import zstandard
from aiohttp import WSMsgType, web

from demo.upstreams.event_stream import Event, send_events
from demo.upstreams.seen import credential_of

_BLOCK = bytes(64 * 1024)
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


def add_routes(app: web.Application) -> None:
    app.router.add_route("*", "/echo", _echo)
    app.router.add_get("/sse", _sse)
    app.router.add_get("/slow", _slow)
    app.router.add_get("/big", _big)
    app.router.add_post("/sink", _sink)
    app.router.add_get("/ws", _websocket)


async def _echo(request: web.Request) -> web.StreamResponse:
    secret = credential_of(request.headers, request.query)
    match request.query.get("in", "body"):
        case "header":
            return web.Response(text="see X-Echo\n", headers={"X-Echo": _encoded(request, secret)})
        case "cookie":
            return web.Response(text="see Set-Cookie\n", headers={"Set-Cookie": f"echo={secret}; Path=/"})
        case "location":
            return web.Response(status=302, headers={"Location": f"/echo?key={_encoded(request, secret)}"})
        case "trailer":
            return await _trailer(request, secret)
    body = await request.read()
    text = _encoded(request, _head_text(request) + body.decode("latin-1")).encode("latin-1")
    if "Range" in request.headers:
        span = request.http_range
        headers = {"Content-Range": f"bytes {span.start}-{span.stop}/{len(text)}"}
        return web.Response(status=206, body=text[span], headers=headers)
    encoding = request.query.get("encoding", "plain")
    if encoding in _COMPRESS:
        return web.Response(
            body=_COMPRESS[encoding](text),
            headers={"Content-Encoding": encoding, "Content-Type": "text/plain"},
        )
    if encoding == "split":
        return await _split(request, text)
    return web.Response(body=text, content_type="application/json" if encoding == "json" else "text/plain")


def _head_text(request: web.Request) -> str:
    return "".join(f"{name.lower()}: {value}\n" for name, value in request.headers.items()) + "\n"


def _encoded(request: web.Request, text: str) -> str:
    match request.query.get("encoding", "plain"):
        case "base64":
            return base64.b64encode(text.encode("latin-1")).decode()
        case "percent":
            return quote(text, safe="")
        case "json":
            return json.dumps({"echo": text})
    return text


async def _split(request: web.Request, text: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    for n in range(len(text)):
        await response.write(text[n : n + 1])
        await asyncio.sleep(0)  # a write of its own, so that chunks are not joined on the way
    await response.write_eof()
    return response


async def _trailer(request: web.Request, secret: str) -> web.StreamResponse:
    # aiohttp writes no trailers, so this one is written by hand, and the connection ends with it.
    assert request.transport is not None
    request.transport.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nTrailer: X-Echo\r\n"
        b"Connection: close\r\n\r\n6\r\nhello\n\r\n0\r\nX-Echo: " + secret.encode("latin-1") + b"\r\n\r\n"
    )
    request.transport.close()
    raise asyncio.CancelledError  # nothing more may be written: the answer is complete


async def _sse(request: web.Request) -> web.StreamResponse:
    def events() -> Iterator[Event]:
        for n in range(int(request.query.get("n", "5"))):
            yield "count", {"n": n, "sent_at": time.time()}

    return await send_events(request, events(), int(request.query.get("gap_ms", "100")) / 1000)


async def _slow(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(float(request.query.get("seconds", "1")))
    return web.Response(text="at last\n")


async def _big(request: web.Request) -> web.StreamResponse:
    left = int(request.query.get("bytes", "1048576"))
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    if "chunked" in request.query:
        response.enable_chunked_encoding()
    else:
        response.content_length = left
    await response.prepare(request)
    while left > 0:
        await response.write(_BLOCK[:left])
        left -= len(_BLOCK)
    await response.write_eof()
    return response


async def _sink(request: web.Request) -> web.StreamResponse:
    count, digest = 0, hashlib.sha256()
    async for chunk in request.content.iter_any():
        count += len(chunk)
        digest.update(chunk)
    return web.json_response({"bytes": count, "sha256": digest.hexdigest()})


async def _websocket(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(_head_text(request) if message.data == "headers" else message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    return socket
