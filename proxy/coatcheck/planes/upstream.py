"""Dialling out: resolve the policy's name ourselves, screen every address, dial what was screened (I2).

mitmproxy would resolve again inside `asyncio.open_connection`, after any check (notes/mitmproxy 4.4);
here the address that was screened is the address that is dialled, and the peer is looked at again
once connected. `Server.address` stays the *name*, so that upstream keep-alive works.
"""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

import aiohappyeyeballs
from mitmproxy_rs.dns import DnsResolver

from coatcheck.decision.address import Network, screen
from coatcheck.decision.verdict import Reason

STREAM_LIMIT = 65_536
"""asyncio's read buffer a connection: bounds what a fast upstream can pile up here (I9)."""


class UpstreamRefused(Exception):
    """The connection was not made. `str()` is for the operator; the sandbox sees only `reason`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


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
    resolve_timeout: float = 5.0
    connect_timeout: float = 10.0


class Upstream:
    """Makes screened connections. `closed_ports` are our own listeners, never a destination."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._resolver = DnsResolver(name_servers=list(settings.name_servers) or None, use_hosts_file=True)
        self.own_listeners: set[tuple[str, int]] = set()

    async def addresses(self, host: str, port: int) -> list[tuple[str, int]]:
        """Every screened address of `host`; raises UpstreamRefused if one must not be dialled."""
        override = self._settings.connect_to.get(f"{host}:{port}")
        if override is not None:
            found = [override]
        elif _is_address(host):
            found = [(host, port)]
        else:
            found = [(address, port) for address in await self._resolve(host)]
        for address, to in found:
            why = screen(address, self._settings.allowed_networks)
            if why is not None:
                raise UpstreamRefused(Reason.ADDRESS_REFUSED, f"{host} resolves to {address}: {why}")
            self._refuse_own(address, to)
        return found

    def _refuse_own(self, address: str, port: int) -> None:
        """Our listeners are no destination, whatever an allowlist says (CVE-2025-23217's lesson)."""
        for own, own_port in self.own_listeners:
            if own_port == port and own in (address, "0.0.0.0", "::", ""):  # noqa: S104
                raise UpstreamRefused(Reason.OWN_SURFACE, f"{address}:{port} is a listener of this proxy")

    async def _resolve(self, host: str) -> list[str]:
        try:
            async with asyncio.timeout(self._settings.resolve_timeout):
                # A trailing dot keeps the system's search domains out: `api.openai.com.corp.example`
                # is another name. The policy's name was canonical, so it has no dot of its own.
                found = await self._resolver.lookup_ip(host + ".")
        except TimeoutError:
            raise UpstreamRefused(Reason.UPSTREAM_TIMEOUT, f"resolving {host} took too long") from None
        except OSError as error:
            raise UpstreamRefused(Reason.UPSTREAM_UNREACHABLE, f"cannot resolve {host}: {error}") from None
        if not found:
            raise UpstreamRefused(Reason.UPSTREAM_UNREACHABLE, f"{host} has no address")
        return [str(address) for address in found]

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection to a screened address of `host`. Raises UpstreamRefused."""
        addresses = await self.addresses(host, port)
        infos = [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, to))
            for address, to in addresses
        ]
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                sock = await aiohappyeyeballs.start_connection(
                    infos,
                    happy_eyeballs_delay=0.25,
                    interleave=1,
                )
        except TimeoutError:
            raise UpstreamRefused(Reason.UPSTREAM_TIMEOUT, f"connecting to {host} took too long") from None
        except OSError as error:
            raise UpstreamRefused(Reason.UPSTREAM_UNREACHABLE, f"cannot connect to {host}: {error}") from None
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
