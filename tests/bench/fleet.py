"""A `coatcheck serve` of its own with as many sandboxes as are wanted, and an upstream in this process."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trustme

from coatcheck.client.control import ControlClient
from tests.bench.proxies import TICKS
from tests.system.e2e.daemon_process import DaemonProcess, daemon_process
from tests.upstreams import UpstreamTls

HOST = "api.openai.com"
SECRET = "fleet-secret-0123456789abcdef0123456789"
POLICY = f"""
version: 1
owner: tests
credentials:
  openai:
    secret: file:openai/key#value
    hosts: [{HOST}]
    inject: {{header: Authorization, value: "Bearer {{secret}}"}}
    env: OPENAI_API_KEY
rules:
  - name: api
    hosts: [{HOST}]
    methods: [GET, POST]
    credentials: [openai]
    limits: {{requests: 1000000/second}}
"""
AT_ONCE = 4
"""Calls of the control API at a time."""


@dataclass(frozen=True, slots=True)
class Member:
    """A sandbox: what it was given, and where its connections come from."""

    id: str
    url: str
    handle: str = field(repr=False)
    source: str = ""
    """Its address on the shared listener; empty where it has a socket of its own."""

    async def open(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """TLS with HOST, through the proxy. OSError when it is not let in."""
        reader, writer = await self.connect()
        try:
            writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
            if b" 200 " not in (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]:
                raise ConnectionRefusedError("CONNECT was refused")
            await writer.start_tls(context, server_hostname=HOST)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, asyncio.IncompleteReadError):
                raise ConnectionResetError("the connection ended before an answer") from None
            raise
        return reader, writer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the proxy, without a word."""
        to = urlsplit(self.url)
        if to.scheme == "unix":
            return await asyncio.open_unix_connection(to.path)
        source = (self.source, 0) if self.source else None
        return await asyncio.open_connection(to.hostname, to.port, local_addr=source)

    def request(self, path: str = "/small", handle: str = "") -> bytes:
        shown = handle or self.handle
        return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {shown}\r\n\r\n".encode()

    async def ask(self, context: ssl.SSLContext, handle: str = "") -> str:
        """`200`, another status with its reason, or the error's name: one request on its own connection."""
        try:
            reader, writer = await self.open(context)
        except OSError as error:
            return type(error).__name__
        try:
            writer.write(self.request(handle=handle))
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        except (OSError, asyncio.IncompleteReadError) as error:
            return type(error).__name__
        finally:
            writer.transport.abort()
        reason = head.partition("coatcheck-reason: ")[2].partition("\r\n")[0]
        return f"{head.split()[1]} {reason}".strip()


@dataclass
class Fleet:
    daemon: DaemonProcess
    control: ControlClient
    trust: ssl.SSLContext | None = None
    members: list[Member] = field(default_factory=list)

    def open_one(self, number: int, *, own: bool = False) -> Member:
        """Blocks. `own`: with a Unix socket of its own, else by its address on the shared listener."""
        source = f"127.{1 + number // 65_536}.{number // 256 % 256}.{number % 256}"
        wanted: dict[str, Any] = {"listen": "unix"}
        if not own:
            wanted = {"origin": {"class": "address", "value": f"proxy|{source}"}}
        opened = self.control.open_session(
            tenant=f"tenant-{number % 20}", subject=f"agent-{number}", policy="default", **wanted
        )
        if self.trust is None:
            self.trust = ssl.create_default_context(cafile=opened["proxy"]["ca"])
        handle = opened["handles"]["openai"]["value"]
        return Member(opened["session"]["id"], opened["proxy"]["url"], handle, "" if own else source)

    async def open_many(self, numbers: Iterable[int], *, own: bool = False) -> list[Member]:
        """Opens them, adds them to `members`, and returns them."""
        waiting = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Member:
            async with waiting:
                return await asyncio.to_thread(self.open_one, number, own=own)

        opened = await asyncio.gather(*(one(number) for number in numbers))
        self.members += opened
        return opened

    @property
    def context(self) -> ssl.SSLContext:
        assert self.trust is not None, "no session was opened yet"
        return self.trust

    # --- what /proc says of the daemon ---------------------------------------------------------------

    @property
    def _proc(self) -> Path:
        assert self.daemon.process is not None
        return Path(f"/proc/{self.daemon.process.pid}")

    def cpu_seconds(self) -> float:
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Resident MiB."""
        status = (self._proc / "status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def descriptors(self) -> int:
        return len(os.listdir(self._proc / "fd"))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """`/small`: 1 KiB. `/large`: 8 MiB. `/stream`: twenty events in a second. Reads bodies."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            path, _, length = head.split()[1], *head.partition("content-length: ")[1:]
            if f"bearer {SECRET}" not in head:
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                continue
            left = int(length.split()[0]) if length else 0
            while left > 0 and (data := await reader.read(min(left, 65_536))):
                left -= len(data)
            if path == "/stream":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(20):
                    writer.write(b"c\r\ndata: tick\n\n\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)
                writer.write(b"0\r\n\r\n")
                continue
            size = {"/small": 1024, "/large": 8 << 20}.get(path, 2)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(0, size, 65_536):
                writer.write(b"o" * min(size, 65_536))
                await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.transport.abort()


@asynccontextmanager
async def upstream(directory: Path) -> AsyncIterator[tuple[UpstreamTls, int]]:
    """Its certificate's files and its port, until the end of the block."""
    files = UpstreamTls(directory / "cert.pem", directory / "key.pem", directory / "upstream-ca.pem")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(files.ca)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(tls)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, backlog=1024)
    try:
        yield files, server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def running_fleet(
    directory: Path, max_sessions: int = 20_000, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[Fleet]:
    """A daemon whose shared listener trusts source addresses; without sessions yet. `settings`: more."""
    directory.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        files, port = await stack.enter_async_context(upstream(directory))
        daemon = await stack.enter_async_context(
            daemon_process(
                directory / "d",
                directory / "secrets",
                POLICY,
                key=SECRET,
                upstream_tls=files,
                port=port,
                proxy_port="0",
                proxy_trust_addresses="true",
                session_lease="43200",
                max_sessions=str(max_sessions),
                **(settings or {}),
            )
        )
        yield Fleet(daemon, ControlClient(directory / "d/run/control.sock"))
