"""In the supervisor: closes a guest's network: netlink messages that the agent hands to its kernel, and the
addresses at which the agent listens.

Written here and not in the guest, so that no `nft` program is needed in an image and the agent needs to know
nothing of rules. The guest has no interface but loopback: a missing rule would leave a connection without an
answer, not with a way out. The rules as nft(8) would show them (one chain for each identity, I its number, U
its uid):

    table inet coatcheck {
      chain redirect { type nat hook output priority -100;
        meta skuid U goto identityI
        ip daddr 127.0.0.0/8 return           # the agent itself, for ports that the host reaches
        ip6 daddr ::1 return
        meta l4proto tcp redirect to :1       # closed: any other uid is refused at once
      }
      chain identityI {
        meta l4proto { tcp, udp } th dport 53 redirect to :RESOLVER
        ip daddr 169.254.0.0/16 tcp dport 80 redirect to :METADATA
        ip daddr 127.0.0.0/8 tcp dport 3128 redirect to :PROXY
        meta l4proto { tcp, udp } th dport 61000-61031 redirect to :1   # nobody gets to another's ports
        ip daddr 127.0.0.0/8 return
        ip6 daddr ::1 return
        meta l4proto tcp redirect to :TRANSPARENT
      }
      chain close { type filter hook output priority 0; policy drop;    # sees what the redirect made of it
        ip daddr 127.0.0.0/8 accept
        ip6 daddr ::1 accept
      }
    }
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from coatcheck.launcher.agent import configure
from coatcheck.launcher.channel import Channel, StreamReset
from coatcheck.launcher.tasks import together

FIRST_PORT: Final = 61000
"""Of the agent's listeners: beyond what the kernel gives to clients (32768-60999)."""
MOST_IDENTITIES: Final = 8
_METADATA_ADDRESSES: Final = ("169.254.169.254", "169.254.170.2")
"""The second is where AWS's SDKs ask in a container."""
_DIRECT: Final = (
    *(("proxy", "127.0.0.1 3128"), ("dns", "127.0.0.53 53")),
    *(("metadata", f"{address} 80") for address in _METADATA_ADDRESSES),
)
"""Without the redirect: where programs expect each service."""
_KINDS: Final = ("proxy", "transparent", "dns", "metadata")
_CLOSED: Final = 1
"""A port on which nothing listens."""
_PROXY, _TRANSPARENT, _DNS, _METADATA = range(4)

_ROUTE, _NETFILTER = 0, 12  # netlink's families (linux/netlink.h)
_REQUEST, _ACK, _REPLACE, _EXCLUSIVE, _CREATE, _APPEND = 0x1, 0x4, 0x100, 0x200, 0x400, 0x800
_NESTED = 0x8000
_TCP, _UDP = b"\x06", b"\x11"
_LOOPBACK = 1
"""Its interface number, in every network namespace."""
_TABLE: Final = b"coatcheck\0"
_L4PROTO, _NFPROTO, _SKUID = 16, 15, 10  # meta keys (linux/netfilter/nf_tables.h), as all that follows
_EQUAL, _AT_MOST, _AT_LEAST = 0, 3, 5
_ACCEPT, _RETURN, _GOTO = 1, -5, -4


async def close_network(channel: Channel, identities: Mapping[str, int]) -> bool:
    """Whether the kernel leads connections of programs that know of no proxy to the agent, too. `identities`:
    their names and uids.

    StreamReset when that cannot be done, also when the kernel has no nftables and there are several
    identities: nothing else tells them apart.
    """
    tell = partial(_told, channel)
    _, redirected = await together(
        tell(_ROUTE, _link()),  # where it is up already, some kernels (gVisor) refuse that
        tell(_NETFILTER, rules(tuple(identities.values()))),
    )
    if not redirected and len(identities) > 1:
        raise StreamReset("network_open")
    if redirected:
        routed, *_ = await together(
            tell(_ROUTE, _route(2, IPv4Address("127.0.0.1").packed)),
            tell(_ROUTE, _route(10, IPv6Address("::1").packed)),  # without IPv6 it stays unreachable
            configure(channel, *_redirected(tuple(identities))),
        )
    else:
        routed = all(await together(*(tell(_ROUTE, _address(each)) for each in _METADATA_ADDRESSES)))
        await configure(
            channel, *(("listen", f"{kind} {name} {place}") for name in identities for kind, place in _DIRECT)
        )
    if not routed:
        raise StreamReset("network_open")
    return bool(redirected)


