"""Which addresses may be dialled for a sandbox. Pure: resolving and connecting happen in a plane.

A name is judged by *every* address it resolves to: one address that must not be reached refuses the
name, because mixed answers are how DNS rebinding works.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

type Address = IPv4Address | IPv6Address
type Network = IPv4Network | IPv6Network

METADATA: frozenset[Address] = frozenset(
    {
        IPv4Address("169.254.169.254"),  # AWS, GCP, Azure, DigitalOcean, OpenStack
        IPv4Address("169.254.170.2"),  # AWS ECS task credentials
        IPv4Address("169.254.170.23"),  # AWS EKS pod identity
        IPv4Address("100.100.100.200"),  # Alibaba Cloud
        IPv4Address("168.63.129.16"),  # Azure wire server: a *public* address with platform powers
        IPv4Address("192.0.0.192"),  # Oracle Cloud
        IPv6Address("fd00:ec2::254"),  # AWS IMDS over IPv6
        IPv6Address("fd00:ec2::23"),  # AWS EKS pod identity over IPv6
        IPv6Address("fe80::a9fe:a9fe"),  # OpenStack
        # Unique local, as on-premises networks are: an allowlist of `fc00::/7` must not open them.
        IPv6Address("fd20:ce::254"),  # GCP, instances with IPv6 only
        IPv6Address("fd00:c1::a9fe:a9fe"),  # Oracle Cloud over IPv6
        IPv6Address("fd00:100::100:200"),  # Alibaba Cloud over IPv6
        IPv6Address("fd00:42::42"),  # Scaleway over IPv6
        IPv6Address("fd00:a9fe:a9fe::1"),  # Akamai (Linode) over IPv6
        IPv4Address("169.254.42.42"),  # Scaleway
        IPv4Address("169.254.0.23"),  # Tencent Cloud
        IPv4Address("169.254.10.10"),  # Tencent Cloud
    }
)
"""Cloud metadata services: never dialled, even where an allowlist covers them."""

_OURSELVES = IPv4Network("0.0.0.0/32"), IPv6Network("::/128")
"""The kernel takes them for loopback when they are dialled, so that no look at our own listeners sees it."""
_MAPPED = IPv6Network("::ffff:0:0/96")
"""Dialled as the IPv4 address inside, which none of an allowlist's IPv4 ranges was asked about."""
_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_ISATAP = 0x5EFE
"""In the interface identifier of an address that carries an IPv4 one, whatever its prefix (RFC 5214)."""
_NEVER: tuple[tuple[Network, str], ...] = (
    (IPv4Network("0.0.0.0/8"), "this network (RFC 1122)"),
    (IPv4Network("10.0.0.0/8"), "private (RFC 1918)"),
    (IPv4Network("100.64.0.0/10"), "carrier-grade NAT (RFC 6598)"),
    (IPv4Network("127.0.0.0/8"), "loopback"),
    (IPv4Network("169.254.0.0/16"), "link-local (RFC 3927)"),
    (IPv4Network("172.16.0.0/12"), "private (RFC 1918)"),
    (IPv4Network("192.0.0.0/24"), "IETF protocol assignments (RFC 6890)"),
    (IPv4Network("192.0.2.0/24"), "documentation (RFC 5737)"),
    (IPv4Network("192.88.99.0/24"), "6to4 relay (RFC 7526)"),
    (IPv4Network("192.168.0.0/16"), "private (RFC 1918)"),
    (IPv4Network("198.18.0.0/15"), "benchmarking (RFC 2544)"),
    (IPv4Network("198.51.100.0/24"), "documentation (RFC 5737)"),
    (IPv4Network("203.0.113.0/24"), "documentation (RFC 5737)"),
    (IPv4Network("224.0.0.0/4"), "multicast"),
    (IPv4Network("240.0.0.0/4"), "reserved or broadcast"),
    (_OURSELVES[1], "unspecified"),
    (IPv6Network("::1/128"), "loopback"),
    (_MAPPED, "IPv4-mapped (RFC 4291)"),
    (IPv6Network("::/96"), "IPv4-compatible (RFC 4291)"),
    (IPv6Network("::ffff:0:0:0/96"), "IPv4-translated (RFC 2765)"),
    (_NAT64[0], "NAT64 (RFC 6052)"),
    (_NAT64[1], "NAT64 (RFC 8215)"),
    (IPv6Network("100::/64"), "discard-only (RFC 6666)"),
    (IPv6Network("2001::/32"), "Teredo (RFC 4380)"),
    (IPv6Network("2001::/23"), "IETF protocol assignments (RFC 2928)"),
    (IPv6Network("2001:db8::/32"), "documentation (RFC 3849)"),
    (IPv6Network("2002::/16"), "6to4 (RFC 3056)"),
    (IPv6Network("3fff::/20"), "documentation (RFC 9637)"),
    (IPv6Network("5f00::/16"), "segment routing (RFC 9602)"),
    (IPv6Network("fc00::/7"), "unique local (RFC 4193)"),
    (IPv6Network("fe80::/10"), "link-local (RFC 4291)"),
    (IPv6Network("fec0::/10"), "site-local (RFC 3879)"),
    (IPv6Network("ff00::/8"), "multicast"),
)


def screen(address: str, allowed: tuple[Network, ...] = ()) -> str | None:
    """Why `address` must not be dialled, or None when it may.

    `allowed` lists on-premises ranges that an operator opened on purpose. Metadata services stay
    closed, also behind a NAT64 prefix that was opened; so do the forms that mean another address.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return "not an IP address"
    if isinstance(ip, IPv6Address) and ip.scope_id is not None:
        return "scoped (zoned) address"
    embedded = _embedded_ipv4(ip)
    if ip in METADATA or (embedded is not None and embedded in METADATA):
        return "cloud metadata service"
    means_another = any(ip.version == net.version and ip in net for net in (*_OURSELVES, _MAPPED))
    if not means_another and any(ip.version == net.version and ip in net for net in allowed):
        if isinstance(ip, IPv6Address) and (any(ip in net for net in _NAT64) or _isatap(ip)):
            assert embedded is not None  # noqa: S101 - both carry one
            return screen(str(embedded), allowed)
        return None
    for network, why in _NEVER:
        if ip.version == network.version and ip in network:
            return why
    if isinstance(ip, IPv6Address) and _isatap(ip):
        return "ISATAP (RFC 5214)"
    return None if ip.is_global else "not globally reachable"


def _embedded_ipv4(ip: Address) -> IPv4Address | None:
    """The IPv4 address inside an IPv6 one, for the schemes that carry it whole."""
    if isinstance(ip, IPv4Address):
        return None
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if any(ip in net for net in _NAT64) or _isatap(ip) or ip in IPv6Network("::/96"):
        return IPv4Address(int(ip) & 0xFFFF_FFFF)
    return None


def _isatap(ip: IPv6Address) -> bool:
    return (int(ip) >> 32) & 0xFDFF_FFFF == _ISATAP


def parse_networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Networks from their CIDR texts; raises ValueError with the text that is wrong."""
    return tuple(ip_network(text, strict=True) for text in texts)
