"""The metadata service on a Unix socket, where each connection is what a guest's stream would be."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coatcheck.metadata.http import Client
from coatcheck.metadata.service import MetadataService


@asynccontextmanager
async def metadata_on(service: MetadataService, who: Client, path: Path) -> AsyncIterator[Path]:
    """`path` leads to the service as `who`."""

    async def accept(listening: socket.socket) -> None:
        while True:
            connected, _ = await asyncio.get_running_loop().sock_accept(listening)
            await service.serve(connected, who)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(256)
        listening.setblocking(False)
        accepting = asyncio.create_task(accept(listening))
        try:
            yield path
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)


async def ask(path: Path, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower case) and body of the first answer to `raw`; (0, {}, b"") for none."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(raw)
        await writer.drain()
        return await answer(reader)
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(20):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, {}, b""
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body


def request(method: str, path: str, *headers: str, host: str = "169.254.169.254", body: bytes = b"") -> bytes:
    """One request's bytes."""
    length = (f"Content-Length: {len(body)}",) if body else ()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *length, *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body
