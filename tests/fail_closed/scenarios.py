"""Ordinary requests, one of each kind that takes a way of its own through the path."""

import json
from collections.abc import Callable
from enum import StrEnum

from tests.daemon import Sandbox
from tests.fail_closed.client import Client, RpcClient, Seen, WebSocketSeen
from tests.fail_closed.world import World
from tests.planes.redirected import connected, dialled
from tests.planes.wire import wire


class Phase(StrEnum):
    """From when on a place fails when it is passed."""

    START = "from the start"
    UPLOADING = "once the origin has read the first of the body"
    ANSWERING = "once the client has read the first of the answer"


type Arm = Callable[[Phase], None]


async def explicit(world: World, arm: Arm) -> Seen:
    """CONNECT, TLS, HTTP/1.1: an upload in two pieces, an answer in two pieces."""
    arm(Phase.START)
    async with wire(world.sandbox) as raw:
        client = Client(world, raw)
        if await enter(client, "api.openai.com") and await client.start_tls("api.openai.com"):
            await exchange(world, arm, client, put(world.sandbox, "/v1/files"))
        return client.seen


async def http2(world: World, arm: Arm) -> Seen:
    """The same in HTTP/2 on both sides."""
    arm(Phase.START)
    async with wire(world.sandbox) as raw:
        client = RpcClient(world, raw)
        host = "api.github.com"
        if not (await enter(client, host) and await client.start_tls(host, ("h2",))):
            return client.seen
        await client.begin()
        if not await client.goes_on(lambda: b"DATA" in world.upstream.received):
            return client.seen
        arm(Phase.UPLOADING)
        first = len(world.upstream.received)
        await client.upload(b"two")
        if not await client.goes_on(lambda: len(world.upstream.received) > first):
            return client.seen
        world.client_ended = True
        await client.upload(b"", end=True)
        if not await client.goes_on(lambda: b"first" in client.seen.data):
            return client.seen
        await answered(world, arm, client)
        return client.seen


async def websocket(world: World, arm: Arm) -> Seen:
    """An upgrade; a message up, two down, then the client closes."""
    arm(Phase.START)
    async with wire(world.sandbox) as raw:
        client = Client(world, raw, WebSocketSeen())
        if not (await enter(client, "api.openai.com") and await client.start_tls("api.openai.com")):
            return client.seen
        upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        handle = world.sandbox.handles["openai"]
        head = f"GET /v1/live HTTP/1.1\r\nHost: api.openai.com\r\nAuthorization: Bearer {handle}\r\n{upgrade}"
        await client.ask("request", f"{head}Sec-WebSocket-Key: eA==\r\n\r\n".encode())
        if not await client.goes_on(lambda: client.seen.status == 101):
            return client.seen
        arm(Phase.UPLOADING)
        await client.send(b"\x81\x83\0\0\0\0two")
        if not await client.goes_on(lambda: b"first" in client.seen.data):
            return client.seen
        arm(Phase.ANSWERING)
        world.upstream.may_go_on = True
        world.moved.set()
        if await client.goes_on(lambda: b"second" in client.seen.data):
            world.client_ended = True
            await client.send(b"\x88\x82\0\0\0\0\x03\xe8")
            await client.goes_on(lambda: client.seen.whole and bool(client.seen.end))
        return client.seen


async def transparent(world: World, arm: Arm) -> Seen:
    """A redirected connection, whose client knows of no proxy."""
    arm(Phase.START)
    async with connected(world.redirected, dialled("api.openai.com")) as raw:
        client = Client(world, raw)
        if await client.start_tls("api.openai.com"):
            await exchange(world, arm, client, put(world.redirected, "/v1/files"))
        return client.seen


async def reverse(world: World, arm: Arm) -> Seen:
    """A base URL below the proxy's own address."""
    arm(Phase.START)
    async with wire(world.sandbox) as raw:
        client = Client(world, raw)
        await exchange(world, arm, client, put(world.sandbox, "/openai/v1/files", "127.0.0.1"))
        return client.seen


async def plain(world: World, arm: Arm) -> Seen:
    """Plain HTTP in absolute form, without a credential."""
    arm(Phase.START)
    async with wire(world.sandbox) as raw:
        client = Client(world, raw)
        head = (
            b"PUT http://other.example/ HTTP/1.1\r\nHost: other.example\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await exchange(world, arm, client, head)
        return client.seen


async def opaque(world: World, arm: Arm) -> Seen:
    """CONNECT to a host whose TLS passes unopened."""
    arm(Phase.START)
    async with wire(world.sandbox) as raw:
        client = Client(world, raw)
        host = "upstream.example"
        if await enter(client, host) and await client.start_tls(host, trust=world.upstream_tls.ca):
            head = f"PUT / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            await exchange(world, arm, client, head)
        return client.seen


async def in_body(world: World, arm: Arm) -> Seen:
    """A credential that stands in the body, which is kept until it is whole."""
    arm(Phase.START)
    async with wire(world.sandbox) as raw:
        client = Client(world, raw)
        host = "api.anthropic.com"
        if not (await enter(client, host) and await client.start_tls(host)):
            return client.seen
        body = json.dumps({"token": world.sandbox.handles["form"]}).encode()
        head = f"PUT /form HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        world.client_ended = True
        await client.ask("request", f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if await client.goes_on(lambda: b"first" in client.seen.data):
            await answered(world, arm, client)
        return client.seen


async def denied(world: World, arm: Arm) -> Seen:
    """A request that the policy refuses anyhow: failing must not let it through."""
    arm(Phase.START)
    async with wire(world.sandbox) as raw:
        client = Client(world, raw)
        if await enter(client, "api.openai.com") and await client.start_tls("api.openai.com"):
            await client.ask(
                "request", put(world.sandbox, "/v1/files").replace(b"PUT", b"DELETE") + b"0\r\n\r\n"
            )
            await client.goes_on(lambda: client.seen.whole)
        return client.seen


# --- their parts ------------------------------------------------------------------------------------


async def enter(client: Client, host: str) -> bool:
    """Whether CONNECT was allowed."""
    await client.ask("connect", f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
    return await client.goes_on(lambda: client.seen.status == 200)


def put(sandbox: Sandbox, path: str, host: str = "api.openai.com") -> bytes:
    head = f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {sandbox.handles['openai']}\r\n"
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()


async def exchange(world: World, arm: Arm, client: Client, head: bytes) -> None:
    await client.ask("request", head + b"3\r\none\r\n")
    if not await client.goes_on(lambda: b"one" in world.upstream.received):
        return
    arm(Phase.UPLOADING)
    await client.send(b"3\r\ntwo\r\n")
    if not await client.goes_on(lambda: b"two" in world.upstream.received):
        return
    world.client_ended = True
    await client.send(b"0\r\n\r\n")
    if await client.goes_on(lambda: b"first" in client.seen.data):
        await answered(world, arm, client)


async def answered(world: World, arm: Arm, client: Client) -> None:
    arm(Phase.ANSWERING)
    world.upstream.may_go_on = True
    world.moved.set()
    await client.goes_on(lambda: client.seen.whole)


ALL = (explicit, http2, websocket, transparent, reverse, plain, opaque, in_body, denied)
