"""Listening sockets, and what each proves about the client that connects (its origins).

A session's own listener alone proves the session. Shared listeners prove a client certificate, a
platform token, or a source address on an interface where addresses cannot be spoofed.
"""

import asyncio
import hashlib
import logging
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import (
    Destination,
    Origin,
    OriginalDestination,
    OriginClass,
    Peer,
    RequestHead,
)
from coatcheck.decision.ratelimit import Rate, Rates
from coatcheck.planes.descriptors import is_spare
from coatcheck.planes.dns.message import MAX_QUERY
from coatcheck.planes.dns.resolver import Datagrams, Resolver
from coatcheck.planes.listeners.session_sockets import DNS, TRANSPARENT, Accept, SessionSockets, directory_of
from coatcheck.planes.mitm.connection import EgressConnection
from coatcheck.planes.mitm.plane import MitmPlane
from coatcheck.planes.mitm.refusal import FAILED, refusal_bytes
from coatcheck.planes.origins.original_destination import NotRedirected, from_kernel, from_proxy_header
from coatcheck.planes.sockets import answer_and_close, reset
from coatcheck.planes.upstream.upstream import STREAM_LIMIT

logger = logging.getLogger(__name__)

TRANSPARENT_LISTENER = "transparent"
"""The name of the shared listener for redirected connections, in the origins of class `address`."""
BACKLOG = 1024
"""Connections the kernel may hold for us while the loop is busy."""
MAX_CONNECTIONS = 2048
"""Client connections at once, about 150 KiB each with TLS. Above it: 503, so that revoking stays fast."""
HANDSHAKE_SECONDS = 10.0
"""For TLS with the proxy itself; asyncio's own 60 s would let silent clients hold six times as many."""
MAX_PER_SESSION = 256
RATE = Rate(count=50, period=1.0, burst=MAX_PER_SESSION)
"""New connections of one sandbox (I9): a TLS handshake takes milliseconds of the plane's core, and the plane
serves whatever is ready. This is a fifth of a slow core. Clients keep their connections; those that do not,
and loop, wait."""
MAX_PACED = 20_000
"""Sandboxes whose rate is remembered, about 3 MB."""
"""One sandbox cannot take them all."""
ANSWERING_SECONDS = 60.0
"""How long the listener of a session that is over goes on: its clients are told why, where a closed port says
nothing. Decisions know the session as over meanwhile, and refuse."""
MAX_ANSWERING = 256
"""Such listeners at once; beyond it the oldest is closed."""
RESERVED = 512
"""Of all connections, for sandboxes that have FEW: eight that take what they can would lock out the rest."""
FEW = 4
"""Enough to keep working while others take what they can."""

type Evidence = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[OriginalDestination | None]]
"""Finds out where a connection was going; None where it was meant for us. Raises NotRedirected."""


@dataclass(frozen=True, slots=True)
class SharedListener:
    """A TCP listener that several sandboxes use."""

    name: str
    host: str
    port: int
    trust_addresses: bool = False
    """The network in front of it makes source addresses unspoofable (a CNI, a veth with rp_filter)."""
    tls: ssl.SSLContext | None = None
    """A server context that demands and verifies client certificates (origin class mtls)."""
    transparent: bool = False
    """Connections come here by a redirect: their clients know of no proxy, and connecting directly is
    refused."""
    share_port: bool = False
    """Other daemons of this user may listen there as well; the kernel spreads connections over them."""


