"""A stand-in between a store and the real OpenBao, which stalls the paths that it is told to."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

STALLS = ("hang", "drip head", "drip body")


class SlowFront:
    """Relays whole answers of OpenBao, except for paths in `stalls` (path -> one of STALLS)."""

    def __init__(self, upstream: str, stalls: dict[str, str]) -> None:
        address = urlsplit(upstream)
        self._upstream = (address.hostname, address.port)
        self.stalls = stalls
        self.answers: dict[str, bytes] = {}
        """What is said for a path instead of OpenBao's answer."""
        self.url = ""
        self.asked: Counter[str] = Counter()
        """How many requests came for each path."""
        self.stalled: Counter[str] = Counter()
        """How many connections are stalled at this moment, by path."""
        self.tokens: defaultdict[str, set[bytes]] = defaultdict(set)
        """Which tokens came with the requests for each path."""
        self._writers: set[asyncio.StreamWriter] = set()

    @classmethod
    @asynccontextmanager
    async def start(cls, upstream: str, stalls: dict[str, str] | None = None) -> AsyncIterator["SlowFront"]:
        front = cls(upstream, stalls or {})
        server = await asyncio.start_server(front._serve, "127.0.0.1", 0)
        front.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield front
        finally:
            server.close()
            for writer in front._writers:
                writer.close()
            async with asyncio.timeout(5):
                await server.wait_closed()  # one that was accepted at the last moment outlives the loop else

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection: the answer is relayed until OpenBao closes it."""
        request, *headers = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        path = request.split(b" ")[1].decode().removeprefix("/v1/secret/data/")
        self.asked[path] += 1
        self.tokens[path].update(
            line[14:].strip() for line in headers if line[:14].lower() == b"x-vault-token:"
        )
        if path in self.stalls:
            await self._stall(path, reader, writer)
            return
        if path in self.answers:
            writer.write(self.answers[path])
            return
        lengths = [int(line[15:]) for line in headers if line.lower().startswith(b"content-length:")]
        body = await reader.readexactly(sum(lengths))
        kept = [line for line in headers if not line.lower().startswith(b"connection:")]
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        upstream_writer.write(b"\r\n".join([request, b"Connection: close", *kept]) + body)
        writer.write(await upstream_reader.read(-1))
        upstream_writer.close()

    async def _stall(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.stalled[path] += 1
        gone = asyncio.ensure_future(reader.read())
        match self.stalls[path]:
            case "drip head":
                drops = iter(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 1000)
            case "drip body":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                drops = iter(b"{" + b" " * 1000)
            case _:
                drops = iter(b"")
        while not gone.done():
            if (drop := next(drops, None)) is not None:
                writer.write(bytes([drop]))
            await asyncio.wait({gone}, timeout=0.2)
        self.stalled[path] -= 1
