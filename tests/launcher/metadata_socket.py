"""The metadata service on a Unix socket, where each connection is what a guest's stream would be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coatcheck.launcher.channel import Chunk, Note, Stream
from coatcheck.launcher.metadata import MetadataService
from coatcheck.launcher.spec import Identity


def somebody(name: str, session: str) -> Identity:
    """An identity inside, as the supervisor knows it."""
    nowhere = Path("/nowhere")
    return Identity(name, 1000, session, nowhere, {}, nowhere, nowhere, nowhere)


class SocketStream(Stream):
    """A connection with the face of a `launcher.channel.Stream`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> Chunk | Note | None:
        data = await self._reader.read(1024)
        return Chunk(data) if data else None

    async def write(self, data: bytes, flags: int = 0) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()


@asynccontextmanager
async def metadata_on(service: MetadataService, who: Identity, path: Path) -> AsyncIterator[Path]:
    """`path` leads to the service as `who`."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await service.serve(SocketStream(reader, writer), who)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield path
    finally:
        server.close()


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