class Listeners:
    """All listening sockets of the daemon's plane. Belongs to the plane's loop."""

    def __init__(self, plane: MitmPlane, runtime: Path, resolver: Resolver) -> None:
        self._plane = plane
        self._runtime = runtime
        self._resolver = resolver
        self._shared: list[asyncio.Server] = []
        self._datagrams: list[asyncio.DatagramTransport] = []
        self._sessions: dict[str, SessionSockets] = {}
        self._answering: OrderedDict[str, tuple[SessionSockets, asyncio.TimerHandle]] = OrderedDict()
        """Of sessions that are over, the oldest first."""
        self._counts: dict[str, int] = {}
        self.rates: Rates[str] = Rates(RATE, MAX_PACED)
        self.open_connections = 0

    async def open_shared(self, listener: SharedListener) -> tuple[str, int]:
        """Listen; returns the bound (host, port). OSError when the address cannot be had."""
        evidence = _from_kernel if listener.transparent else _explicit

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, listener.name, _origins(listener, writer), evidence)

        server = await asyncio.start_server(
            accept,
            listener.host,
            listener.port,
            backlog=BACKLOG,
            limit=STREAM_LIMIT,
            ssl=listener.tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if listener.tls is not None else None,
            reuse_port=listener.share_port or None,
        )
        return self._keep_shared(server)

    async def open_dns(self, host: str, port: int) -> tuple[str, int]:
        """Answer DNS over TCP and UDP at one address; returns it as bound. OSError when it cannot be had."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._resolver.serve(reader, writer, writer.get_extra_info("peername")[0])

        bound = self._keep_shared(
            await asyncio.start_server(accept, host, port, backlog=BACKLOG, limit=2 * MAX_QUERY)
        )
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: Datagrams(self._resolver), local_addr=(host, bound[1])
        )
        self._datagrams.append(transport)
        return bound

    def _keep_shared(self, server: asyncio.Server) -> tuple[str, int]:
        self._shared.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        self._plane.upstream.own_listeners.add((host, port))
        return host, port

    async def open_unix(self, session_id: str) -> Path:
        """The session's own Unix socket, where its clients ask the proxy."""
        sockets = await self._begin(session_id)
        return await self._bind(sockets, session_id, "", self._accept(session_id, _explicit))

    async def open_sandbox(self, session_id: str) -> Path:
        """The same, and beside it one for redirected connections (`.t`: a PROXY header comes first) and one
        for DNS (`.d`), which a whole sandbox needs whose programs know of no proxy."""

        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sockets.asking.add(writer)
            try:
                await self._resolver.serve(reader, writer, session_id)
            finally:
                sockets.asking.discard(writer)

        sockets = await self._begin(session_id)
        try:
            path = await self._bind(sockets, session_id, "", self._accept(session_id, _explicit))
            await self.open_redirected(session_id)
            await self._bind(sockets, session_id, DNS, ask)
        except BaseException:
            self.close_session(session_id)
            raise
        return path

    async def open_redirected(self, session_id: str) -> Path:
        """Beside the session's own socket, one for redirected connections: a PROXY header comes first."""
        accept = self._accept(session_id, lambda reader, _: from_proxy_header(reader))
        return await self._bind(self._sessions[session_id], session_id, TRANSPARENT, accept)

    async def open_tcp(self, session_id: str, port: int = 0) -> tuple[str, int]:
        """The session's own loopback port, for clients that know no Unix socket. 0: any free one."""
        sockets = await self._begin(session_id)
        self._make_way(("127.0.0.1", port))
        server = await asyncio.start_server(
            self._accept(session_id, _explicit),
            "127.0.0.1",
            port,
            backlog=BACKLOG,
            limit=STREAM_LIMIT,
            family=socket.AF_INET,
        )
        address: tuple[str, int] = server.sockets[0].getsockname()
        sockets.servers.append(server)
        sockets.address = address
        self._plane.upstream.own_listeners.add(address)
        self._sessions[session_id] = sockets
        return address

    async def _begin(self, session_id: str) -> SessionSockets:
        if self._plane.session_cas is not None:
            await self._plane.session_cas.open(session_id)
        return SessionSockets()

    async def _bind(self, sockets: SessionSockets, session_id: str, purpose: str, accept: Accept) -> Path:
        # Without its prefix: the kernel takes 107 bytes of path.
        at = directory_of(self._runtime) / session_id.removeprefix("ses_")
        path = await sockets.bind(at, purpose, accept, backlog=BACKLOG, limit=STREAM_LIMIT)
        self._sessions[session_id] = sockets
        return path

    def _accept(self, session_id: str, evidence: Evidence) -> Accept:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            origins = (Origin(OriginClass.SOCKET, session_id),)
            await self._serve(reader, writer, session_id, origins, evidence)

        return accept

    def endpoint(self, session_id: str, purpose: str = "") -> str | None:
        """The URL of a session's own listener; `purpose` is the suffix of one of a sandbox's others."""
        sockets = self._sessions.get(session_id)
        return sockets.url(purpose) if sockets is not None else None

    def close_session(self, session_id: str) -> None:
        """At once: nothing listens there any more."""
        if self._plane.session_cas is not None:
            self._plane.session_cas.close(session_id)
        sockets = self._sessions.pop(session_id, None)
        if sockets is not None:
            self._close(sockets)

    def session_over(self, session_id: str) -> None:
        """It is over: its listener answers new connections with the reason for a while, then it is closed."""
        if self._plane.session_cas is not None:
            self._plane.session_cas.close(session_id)
        sockets = self._sessions.pop(session_id, None)
        if sockets is None:
            return
        if len(sockets.paths) > 1:  # a whole sandbox, which ends with its session
            self._close(sockets)
            return
        timer = asyncio.get_running_loop().call_later(ANSWERING_SECONDS, self._stop_answering, session_id)
        self._answering[session_id] = sockets, timer
        if len(self._answering) > MAX_ANSWERING:
            self._stop_answering(next(iter(self._answering)))

    def _stop_answering(self, session_id: str) -> None:
        sockets, timer = self._answering.pop(session_id)
        timer.cancel()
        self._close(sockets)

    def _make_way(self, address: tuple[str, int]) -> None:
        """A live session's address is its own."""
        for session_id, (sockets, _) in tuple(self._answering.items()):
            if sockets.address == address:
                self._stop_answering(session_id)

    def _close(self, sockets: SessionSockets) -> None:
        sockets.close()
        if sockets.address is not None:
            self._plane.upstream.own_listeners.discard(sockets.address)

    def keep_out(self, host: str, port: int) -> None:
        """No sandbox may have this address dialled: it is the control API's."""
        self._plane.upstream.own_listeners.add((host, port))

    def stop_accepting(self) -> None:
        """Drain: no new connections; those that are open finish."""
        for server in self._shared:
            server.close()
        for transport in self._datagrams:
            transport.close()
        for session_id in tuple(self._sessions):
            self.close_session(session_id)
        for session_id in tuple(self._answering):
            self._stop_answering(session_id)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        listener: str,
        origins: tuple[Origin, ...],
        evidence: Evidence,
    ) -> None:
        # On a shared listener the sandbox may only be known later: until then one source address counts as
        # one.
        key = origins[0].value if origins else f"{listener}|{writer.get_extra_info('peername')[0]}"
        taken = self._counts.get(key, 0)
        room = MAX_CONNECTIONS - self.open_connections - (RESERVED if taken >= FEW else 0)
        number = writer.get_extra_info("socket").fileno()
        if room <= 0 or taken >= MAX_PER_SESSION or not is_spare(number, greedy=taken >= FEW):
            writer.write(refusal_bytes(Deny(Reason.CAPACITY, retry_after=1.0)))
            writer.close()
            return
        self._counts[key] = taken + 1
        self.open_connections += 1
        connection = None
        try:
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(listener, origins, await evidence(reader, writer))
            connection = EgressConnection(self._plane.shared, reader, writer, peer)
            self._plane.register(connection)
            if wait := self.rates.delay(key, time.monotonic()):
                await asyncio.sleep(wait)
            await connection.handle_client()
        except NotRedirected as why:
            denial = Deny(Reason.OWN_SURFACE, str(why))
            await self._refuse(reader, writer, Peer(listener, origins), denial)
        except Exception:
            logger.exception("a connection ended badly")
            self._plane.shared.failed_closed()
            if connection is None:
                await self._refuse(reader, writer, Peer(listener, origins), FAILED)
            else:
                connection.fail(FAILED)
        finally:
            try:
                if connection is not None:
                    self._plane.forget(connection)
                await self._end(reader, writer, connection)
            finally:
                self.open_connections -= 1
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer, denial: Deny
    ) -> None:
        nowhere, nothing = Destination("http", "", 0), RequestHead("-", "", ())
        call = self._plane.exchange.refused(peer, nowhere, nothing, denial)
        await answer_and_close(reader, writer, refusal_bytes(denial, call.request_id))

    async def _end(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: EgressConnection | None
    ) -> None:
        """Close the client's side, however the connection ended; a client that was told why may read it
        first."""
        if connection is not None and connection.link.ending.told:
            await answer_and_close(reader, writer, b"")
        elif not writer.is_closing():
            reset(writer)


async def _explicit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The client knows of its proxy, and asks it."""


async def _from_kernel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> OriginalDestination:
    return from_kernel(writer.get_extra_info("socket"))


def _origins(listener: SharedListener, writer: asyncio.StreamWriter) -> tuple[Origin, ...]:
    """What this connection proves before its first byte."""
    origins: list[Origin] = []
    tls = writer.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if certificate:
        origins.append(Origin(OriginClass.MTLS, hashlib.sha256(certificate).hexdigest()))
    peer = writer.get_extra_info("peername")
    if listener.trust_addresses and isinstance(peer, tuple):
        origins.append(Origin(OriginClass.ADDRESS, f"{listener.name}|{peer[0]}"))
    return tuple(origins)
