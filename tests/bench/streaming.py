"""Large bodies through a daemon in its own process, with a receiver that takes its time.

`python -m tests.bench.streaming` moves 1 GiB up and down over HTTP/1.1 and HTTP/2 to receivers that take
10 MB/s all the while, and prints how far the daemon's memory rose.
"""

import asyncio
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import h2.config
import h2.connection
import h2.events
import trustme

RATE = 10_000_000
"""Bytes a second that a slow receiver takes."""
PIECE = 65_536
HOSTS = {"http/1.1": "api.openai.com", "h2": "api.github.com"}


@dataclass
class Pace:
    """Lets a receiver take RATE for `seconds`, then as much as comes."""

    seconds: float
    started: float = field(default_factory=time.monotonic)
    taken: int = 0

    async def take(self, count: int) -> None:
        self.taken += count
        now = time.monotonic() - self.started
        if now < self.seconds:
            await asyncio.sleep(max(0.0, self.taken / RATE - now))


@dataclass
class Link:
    """One side of a connection that sends `size` bytes or receives them, over HTTP/1.1 or HTTP/2."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: int = 0
    received: int = 0

    async def put(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_body(self, size: int) -> None:
        piece = b"x" * PIECE
        while self.sent < size:
            part = piece[: size - self.sent]
            await self.put(part)
            self.sent += len(part)

    async def receive_body(self, size: int, pace: Pace) -> None:
        while self.received < size:
            data = await self.reader.read(PIECE)
            if not data:
                raise EOFError(f"the body ended after {self.received} bytes")
            self.received += len(data)
            await pace.take(len(data))


class H2Link(Link):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool) -> None:
        super().__init__(reader, writer)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client))
        self.h2.local_settings.initial_window_size = 1 << 20
        self.h2.local_settings.acknowledge()  # else h2 announces the old value and believes the new one
        self.stream = 0
        self.pace = Pace(0)
        self.ended = asyncio.Event()
        self.asked = asyncio.Event()
        self.moved = asyncio.Event()

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            await self.put(data)

    async def start(self) -> None:
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 20)
        await self.flush()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self.ended.set()
            self.moved.set()

    async def _run(self) -> None:
        while data := await self.reader.read(PIECE):
            for event in self.h2.receive_data(data):
                if isinstance(event, (h2.events.RequestReceived, h2.events.ResponseReceived)):
                    self.stream = event.stream_id
                    self.asked.set()
                elif isinstance(event, h2.events.DataReceived):
                    self.received += len(event.data)
                    await self.pace.take(len(event.data))
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                    self.ended.set()
            self.moved.set()
            await self.flush()

    async def send_body(self, size: int) -> None:
        piece = b"x" * PIECE
        while self.sent < size:
            room = min(size - self.sent, PIECE, self.h2.local_flow_control_window(self.stream))
            if room <= 0:
                self.moved.clear()
                await self.moved.wait()
                continue
            for start in range(0, room, frame := self.h2.max_outbound_frame_size):
                self.h2.send_data(self.stream, piece[start : min(start + frame, room)])
            self.sent += room
            await self.flush()  # of some frames at once, as senders do
        self.h2.end_stream(self.stream)
        await self.flush()


class Serves(Protocol):
    """Takes a connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...


