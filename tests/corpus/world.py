"""What is around the proxy under test: DNS that says what a case wants, and origins that remember."""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import trustme
from mitmproxy import dns
from mitmproxy.net.dns import response_codes, types

from tests.corpus import certificates
from tests.corpus.namespace import NAMES
from tests.corpus.schema import Answer, Origin

TLS_PORTS: Final = (443, 8443)
PLAIN_PORTS: Final = (80, 22, 8080, 8200)
PATIENCE: Final = 5.0
"""Seconds that an origin waits for a request that does not come."""
SERVERS: Final[dict[str, Any]] = {}
"""What serves a connection whose TLS chose that protocol, in place of HTTP/1.1; modules add theirs."""
OK: Final = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'


@dataclass(slots=True)
class Arrival:
    """One connection that reached an origin."""

    address: str
    port: int
    sni: str = ""
    secure: bool = False
    data: bytearray = field(default_factory=bytearray)
    heads: list[bytes] = field(default_factory=list)
    writer: asyncio.StreamWriter | None = None

    @property
    def names(self) -> frozenset[str]:
        """Whose address that is."""
        return frozenset(name for name, each in NAMES.items() if self.address in each)


class World:
    """Belongs to one event loop. `begin` is called before each case."""

    def __init__(self, directory: Path) -> None:
        self.ca = directory / "world-ca.pem"
        self.arrivals: list[Arrival] = []
        self.asked: Counter[tuple[str, str]] = Counter()
        """Questions that the DNS server heard: (name, type)."""
        self._resolver: Mapping[str, Answer] = {}
        self._origin = Origin()
        self._expand: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(self.ca)
        self._contexts = _contexts(self._authority)
        self._own: ssl.SSLContext | None = None

    def begin(self, resolver: Mapping[str, Answer], origin: Origin, expand: Any) -> None:
        """Forget the last case. `expand`: text -> bytes, for what origins say."""
        for task in tuple(self._tasks):
            task.cancel()
        self.arrivals = []
        self.asked = Counter()
        self._resolver = resolver
        self._origin = origin
        self._expand = expand
        shown = origin.certificate
        self._own = certificates.context(shown, self._authority) if shown is not None else None

    # --- origins -----------------------------------------------------------------------------------

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        arrival = Arrival(_plain(address), port, writer=writer)
        self.arrivals.append(arrival)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if port in TLS_PORTS:
                await self._secure(arrival, writer)
            await self._serve(arrival, reader, writer)
        except (OSError, ssl.SSLError, asyncio.CancelledError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _secure(self, arrival: Arrival, writer: asyncio.StreamWriter) -> None:
        context = self._own or self._contexts[min(arrival.names, default="")]
        context.set_alpn_protocols(self._origin.alpn)
        context.sni_callback = lambda _tls, name, _context: setattr(arrival, "sni", name or "")
        await writer.start_tls(context, ssl_handshake_timeout=PATIENCE)
        arrival.secure = True

    async def _serve(
        self, arrival: Arrival, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        tls = writer.get_extra_info("ssl_object")
        server = SERVERS.get(tls.selected_alpn_protocol()) if tls is not None else None
        if server is not None:
            await server(arrival, reader, writer, self._origin.script, self._expand)
            return
        while await self._head(arrival, reader):
            draining = asyncio.create_task(self._body(arrival, reader))
            try:
                if not await self._answer(arrival, reader, writer, draining):
                    return
            finally:
                draining.cancel()
                with suppress(asyncio.CancelledError):
                    await draining

    async def _head(self, arrival: Arrival, reader: asyncio.StreamReader) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            arrival.data += error.partial
            return False
        except asyncio.LimitOverrunError:
            arrival.data += await reader.read(1 << 20)
            return False
        arrival.data += head
        arrival.heads.append(head)
        return True

    async def _body(self, arrival: Arrival, reader: asyncio.StreamReader) -> None:
        """What follows a head is written down as it comes; a next head in it, too."""
        head = arrival.heads[-1].lower()
        if b"transfer-encoding" not in head and b"content-length" not in head and b"upgrade" not in head:
            return
        while data := await reader.read(65_536):
            arrival.data += data
            if b"\r\n\r\nGET " in data or b"\r\n\r\nPOST " in data:
                arrival.heads.append(data)

    async def _answer(
        self,
        arrival: Arrival,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        draining: "asyncio.Task[None]",
    ) -> bool:
        """False: this connection is over."""
        if not self._origin.script:
            answer = self._origin.answer
            writer.write(OK if answer is None else self._expand(answer))
            await writer.drain()
            if draining.done():
                return True
            await draining
            return False
        for step in self._origin.script:
            match step:
                case {"bytes": str(text)}:
                    writer.write(self._expand(text) * int(step.get("times", 1)))
                    await writer.drain()
                case {"pause": seconds}:
                    await asyncio.sleep(float(seconds))
                case {"until": str(text)}:
                    async with asyncio.timeout(PATIENCE):
                        while self._expand(text) not in arrival.data:
                            await asyncio.sleep(0.005)
                case {"read": "head"}:
                    draining.cancel()
                    if not await self._head(arrival, reader):
                        return False
                case {"read": "end"}:
                    await draining
                case {"close": True}:
                    writer.close()
                    return False
                case {"reset": True}:
                    return False
                case _:
                    raise ValueError(f"an origin cannot {step}")
        return True

    # --- DNS ---------------------------------------------------------------------------------------

    async def resolve(self, data: bytes) -> bytes | None:
        """The answer to one question."""
        question = dns.DNSMessage.unpack(data)
        asked = question.questions[0]
        name, kind = asked.name.lower().rstrip("."), types.to_str(asked.type)
        number = self.asked[name, kind]
        self.asked[name, kind] += 1
        said = self._resolver.get(name)
        if said is None:
            found = NAMES.get(name)
            said = Answer(answers=[[found[0]]] if found else [[]], code=0 if found else 3)
        await asyncio.sleep(said.delay)
        answers = said.answers[min(number, len(said.answers) - 1)] if said.answers else []
        records = []
        for text in answers:
            try:
                address = ip_address(text)
            except ValueError:
                records.append(dns.ResourceRecord.CNAME(asked.name, text, ttl=0))
                continue
            if (address.version, kind) == (4, "A"):
                records.append(dns.ResourceRecord.A(asked.name, address, ttl=0))  # type: ignore[arg-type]
            elif (address.version, kind) == (6, "AAAA"):
                records.append(dns.ResourceRecord.AAAA(asked.name, address, ttl=0))  # type: ignore[arg-type]
        if said.code:
            return question.fail(said.code).packed
        return question.succeed(records).packed


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, world: World) -> None:
        self._world = world
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        task = asyncio.create_task(self._answer(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, data: bytes, addr: Any) -> None:
        answer = await self._world.resolve(data)
        if answer is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(answer, addr)


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    """Everything listens, on every address of the namespace."""
    made = World(directory)
    servers = [
        await asyncio.start_server(made.accept, host, port, limit=1 << 20, backlog=1024)
        for port in (*TLS_PORTS, *PLAIN_PORTS)
        for host in ("0.0.0.0", "::")
    ]
    loop = asyncio.get_running_loop()
    udp, _ = await loop.create_datagram_endpoint(lambda: _Udp(made), ("127.0.0.1", 53))
    try:
        yield made
    finally:
        made.begin({}, Origin(), None)
        udp.close()
        for server in servers:
            server.close()


def _plain(address: str) -> str:
    parsed = ip_address(address)
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _contexts(authority: trustme.CA) -> dict[str, ssl.SSLContext]:
    """A certificate for each name, and one for all of them where somebody listens who should not be reached:
    an attacker's best case."""
    made = {}
    for name in ("", *NAMES):
        names = (
            [name, f"*.{name}"] if name else [*NAMES, *(f"*.{each}" for each in NAMES), "*.vendor.example"]
        )
        if name.endswith("vendor.example"):
            names.append("*.vendor.example")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued = authority.issue_cert(*names, *(NAMES[name] if name else ("127.0.0.1", "10.0.0.5")))
        issued.configure_cert(context)
        made[name] = context
    return made


__all__ = ["Arrival", "World", "response_codes", "world"]
