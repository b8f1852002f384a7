"""Listening sockets, and what each proves about who connects (DESIGN 1, origin).

A session's own listener proves the session by itself. Shared listeners prove a client certificate, a
platform token, or a source address on an interface where addresses cannot be spoofed.
"""

import asyncio
import hashlib
import logging
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.verdict import Deny, Reason
from coatcheck.planes.connection import EgressConnection
from coatcheck.planes.mitm import MitmPlane
from coatcheck.planes.refusal import refusal_bytes
from coatcheck.planes.sockets import reset
from coatcheck.planes.upstream import STREAM_LIMIT

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections the kernel may hold for us while the loop is busy."""
MAX_CONNECTIONS = 2048
"""Client connections at once, about 150 KiB each with TLS. Above it: 503, so that revoking stays fast."""
HANDSHAKE_SECONDS = 10.0
"""For TLS with the proxy itself; asyncio's own 60 s would let silent clients hold six times as many."""
MAX_SOCKET_PATH = 107
"""Bytes, from sockaddr_un on Linux."""
MAX_PER_SESSION = 256
"""One sandbox cannot take them all."""


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


class Listeners:
    """All listening sockets of the daemon's plane. Belongs to the plane's loop."""

    def __init__(self, plane: MitmPlane, runtime: Path) -> None:
        self._plane = plane
        self._runtime = runtime
        self._shared: list[asyncio.Server] = []
        self._sessions: dict[str, tuple[asyncio.Server, Path | None, tuple[str, int] | None]] = {}
        self._counts: dict[str, int] = {}

    async def open_shared(self, listener: SharedListener) -> tuple[str, int]:
        """Listen; returns the bound (host, port). OSError when the address cannot be had."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, listener.name, _origins(listener, writer))

        server = await asyncio.start_server(
            accept,
            listener.host,
            listener.port,
            backlog=BACKLOG,
            limit=STREAM_LIMIT,
            ssl=listener.tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if listener.tls is not None else None,
        )
        self._shared.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        self._plane.upstream.own_listeners.add((host, port))
        return host, port

    async def open_unix(self, session_id: str) -> Path:
        """The session's own Unix socket. The directory is ours alone, so that no other user can come to
        the socket; whoever runs the sandbox hands it in (a bind mount needs no way through the path)."""
        await self._open_ca(session_id)
        directory = self._runtime / "sessions"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        path = directory / session_id.removeprefix("ses_")  # short: the kernel takes 107 bytes of path
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise OSError(
                f"the path {path} is too long for a socket: set COATCHECK_RUNTIME_DIR to a shorter one"
            )
        path.unlink(missing_ok=True)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, session_id, (Origin(OriginClass.SOCKET, session_id),))

        server = await asyncio.start_unix_server(accept, path, backlog=BACKLOG, limit=STREAM_LIMIT)
        os.chmod(path, 0o666)  # noqa: S103 - the sandbox's user is not ours; the directory is 0700
        self._sessions[session_id] = (server, path, None)
        return path

    async def open_tcp(self, session_id: str, port: int = 0) -> tuple[str, int]:
        """The session's own loopback port, for clients that know no Unix socket. 0: any free one."""
        await self._open_ca(session_id)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, session_id, (Origin(OriginClass.SOCKET, session_id),))

        server = await asyncio.start_server(
            accept, "127.0.0.1", port, backlog=BACKLOG, limit=STREAM_LIMIT, family=socket.AF_INET
        )
        address: tuple[str, int] = server.sockets[0].getsockname()
        self._plane.upstream.own_listeners.add(address)
        self._sessions[session_id] = (server, None, address)
        return address

    async def _open_ca(self, session_id: str) -> None:
        if self._plane.session_cas is not None:
            await self._plane.session_cas.open(session_id)

    def endpoint(self, session_id: str) -> str | None:
        """The URL of a session's own listener."""
        entry = self._sessions.get(session_id)
        if entry is None:
            return None
        _, path, address = entry
        return (
            f"unix://{path}" if path is not None else f"http://{address[0]}:{address[1]}" if address else None
        )

    def close_session(self, session_id: str) -> None:
        if self._plane.session_cas is not None:
            self._plane.session_cas.close(session_id)
        entry = self._sessions.pop(session_id, None)
        if entry is None:
            return
        server, path, address = entry
        server.close()
        if path is not None:
            path.unlink(missing_ok=True)
        if address is not None:
            self._plane.upstream.own_listeners.discard(address)

    def keep_out(self, host: str, port: int) -> None:
        """No sandbox may have this address dialled: it is the control API's."""
        self._plane.upstream.own_listeners.add((host, port))

    def stop_accepting(self) -> None:
        """Drain: no new connections; those that are open finish."""
        for server in self._shared:
            server.close()
        for session_id in tuple(self._sessions):
            self.close_session(session_id)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        listener: str,
        origins: tuple[Origin, ...],
    ) -> None:
        # On a shared listener who it is may only be known later: then one source address is one sandbox.
        key = origins[0].value if origins else f"{listener}|{writer.get_extra_info('peername')[0]}"
        taken = self._counts.get(key, 0)
        if len(self._plane.connections) >= MAX_CONNECTIONS or taken >= MAX_PER_SESSION:
            writer.write(refusal_bytes(Deny(Reason.CAPACITY, retry_after=1.0)))
            writer.close()
            return
        self._counts[key] = taken + 1
        link = None
        try:
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = EgressConnection(self._plane, reader, writer, listener, origins)
            self._plane.register(link)
            await link.handle_client()
        except Exception:
            logger.exception("a connection ended badly")
            self._plane.failed_closed()
            reset(writer)
        finally:
            if link is not None:
                self._plane.forget(link)
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]


def _origins(listener: SharedListener, writer: asyncio.StreamWriter) -> tuple[Origin, ...]:
    """What this connection proves before it says a word."""
    origins: list[Origin] = []
    tls = writer.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if certificate:
        origins.append(Origin(OriginClass.MTLS, hashlib.sha256(certificate).hexdigest()))
    peer = writer.get_extra_info("peername")
    if listener.trust_addresses and isinstance(peer, tuple):
        origins.append(Origin(OriginClass.ADDRESS, f"{listener.name}|{peer[0]}"))
    return tuple(origins)