class Upstream:
    """Serves GET with `size` bytes and takes PUT at `pace`."""

    def __init__(self) -> None:
        self.size = 0
        self.seconds = 0.0
        self.link: Link | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            await (self._h2(reader, writer) if chosen == "h2" else self._h1(reader, writer))
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async def _h1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            link = self.link = Link(reader, writer)
            if head.startswith(b"GET"):
                await link.put(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self.size)
                await link.send_body(self.size)
            else:
                await link.receive_body(self.size, Pace(self.seconds))
                await link.put(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def _h2(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self.link = H2Link(reader, writer, client=False)
        link.pace = Pace(self.seconds)
        await link.start()
        running = asyncio.create_task(link.run())
        await link.asked.wait()
        link.h2.send_headers(link.stream, [(":status", "200")])
        await link.flush()
        if link.ended.is_set():  # a GET
            await link.send_body(self.size)
        else:
            await link.ended.wait()
            link.h2.end_stream(link.stream)
            await link.flush()
        await running


@dataclass(frozen=True)
class Figures:
    rise: float
    """MiB by which the daemon's resident memory rose at its highest."""
    ahead: float
    """MB that the sender was ahead of the receiver at most, kernel buffers included."""
    seconds: float


class Bench:
    """A daemon, its process id, and an upstream."""

    def __init__(self, process: asyncio.subprocess.Process, upstream: Serves, ready: dict[str, Any]) -> None:
        self.process = process
        self.upstream = upstream
        self.sessions: list[dict[str, Any]] = ready["sessions"]
        self.ca = ready["ca"]

    async def open(
        self, protocol: str, session: int = 0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.sessions[session]["port"])
        host = HOSTS[protocol]
        writer.write(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols([protocol])
        await writer.start_tls(context, server_hostname=host)
        return reader, writer

    async def _tell(self, line: str) -> bytes:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()
        return await self.process.stdout.readline()

    async def another(self) -> int:
        """One more session: its place in `sessions`."""
        self.sessions.append(json.loads(await self._tell("open")))
        return len(self.sessions) - 1

    async def revoke(self, what: str, session: int) -> float:
        """`handle` and `session` of this one, `credential` and `everything` of all; the moment of the answer,
        by the daemon: here it would be read late."""
        ids = self.sessions[session]
        words = {"session": [ids["id"]], "handle": [ids["id"], ids["jti"]]}.get(what, [])
        word, moment = (await self._tell(" ".join((what, *words)))).split()
        assert word == b"done"
        return float(moment)

    async def move(self, protocol: str, direction: str, size: int, seconds: float) -> Figures:
        """One body of `size`; its receiver takes RATE for `seconds`."""
        assert isinstance(self.upstream, Upstream)
        self.upstream.size, self.upstream.seconds = size, seconds
        before = self._memory("VmRSS")
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        started = time.monotonic()
        reader, writer = await self.open(protocol)
        link = Link(reader, writer) if protocol == "http/1.1" else H2Link(reader, writer, client=True)
        watch = asyncio.create_task(self._watch(link, direction, seconds))
        run = self._h1 if protocol == "http/1.1" else self._h2
        await run(link, direction, size, seconds)  # type: ignore[arg-type]
        took = time.monotonic() - started
        watch.cancel()
        writer.transport.abort()
        ahead = max(self._ahead, default=0)
        return Figures((self._memory("VmHWM") - before) / 1024, ahead / 1e6, took)

    async def _watch(self, link: Link, direction: str, seconds: float) -> None:
        self._ahead: list[int] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(0.05)
            assert isinstance(self.upstream, Upstream)
            other = self.upstream.link
            if other is not None:
                sender, receiver = (link, other) if direction == "up" else (other, link)
                self._ahead.append(sender.sent - receiver.received)

    def _memory(self, name: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise ValueError(name)

    async def _h1(self, link: Link, direction: str, size: int, seconds: float) -> None:
        method = "GET" if direction == "down" else "PUT"
        length = f"Content-Length: {size}\r\n" if method == "PUT" else ""
        handle = self.sessions[0]["handle"]
        host = HOSTS["http/1.1"]
        head = f"{method} /b HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {handle}\r\n{length}\r\n"
        await link.put(head.encode())
        if method == "PUT":
            await link.send_body(size)
        assert b" 200 " in await link.reader.readuntil(b"\r\n\r\n")
        if method == "GET":
            await link.receive_body(size, Pace(seconds))

    async def _h2(self, link: H2Link, direction: str, size: int, seconds: float) -> None:
        await link.start()
        link.stream = 1
        handle = self.sessions[0]["handle"]
        fields = [
            (":method", "GET" if direction == "down" else "PUT"),
            (":scheme", "https"),
            (":authority", HOSTS["h2"]),
            (":path", "/b"),
            ("authorization", f"Bearer {handle}"),
        ]
        link.pace = Pace(seconds)
        link.h2.send_headers(1, fields, end_stream=direction == "down")
        await link.flush()
        running = asyncio.create_task(link.run())
        if direction == "up":
            await link.send_body(size)
        await link.ended.wait()
        if running.done():
            running.result()
        running.cancel()
        if direction == "down" and link.received != size:
            raise EOFError(f"the body ended after {link.received} bytes")
        assert link.asked.is_set()


@asynccontextmanager
async def bench(
    directory: Path, *, sessions: int = 1, upstream: Serves | None = None, core: int | None = None
) -> AsyncIterator[Bench]:
    """A running daemon below `directory`, on one core if it is given, and its upstream."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "upstream-ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*HOSTS.values()).configure_cert(tls)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    upstream = upstream or Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(("taskset", "-c", str(core)) if core is not None else ()),
        sys.executable, "-m", "tests.bench.stream_daemon", str(directory), str(directory / "upstream-ca.pem"),
        str(port), str(sessions), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield Bench(process, upstream, json.loads(await process.stdout.readline()))
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()
        server.close()


async def _main() -> None:
    for protocol in HOSTS:
        for direction in ("down", "up"):
            with tempfile.TemporaryDirectory() as directory:
                async with bench(Path(directory)) as running:
                    await running.move(protocol, direction, 50_000_000, 0)
                    figures = await running.move(protocol, direction, 1 << 30, 1e9)
            print(
                f"{protocol:8} {direction:4} 1 GiB at 10 MB/s: {figures.rise:.1f} MiB more memory, "
                f"sender at most {figures.ahead:.1f} MB ahead, {figures.seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    asyncio.run(_main())
