"""Ordinary requests, one of each kind that takes a way of its own through the path."""

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from functools import wraps
from pathlib import Path

from tests.daemon import Sandbox
from tests.exhaustive.fail_closed.client import Client, RpcClient, Seen, WebSocketSeen
from tests.exhaustive.fail_closed.world import World
from tests.planes.redirected import connected, dialled
from tests.planes.wire import Wire, wire


class Phase(StrEnum):
    """From when on a place fails when it is passed."""

    START = "from the start"
    UPLOADING = "once the origin has read the first of the body"
    ANSWERING = "once the client has read the first of the answer"


type Arm = Callable[[Phase], None]
type Scenario = Callable[[World, Arm], Awaitable[Seen]]
type Story[C: Client] = Callable[[World, Arm, C], Awaitable[None]]
type Connection = Callable[[World], AbstractAsyncContextManager[Wire]]


def first_hop(world: World) -> AbstractAsyncContextManager[Wire]:
    return wire(world.sandbox)


def scenario[C: Client](
    client_of: Callable[[World, Wire], C], connection: Connection = first_hop
) -> Callable[[Story[C]], Scenario]:
    """Makes one out of what its client does, from the connection's beginning to as far as it comes."""

    def of(story: Story[C]) -> Scenario:
        @wraps(story)
        async def run(world: World, arm: Arm) -> Seen:
            arm(Phase.START)
            async with connection(world) as raw:
                client = client_of(world, raw)
                await story(world, arm, client)
                return client.seen

        return run

    return of


@scenario(Client)
async def explicit(world: World, arm: Arm, client: Client) -> None:
    """CONNECT, TLS, HTTP/1.1: an upload in two pieces, an answer in two pieces."""
    if await tunnel(client, "api.openai.com"):
        await exchange(world, arm, client, put(world.sandbox, "/v1/files"))


@scenario(RpcClient)
async def http2(world: World, arm: Arm, client: RpcClient) -> None:
    """The same in HTTP/2 on both sides."""
    if not await tunnel(client, "api.github.com", ("h2",)):
        return
    await client.begin()
    if not await client.goes_on(lambda: b"DATA" in world.upstream.received):
        return
    arm(Phase.UPLOADING)
    first = len(world.upstream.received)
    await client.upload(b"two")
    if not await client.goes_on(lambda: len(world.upstream.received) > first):
        return
    world.client_ended = True
    await client.upload(b"", end=True)
    await answered(world, arm, client)


@scenario(lambda world, raw: Client(world, raw, WebSocketSeen()))
async def websocket(world: World, arm: Arm, client: Client) -> None:
    """An upgrade; a message up, two down, then the client closes."""
    if not await tunnel(client, "api.openai.com"):
        return
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    handle = world.sandbox.handles["openai"]
    head = f"GET /v1/live HTTP/1.1\r\nHost: api.openai.com\r\nAuthorization: Bearer {handle}\r\n{upgrade}"
    await client.ask("request", f"{head}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode())
    if not await client.goes_on(lambda: client.seen.status == 101):
        return
    arm(Phase.UPLOADING)
    await client.send(b"\x81\x83\0\0\0\0two")
    if await answered(world, arm, client, lambda: b"second" in client.seen.data):
        world.client_ended = True
        await client.send(b"\x88\x82\0\0\0\0\x03\xe8")
        await client.goes_on(lambda: client.seen.whole and bool(client.seen.end))


@scenario(Client, lambda world: connected(world.redirected, dialled("api.openai.com")))
async def transparent(world: World, arm: Arm, client: Client) -> None:
    """A redirected connection, whose client knows of no proxy."""
    if await client.start_tls("api.openai.com"):
        await exchange(world, arm, client, put(world.redirected, "/v1/files"))


@scenario(Client)
async def reverse(world: World, arm: Arm, client: Client) -> None:
    """A base URL below the proxy's own address."""
    await exchange(world, arm, client, put(world.sandbox, "/openai/v1/files", "127.0.0.1"))


@scenario(Client)
async def plain(world: World, arm: Arm, client: Client) -> None:
    """Plain HTTP in absolute form, without a credential."""
    await exchange(world, arm, client, put(None, "http://other.example/", "other.example"))


@scenario(Client)
async def opaque(world: World, arm: Arm, client: Client) -> None:
    """CONNECT to a host whose TLS passes unopened."""
    host = "upstream.example"
    if await tunnel(client, host, trust=world.upstream_tls.ca):
        await exchange(world, arm, client, put(None, "/", host))


@scenario(Client)
async def in_body(world: World, arm: Arm, client: Client) -> None:
    """A credential that stands in the body, which is kept until it is whole."""
    host = "api.anthropic.com"
    if not await tunnel(client, host):
        return
    body = json.dumps({"token": world.sandbox.handles["form"]}).encode()
    head = f"PUT /form HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    world.client_ended = True
    await client.ask("request", f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await answered(world, arm, client)


@scenario(Client)
async def asked(world: World, arm: Arm, client: Client) -> None:
    """One that approval is required about, who says yes."""
    if await tunnel(client, "api.openai.com"):
        await exchange(world, arm, client, put(world.sandbox, "/v1/asked"))


@scenario(Client)
async def denied(world: World, arm: Arm, client: Client) -> None:
    """A request that the policy refuses anyhow: failing must not let it through."""
    if await tunnel(client, "api.openai.com"):
        head = put(world.sandbox, "/v1/files").replace(b"PUT", b"DELETE")
        await client.ask("request", head + b"0\r\n\r\n")
        await client.goes_on(lambda: client.seen.whole)


# --- their parts ------------------------------------------------------------------------------------


async def tunnel(client: Client, host: str, alpn: tuple[str, ...] = (), trust: Path | None = None) -> bool:
    """Whether CONNECT was allowed, and TLS with `host` begun."""
    await client.ask("connect", f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
    allowed = await client.goes_on(lambda: client.seen.status == 200)
    return allowed and await client.start_tls(host, alpn, trust)


def put(sandbox: Sandbox | None, target: str, host: str = "api.openai.com") -> bytes:
    """The head of an upload; with a sandbox, with its handle."""
    credential = f"Authorization: Bearer {sandbox.handles['openai']}\r\n" if sandbox is not None else ""
    head = f"PUT {target} HTTP/1.1\r\nHost: {host}\r\n{credential}"
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()


async def exchange(world: World, arm: Arm, client: Client, head: bytes) -> None:
    """An upload in two pieces, and its answer."""
    await client.ask("request", head + b"3\r\none\r\n")
    if not await client.goes_on(lambda: b"one" in world.upstream.received):
        return
    arm(Phase.UPLOADING)
    await client.send(b"3\r\ntwo\r\n")
    if not await client.goes_on(lambda: b"two" in world.upstream.received):
        return
    world.client_ended = True
    await client.send(b"0\r\n\r\n")
    await answered(world, arm, client)


async def answered(
    world: World, arm: Arm, client: Client, to_its_end: Callable[[], bool] | None = None
) -> bool:
    """The answer's first piece; then its second, and whether all of it came."""
    if not await client.goes_on(lambda: b"first" in client.seen.data):
        return False
    arm(Phase.ANSWERING)
    world.upstream.may_go_on = True
    world.moved.set()
    return await client.goes_on(to_its_end or (lambda: client.seen.whole))


ALL = (explicit, http2, websocket, transparent, reverse, plain, opaque, in_body, asked, denied)
