"""What the trap tests share: a request as bytes, and what must be true once an attack is over."""

import asyncio
from collections.abc import Callable

from tests.daemon import Sandbox, TestDaemon


def request(
    sandbox: Sandbox,
    method: str = "GET",
    path: str = "/v1/models",
    *,
    host: str = "api.openai.com",
    body: bytes = b"",
    extra: str = "",
) -> bytes:
    """A whole HTTP/1.1 request that shows the sandbox's OpenAI handle."""
    length = f"Content-Length: {len(body)}\r\n" if body or method in ("POST", "PUT") else ""
    handle = f"Authorization: Bearer {sandbox.handles['openai']}\r\n" if host == "api.openai.com" else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{handle}{length}{extra}\r\n".encode() + body


async def eventually(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    """Waits for something that is about to become true; fails with AssertionError when it does not."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        assert condition()


async def nothing_is_left(daemon: TestDaemon) -> None:
    """No connection, no call and no counter of running requests outlives the attack."""
    plane = daemon.plane
    assert plane is not None
    await eventually(lambda: not plane.connections)
    assert not daemon.exchange.calls
    assert not daemon.exchange.buckets.running
    await eventually(lambda: len(daemon.exchange.waiting) == 0)