def _redirected(identities: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, name in enumerate(identities):
        for which, kind in enumerate(_KINDS):
            for address in ("127.0.0.1", "::1") if which in (_TRANSPARENT, _DNS) else ("127.0.0.1",):
                yield "listen", f"{kind} {name} {address} {_port(number, which)}"


def _port(identity: int, which: int) -> int:
    return FIRST_PORT + len(_KINDS) * identity + which


async def _told(channel: Channel, protocol: int, messages: bytes) -> bool:
    """Whether the guest's kernel did as it was told."""
    fields = [("op", "netlink"), ("protocol", str(protocol)), ("length", str(len(messages)))]
    async with await channel.open("control", fields) as stream:
        try:
            await stream.write(messages)
            await stream.notes()
        except StreamReset:
            return False
        return True


# --- netlink: messages and attributes ------------------------------------------------------------------


def _message(kind: int, flags: int, content: bytes, number: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(content), kind, flags | _REQUEST, number, 0) + content


def _put(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _nest(kind: int, *attributes: bytes) -> bytes:
    return _put(kind | _NESTED, b"".join(attributes))


def _number(kind: int, value: int) -> bytes:
    return _put(kind, struct.pack(">I", value & 0xFFFFFFFF))


def _link() -> bytes:
    return _message(16, _ACK, struct.pack("=BBHiII", 0, 0, 0, _LOOPBACK, 1, 1))  # RTM_NEWLINK: up


def _route(family: int, source: bytes) -> bytes:
    """For every address, so that a connection to it gets as far as the redirect. Without `source` the kernel
    finds no address to send from."""
    fixed = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 254, 4, 253, 1, 0)  # main table, static, link, unicast
    content = fixed + _put(4, struct.pack("=I", _LOOPBACK)) + _put(7, source)  # RTA_OIF, RTA_PREFSRC
    return _message(24, _CREATE | _REPLACE | _ACK, content)  # RTM_NEWROUTE


def _address(number: str) -> bytes:
    packed = IPv4Address(number).packed
    content = struct.pack("=BBBBI", 2, 32, 0, 0, _LOOPBACK) + _put(2, packed) + _put(1, packed)
    return _message(20, _CREATE | _REPLACE | _ACK, content)  # RTM_NEWADDR


# --- nftables: what a rule is made of --------------------------------------------------------------------


def _expression(name: str, *data: bytes) -> bytes:
    return _nest(1, _put(1, name.encode() + b"\0"), _nest(2, *data))


def _compare(operation: int, value: bytes) -> bytes:
    return _expression("cmp", _number(1, 1), _number(2, operation), _nest(3, _put(1, value)))


def _meta(key: int, value: bytes) -> bytes:
    return _expression("meta", _number(1, 1), _number(2, key)) + _compare(_EQUAL, value)


def _load(base: int, offset: int, length: int) -> bytes:
    return _expression("payload", _number(1, 1), _number(2, base), _number(3, offset), _number(4, length))


def _to_four(prefix: bytes) -> bytes:
    """IPv4 destinations that begin with `prefix`."""
    return _meta(_NFPROTO, b"\x02") + _load(1, 16, len(prefix)) + _compare(_EQUAL, prefix)


def _to_six_loopback() -> bytes:
    return _meta(_NFPROTO, b"\x0a") + _load(1, 24, 16) + _compare(_EQUAL, IPv6Address("::1").packed)


def _to_ports(first: int, last: int) -> bytes:
    low, high = struct.pack(">H", first), struct.pack(">H", last)
    return _load(2, 2, 2) + _compare(_AT_LEAST, low) + _compare(_AT_MOST, high)


def _redirect(port: int) -> bytes:
    value = _nest(2, _put(1, struct.pack(">H", port)))
    return _expression("immediate", _number(1, 1), value) + _expression("redir", _number(1, 1))


def _verdict(code: int, chain: bytes = b"") -> bytes:
    inner = _nest(2, _number(1, code), _put(2, chain) if chain else b"")
    return _expression("immediate", _number(1, 0), _nest(2, inner))


def rules(uids: Sequence[int]) -> bytes:
    """One batch: all of it comes into force, or none."""
    chains = [b"identity%d\0" % number for number in range(len(uids))]
    written = [
        (b"redirect\0", _meta(_SKUID, struct.pack("=I", uid)) + _verdict(_GOTO, chain))
        for uid, chain in zip(uids, chains, strict=True)
    ]
    for number, chain in enumerate(chains):
        written += [(chain, each) for each in _of_identity(number)]
    written += [(b"redirect\0", each) for each in _loopback(_RETURN)]
    written += [(b"redirect\0", _meta(_L4PROTO, _TCP) + _redirect(_CLOSED))]
    written += [(b"close\0", each) for each in _loopback(_ACCEPT)]
    messages = [
        (0, _EXCLUSIVE, _put(1, _TABLE)),
        (3, 0, _chain(b"redirect\0", b"nat\0", -100, accept=True)),
        (3, 0, _chain(b"close\0", b"filter\0", 0, accept=False)),
        *((3, 0, _put(1, _TABLE) + _put(3, chain)) for chain in chains),
        *((6, _APPEND, _put(1, _TABLE) + _put(2, chain) + _nest(4, each)) for chain, each in written),
    ]
    last = len(messages) - 1  # which is acknowledged: older kernels do not acknowledge a batch's end
    batch = [_message(16, 0, struct.pack(">BBH", 0, 0, 10))]
    for number, (kind, flags, content) in enumerate(messages):
        wanted = flags | _CREATE | (_ACK if number == last else 0)
        batch.append(_message(10 << 8 | kind, wanted, struct.pack(">BBH", 1, 0, 0) + content, number + 1))
    batch.append(_message(17, 0, struct.pack(">BBH", 0, 0, 10)))
    return b"".join(batch)


def _chain(name: bytes, kind: bytes, priority: int, *, accept: bool) -> bytes:
    hook = _nest(4, _number(1, 3), _number(2, priority))  # on output
    return _put(1, _TABLE) + _put(3, name) + hook + _number(5, int(accept)) + _put(7, kind)


def _loopback(code: int) -> Iterator[bytes]:
    yield _to_four(b"\x7f") + _verdict(code)
    yield _to_six_loopback() + _verdict(code)


def _of_identity(number: int) -> Iterator[bytes]:
    both = [_meta(_L4PROTO, each) for each in (_TCP, _UDP)]
    last = FIRST_PORT + len(_KINDS) * MOST_IDENTITIES - 1
    for protocol in both:
        yield protocol + _to_ports(53, 53) + _redirect(_port(number, _DNS))
    tcp = both[0]
    yield _to_four(b"\xa9\xfe") + tcp + _to_ports(80, 80) + _redirect(_port(number, _METADATA))
    yield _to_four(b"\x7f") + tcp + _to_ports(3128, 3128) + _redirect(_port(number, _PROXY))
    for protocol in both:
        yield protocol + _to_ports(FIRST_PORT, last) + _redirect(_CLOSED)
    yield from _loopback(_RETURN)
    yield tcp + _redirect(_port(number, _TRANSPARENT))
