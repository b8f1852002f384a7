"""A small real CONNECT proxy, as corporate networks have them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """Leads every name to a loopback port of the test's."""

    ports: Mapping[str, int]
    """`host:port` -> loopback port."""
    answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
    """To CONNECT; an empty one means silence."""
    heads: list[str] = field(default_factory=list)
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.heads.append(head)
            if not self.answer:
                await reader.read()
                return
            writer.write(self.answer)
            await writer.drain()
            if b" 200 " not in self.answer:
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.ports[head.split()[1]])
            try:
                await asyncio.gather(relay(reader, up_writer), relay(up_reader, writer))
            finally:
                up_writer.close()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def connect_proxy(
    ports: Mapping[str, int], answer: bytes = ConnectProxy.answer
) -> AsyncIterator[ConnectProxy]:
    proxy = ConnectProxy(ports, answer)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for writer in proxy.writers:
            writer.transport.abort()
