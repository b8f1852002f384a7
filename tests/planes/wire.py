"""Bytes as an attacker would write them: a raw client through a sandbox's proxy."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.daemon import Sandbox, TestDaemon


def http_client(daemon: TestDaemon, sandbox: Sandbox, *, http2: bool = False) -> httpx.AsyncClient:
    """A client that trusts our CA and nothing else, through the sandbox's proxy."""
    trust = ssl.create_default_context(cafile=str(daemon.trust.ca))
    return httpx.AsyncClient(proxy=sandbox.proxy, verify=trust, http2=http2, timeout=10)


@dataclass
class Wire:
    """A connection through the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> str:
        """The next message's head; empty when the connection ends instead."""
        try:
            async with asyncio.timeout(5):
                return (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return ""

    async def rest(self) -> bytes:
        """Everything until the connection ends."""
        out = b""
        try:
            async with asyncio.timeout(5):
                while chunk := await self.reader.read(65536):
                    out += chunk
        except (ConnectionError, ssl.SSLError):
            pass
        return out

    async def soon(self) -> bytes:
        """What already exists, or comes within 50 ms."""
        try:
            async with asyncio.timeout(0.05):
                return await self.reader.read(65536)
        except (TimeoutError, ConnectionError, ssl.SSLError):
            return b""

    async def status(self) -> int:
        head = await self.head()
        return int(head.split()[1]) if head else 0

    async def refused_because(self) -> str:
        """The Coatcheck-Reason of the next answer; empty without one."""
        head = await self.head()
        for line in head.split("\r\n"):
            if line.lower().startswith("coatcheck-reason:"):
                return line.partition(":")[2].strip()
        return ""

    async def start_tls(self, trust: Path, name: str | None, alpn: tuple[str, ...] = ()) -> None:
        context = ssl.create_default_context(cafile=str(trust))
        if name is None:
            context.check_hostname = False
        if alpn:
            context.set_alpn_protocols(list(alpn))
        await self.writer.start_tls(context, server_hostname=name, ssl_handshake_timeout=5)


@asynccontextmanager
async def wire(sandbox: Sandbox) -> AsyncIterator[Wire]:
    """A plain connection to the proxy."""
    reader, writer = await asyncio.open_connection(*sandbox.address)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def tunnel(
    daemon: TestDaemon,
    sandbox: Sandbox,
    host: str = "api.openai.com",
    *,
    sni: str | None = "",
    alpn: tuple[str, ...] = (),
) -> AsyncIterator[Wire]:
    """TLS inside a CONNECT tunnel to `host`, with `sni` (empty: the host) as the name in its hello."""
    async with wire(sandbox) as raw:
        await raw.send(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
        assert await raw.status() == 200
        await raw.start_tls(daemon.trust.ca, host if sni == "" else sni, alpn)
        yield raw
