"""Where a connection was going before it came to us, according to the kernel or to our own mux.

This is evidence only. The name that the client sends is checked and dialled (I2); this must not contradict
it.
"""

import asyncio
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from coatcheck.decision.message import OriginalDestination

SO_ORIGINAL_DST = 80
"""linux/netfilter_ipv4.h; IP6T_SO_ORIGINAL_DST in linux/netfilter_ipv6/ip6_tables.h is the same number."""
HEADER_SECONDS = 5.0
"""For a PROXY header, which our own mux sends with the connection's first bytes."""

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_PROXY = 0x21
"""Version 2, command PROXY. LOCAL (0x20) names no destination."""
_ADDRESSES = {0x11: struct.Struct("!4s4sHH"), 0x21: struct.Struct("!16s16sHH")}
"""TCP over IPv4, TCP over IPv6: source, destination, source port, destination port."""


class NotRedirected(Exception):
    """Nothing says where this connection was going. `str()` is for the operator."""


def destination(address: str | bytes, port: int) -> OriginalDestination:
    """In the one form that is compared. ValueError for what is no address."""
    ip: IPv4Address | IPv6Address = ip_address(address)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return OriginalDestination(str(ip), port)


def from_kernel(sock: Any) -> OriginalDestination:
    """What a REDIRECT rule changed (nftables, iptables, ip6tables). NotRedirected when none did.

    Without a rule the kernel's connection tracking either knows nothing of the connection or names the
    address that we listen on: then the client connected to the listener itself.
    """
    try:
        if sock.family == socket.AF_INET6:
            raw = sock.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28)
            port, packed = struct.unpack("!2xH4x16s4x", raw)
        else:
            raw = sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
            port, packed = struct.unpack("!2xH4s8x", raw)
        own = destination(*sock.getsockname()[:2])
    except (OSError, struct.error, ValueError) as error:
        raise NotRedirected(f"the kernel knows of no redirect ({error})") from None
    original = destination(packed, port)
    if original == own:
        raise NotRedirected("the connection was made to this listener itself, not redirected to it")
    return original


async def from_proxy_header(reader: asyncio.StreamReader) -> OriginalDestination:
    """The destination in a PROXY protocol v2 header, which must come first, in one exact form.

    Raises NotRedirected, also when the header does not come in time.
    """
    try:
        async with asyncio.timeout(HEADER_SECONDS):
            head = await reader.readexactly(16)
            layout, length = _layout(head)
            return _destination(layout, await reader.readexactly(length))
    except TimeoutError:
        raise NotRedirected(f"no PROXY header within {HEADER_SECONDS:g} s") from None
    except asyncio.IncompleteReadError:
        raise NotRedirected("the connection ended in its PROXY header") from None


def _layout(head: bytes) -> tuple[struct.Struct, int]:
    """The layout of the rest, from the first 16 bytes. No options (TLV) are accepted: our mux writes none."""
    length = int.from_bytes(head[14:16])
    layout = _ADDRESSES.get(head[13])
    if not head.startswith(_SIGNATURE) or head[12] != _PROXY:
        raise NotRedirected("the connection does not begin with a PROXY v2 header")
    if layout is None or length != layout.size:
        raise NotRedirected("a PROXY header that is neither TCP4 nor TCP6, or not of their size")
    return layout, length


def _destination(layout: struct.Struct, addresses: bytes) -> OriginalDestination:
    _, packed, _, port = layout.unpack(addresses)
    if port == 0:
        raise NotRedirected("a PROXY header that names no port")
    return destination(packed, port)
