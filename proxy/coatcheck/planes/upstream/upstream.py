"""Dialling out: resolve the policy's name ourselves, screen every address, dial what was screened (I2).

mitmproxy would resolve again inside `asyncio.open_connection`, after any check; here the address that was
screened is the address that is dialled, and the peer's address is checked again once connected.
`Server.address` stays the *name*, so that upstream keep-alive works.
"""

import asyncio
import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

import aiohappyeyeballs

from coatcheck.decision.address import Network, screen
from coatcheck.decision.denial import Reason
from coatcheck.planes.descriptors import is_spare
from coatcheck.planes.upstream.name_servers import NameServers
from coatcheck.planes.upstream.parent_proxy import ParentProxy, UpstreamRefused, open_tunnel

OUT_OF_DESCRIPTORS = "the daemon has no descriptor left for it: see `coatcheck doctor`, open files"
STREAM_LIMIT = 65_536
"""asyncio's read buffer a connection: bounds what a fast upstream can pile up here (I9)."""


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """How names become connections. Times in seconds."""

    allowed_networks: tuple[Network, ...] = ()
    """Ranges beyond the public internet that may be dialled (on-premises)."""
    connect_to: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """`host:port` -> (address, port) to dial instead of resolving, as curl's --connect-to. The name is
    still what TLS must prove, and the address is still screened."""
    name_servers: tuple[str, ...] = ()
    """Empty: the system's."""
    parent: ParentProxy | None = None
    """All connections leave through it, but for those in `connect_to`: then names are not resolved here,
    and the parent must screen the addresses behind them."""
    resolve_timeout: float = 5.0
    connect_timeout: float = 10.0


class Upstream:
    """Makes screened connections. `closed_ports` are our own listeners, never a destination."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.settings = settings
        self.resolver = NameServers(settings.name_servers)
        self.own_listeners: set[tuple[str, int]] = set()

    async def addresses(self, host: str, port: int) -> list[tuple[str, int]]:
        """Every screened address of `host`; raises UpstreamRefused if one must not be dialled."""
        override = self.settings.connect_to.get(f"{host}:{port}")
        if override is not None:
            found = [override]
        elif _is_address(host):
            found = [(host, port)]
        else:
            found = [(address, port) for address in await self._resolve(host)]
        for address, to in found:
            self._screen(host, address)
            self._refuse_own(address, to)
        return found

    def _screen(self, host: str, address: str) -> None:
        why = screen(address, self.settings.allowed_networks)
        if why is not None:
            raise UpstreamRefused(Reason.ADDRESS_REFUSED, f"{host} resolves to {address}: {why}")

    def _refuse_own(self, address: str, port: int) -> None:
        """Our own listeners are never a destination, whatever an allowlist says (see CVE-2025-23217)."""
        for own, own_port in self.own_listeners:
            if own_port == port and own in (address, "0.0.0.0", "::", ""):  # noqa: S104
                raise UpstreamRefused(Reason.OWN_SURFACE, f"{address}:{port} is a listener of this proxy")

    async def _resolve(self, host: str) -> list[str]:
        try:
            async with asyncio.timeout(self.settings.resolve_timeout):
                # A trailing dot keeps the system's search domains out: `api.openai.com.corp.example`
                # is another name. The policy's name was canonical, so it has no dot of its own.
                found = await self.resolver.lookup_ip(host + ".")
        except TimeoutError:
            raise UpstreamRefused(Reason.UPSTREAM_TIMEOUT, f"resolving {host} took too long") from None
        except OSError as error:
            raise UpstreamRefused(Reason.UPSTREAM_UNREACHABLE, f"cannot resolve {host}: {error}") from None
        if not found:
            raise UpstreamRefused(Reason.UPSTREAM_UNREACHABLE, f"{host} has no address")
        return [str(address) for address in found]

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection to a screened address of `host`. Raises UpstreamRefused."""
        parent = self.settings.parent
        if parent is not None and f"{host}:{port}" not in self.settings.connect_to:
            return await self._through(parent, host, port)
        return await self._dial(host, await self.addresses(host, port))

    async def _through(
        self, parent: ParentProxy, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if _is_address(host):
            self._screen(host, host)
            self._refuse_own(host, port)
        found = [parent.host] if _is_address(parent.host) else await self._resolve(parent.host)
        for address in found:  # the operator chose the parent: not screened, but never ourselves
            self._refuse_own(address, parent.port)
        reader, writer = await self._dial("the parent proxy", [(address, parent.port) for address in found])
        try:
            async with asyncio.timeout(self.settings.connect_timeout):
                await open_tunnel(parent, reader, writer, host, port)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, TimeoutError):
                detail = "the parent proxy did not answer CONNECT in time"
                raise UpstreamRefused(Reason.UPSTREAM_TIMEOUT, detail) from None
            raise
        return reader, writer

    async def _dial(
        self, host: str, addresses: list[tuple[str, int]]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        infos = [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, to))
            for address, to in addresses
        ]
        try:
            async with asyncio.timeout(self.settings.connect_timeout):
                sock = await aiohappyeyeballs.start_connection(
                    infos,
                    happy_eyeballs_delay=0.25,
                    interleave=1,
                )
        except TimeoutError:
            raise UpstreamRefused(Reason.UPSTREAM_TIMEOUT, f"connecting to {host} took too long") from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise UpstreamRefused(Reason.CAPACITY, OUT_OF_DESCRIPTORS) from None
            raise UpstreamRefused(Reason.UPSTREAM_UNREACHABLE, f"cannot connect to {host}: {error}") from None
        if not is_spare(sock.fileno()):
            sock.close()
            raise UpstreamRefused(Reason.CAPACITY, OUT_OF_DESCRIPTORS)
        peer = sock.getpeername()[0]
        if peer not in {address for address, _ in addresses}:
            sock.close()
            raise UpstreamRefused(Reason.ADDRESS_REFUSED, f"{host}: connected to unexpected {peer}")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return await asyncio.open_connection(sock=sock, limit=STREAM_LIMIT)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


__all__ = ["ParentProxy", "Upstream", "UpstreamRefused", "UpstreamSettings"]
