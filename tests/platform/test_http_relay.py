"""A request passed on between two real servers: what goes through, what stays, and how a failure looks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import (
    ClientError,
    ClientPayloadError,
    ClientSession,
    TCPConnector,
    UnixConnector,
    WSCloseCode,
    WSMsgType,
    WSServerHandshakeError,
)
from aiohttp.web import (
    BaseRequest,
    Response,
    Server,
    ServerRunner,
    StreamResponse,
    TCPSite,
    UnixSite,
    WebSocketResponse,
)
from yarl import URL

from coatcheck.platform.http_relay import NotReached, relay, session

type Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, path: Path | None = None) -> AsyncIterator[str]:
    runner = ServerRunner(Server(handler), shutdown_timeout=0.5)
    await runner.setup()
    site = TCPSite(runner, "127.0.0.1", 0) if path is None else UnixSite(runner, path)
    await site.start()
    try:
        host, port = runner.addresses[0][:2] if path is None else ("localhost", 80)
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def relayed(handler: Handler, path: Path | None = None) -> AsyncIterator[tuple[ClientSession, str]]:
    """A client, and the address of a relay in front of `handler`; `path`: at a Unix socket."""
    async with serving(handler) as behind:

        async def front(request: BaseRequest) -> StreamResponse:
            try:
                async with session(TCPConnector(force_close=True)) as client:
                    url = URL(behind + request.raw_path, encoded=True)
                    return await relay(request, client, url, {"X-Ours": "1"})
            except NotReached:
                return Response(status=502)

        connector = None if path is None else UnixConnector(str(path))
        async with serving(front, path) as address, ClientSession(connector=connector) as client:
            yield client, address


async def test_a_request_and_its_answer_pass_with_what_is_theirs() -> None:
    """Method, raw path, headers, body, status; neither our credentials nor what concerns a connection."""

    async def behind(request: BaseRequest) -> StreamResponse:
        said = f"{request.method} {request.raw_path} {sorted(request.headers)} ".encode()
        answer = Response(status=418, body=said + await request.read(), headers={"Connection": "X-Hop"})
        answer.headers.update({"X-Hop": "1", "X-Theirs": "1", "Set-Cookie": "a=b", "X-Ours": "forged"})
        return answer

    sent = {
        "Authorization": "Bearer t",
        "Cookie": "c=d",
        "Connection": "X-Gone",
        "X-Gone": "1",
        "X-Kept": "1",
    }
    async with relayed(behind) as (client, address):
        url = URL(f"{address}/a%2F..%2fb?x=%20", encoded=True)
        async with client.patch(url, data=b"body", headers=sent) as answer:
            said = (await answer.read()).decode()
    assert answer.status == 418 and said.startswith("PATCH /a%2F..%2fb?x=%20 ") and said.endswith(" body")
    assert "X-Kept" in said and not any(name in said for name in ("Authorization", "Cookie", "X-Gone"))
    assert answer.headers["X-Ours"] == "1" and "X-Theirs" in answer.headers
    assert not {"X-Hop", "Set-Cookie"} & set(answer.headers)


async def test_an_answer_that_breaks_off_is_broken_off() -> None:
    """It must not look whole."""

    async def behind(request: BaseRequest) -> StreamResponse:
        answer = StreamResponse()
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with relayed(behind) as (client, address):
        async with client.get(address) as answer:
            with pytest.raises((ClientPayloadError, ClientError, ConnectionError)):
                await answer.read()


async def test_nobody_there_is_said_before_anything_is_answered() -> None:
    """Also for what speaks no HTTP."""

    async def behind(request: BaseRequest) -> StreamResponse:
        assert request.transport is not None
        request.transport.write(b"SSH-2.0-OpenSSH\r\n")
        request.transport.close()
        raise ConnectionError

    async with relayed(behind) as (client, address), client.get(address) as answer:
        assert answer.status == 502


async def test_websocket_messages_pass_both_ways_and_so_does_its_end() -> None:
    """Texts, bytes, the subprotocol, and the code with which it closes."""

    async def behind(request: BaseRequest) -> StreamResponse:
        ws = WebSocketResponse(protocols=("mine",))
        await ws.prepare(request)
        async for message in ws:
            if message.type is WSMsgType.TEXT:
                await ws.send_str(message.data.upper())
                if message.data == "end":
                    await ws.close(code=4001)
            else:
                await ws.send_bytes(message.data[::-1])
        return ws

    async with relayed(behind) as (client, address):
        async with client.ws_connect(address, protocols=("mine", "other")) as ws:
            assert ws.protocol == "mine"
            await ws.send_str("hello")
            assert (await ws.receive()).data == "HELLO"
            await ws.send_bytes(b"abc" * 100_000)
            assert (await ws.receive()).data == b"cba" * 100_000
            await ws.send_str("end")
            assert (await ws.receive()).data == "END"
            await ws.receive()
            assert ws.close_code == 4001


async def test_what_was_said_last_is_heard_by_a_client_that_still_talks(tmp_path: Path) -> None:
    """It writes into a connection whose other side has ended, before it reads: a connection that was closed
    at once would fail there, with the last words unread in it."""
    ended = asyncio.Event()

    async def behind(request: BaseRequest) -> StreamResponse:
        ws = WebSocketResponse()
        await ws.prepare(request)
        await ws.receive()
        await ws.send_str("last")
        await ws.close()
        ended.set()
        return ws

    async with relayed(behind, tmp_path / "s") as (client, address):
        async with client.ws_connect(address) as ws:
            assert ws._response.connection is not None  # noqa: SLF001 - aiohttp has no other way
            transport = ws._response.connection.transport  # noqa: SLF001
            assert transport is not None
            await ws.send_str("go")
            transport.pause_reading()
            async with asyncio.timeout(20):
                await ended.wait()
            for _ in range(20):  # the relay's turn, if it were to close
                await asyncio.sleep(0)
            await ws.send_str("late")
            transport.resume_reading()
            assert (await ws.receive()).data == "last"


async def test_what_broke_off_does_not_look_like_an_end() -> None:
    """The client is told with a code that no orderly end has."""

    async def behind(request: BaseRequest) -> StreamResponse:
        ws = WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str("half")
        assert request.transport is not None
        request.transport.close()
        return ws

    async with relayed(behind) as (client, address), client.ws_connect(address) as ws:
        assert (await ws.receive()).data == "half"
        await ws.receive()
        assert ws.close_code == WSCloseCode.INTERNAL_ERROR


async def test_a_client_that_vanishes_ends_the_other_side() -> None:
    """Though neither of the two says anything more."""
    gone = asyncio.Event()

    async def behind(request: BaseRequest) -> StreamResponse:
        ws = WebSocketResponse()
        await ws.prepare(request)
        await ws.receive()
        gone.set()
        return ws

    async with relayed(behind) as (client, address):
        ws = await client.ws_connect(address)
        ws._response.connection.transport.abort()  # type: ignore[union-attr]  # noqa: SLF001
        async with asyncio.timeout(20):
            await gone.wait()


async def test_a_refused_handshake_is_refused_here() -> None:
    """With the same status."""

    async def behind(request: BaseRequest) -> StreamResponse:
        return Response(status=409)

    async with relayed(behind) as (client, address):
        with pytest.raises(WSServerHandshakeError) as refused:
            await client.ws_connect(address)
    assert refused.value.status == 409
