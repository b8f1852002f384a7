"""Synthetic addresses: what a name becomes for a sandbox that asks DNS, and what that proves later.

Nothing is resolved: a name's addresses are a hash of it, the same in every process and after every
restart, so there is no table that could grow, run full or be poisoned. They lead nowhere: a redirect brings
the connection to us, and the name is read from it (SNI, Host). The hash needs no key, because an address
grants nothing: a connection to the address of one name that says another is refused, and one that says the
same is judged as that name.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import OriginalDestination

IPV4 = IPv4Network("198.18.0.0/15")
"""For benchmarks of networks (RFC 2544): on no internet and hardly on any intranet. 131,072 addresses: two
names may share one, which costs some evidence and nothing else."""
IPV6 = IPv6Network("fd63:6f61:7463::/48")
"""Unique local (RFC 4193), ours by its 40 bits, which spell `coatc`."""

_CACHE = 4096
"""Names of at most 253 characters: about 2 MiB."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """The two addresses of one name."""

    ipv4: IPv4Address
    ipv6: IPv6Address


def synthetic(host: str) -> Synthetic | None:
    """The addresses of `host`, which is canonical; None for a literal address, which is no name."""
    if _is_address(host):
        return None
    return _of_name(host)


@lru_cache(maxsize=_CACHE)
def _of_name(name: str) -> Synthetic:
    digest = hashlib.sha256(b"coatcheck synthetic address 1\0" + name.encode()).digest()
    # Neither the first nor the last of a range: some stacks take those for the network and for broadcast.
    low = 1 + int.from_bytes(digest[:8]) % (IPV4.num_addresses - 2)
    high = 1 + int.from_bytes(digest[8:24]) % (IPV6.num_addresses - 2)
    return Synthetic(IPV4[low], IPV6[high])


def contradiction(original: OriginalDestination | None, host: str, port: int) -> Deny | None:
    """Why a connection that was made to `original` cannot be for `host:port`, or None.

    The port must be the one that was dialled. An address of ours must be one of the name's; a literal host
    must be the address itself. Any other address proves nothing, for or against: it came from another
    resolver or was written down, and is never dialled.
    """
    if original is None:
        return None
    if port != original.port:
        detail = f"a connection to port {original.port} that is said to be for port {port}"
        return Deny(Reason.AUTHORITY_MISMATCH, detail, alarm=True)
    address = ip_address(original.address)
    made = synthetic(host)
    if address in IPV4 or address in IPV6:
        if made is None or address not in (made.ipv4, made.ipv6):
            detail = f"a connection to {original}, the synthetic address of another name"
            return Deny(Reason.AUTHORITY_MISMATCH, detail, alarm=True)
    elif made is None and address != ip_address(host):
        return Deny(Reason.AUTHORITY_MISMATCH, f"a connection to {original} for another address", alarm=True)
    return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
