"""The rules as nftables knows them: two tables of our own, replaced or removed in one transaction.

One table redirects, the other one closes. If the first is lost (`nft flush table`), the second still holds;
if both are (`nft flush ruleset`), the routing rules of `routes` still hold.
"""

from coatcheck.redirect.plan import DNS, AtInterface, Inside, Ipv6, Place, Plan

_NEIGHBOURS = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert }"
"""Without them no IPv6 packet finds its way to the next machine (RFC 4861)."""
_OWN_LINK = (
    "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, "
    "mld-listener-report, mld2-listener-report }"
)
"""What the kernel itself says on a link; a program would need CAP_NET_RAW for them."""
_BOTH = "meta l4proto { tcp, udp } th dport"
_REFUSE = (
    "meta l4proto tcp reject with tcp reset",
    # Said, not only dropped: a client that tries QUIC or IPv6 first turns to what works at once.
    "reject with icmpx type admin-prohibited",
)
# Before the kernel puts fragments together (NF_IP_PRI_CONNTRACK_DEFRAG, -400): afterwards there are none.
_MALFORMED = "priority -450"
DOCKER_DNS = "127.0.0.11"
"""Docker's resolver listens inside the container's namespace, on a port that /proc/net/udp shows, too, and
asks the world: a way out through names."""


def tables(place: Place) -> tuple[str, str]:
    """The names of the table that redirects and of the one that closes."""
    name = "coatcheck_inside" if place is None else f"coatcheck_at_{_identifier(place)}"
    return name, f"{name}_closed"


def apply_text(plan: Plan) -> str:
    """For `nft -f -`: all of it, in place of what an earlier run left, in one transaction."""
    chains = _at_interface(plan) if isinstance(plan, AtInterface) else _inside(plan)
    redirecting, closing = tables(plan.place)
    return remove_text(plan.place) + _table(closing, chains[0]) + _table(redirecting, chains[1])


def remove_text(place: Place) -> str:
    """For `nft -f -`. Naming a table makes it, so that deleting it fails on no machine."""
    return "".join(f"table inet {name}\ndelete table inet {name}\n" for name in tables(place))


type _Chains = dict[str, tuple[str, ...]]
"""Name -> hook and rules."""


def _at_interface(plan: AtInterface) -> tuple[_Chains, _Chains]:
    others = f'iifname != "{plan.interface}" accept'
    ours = f'iifname "{plan.interface}"'
    admitted = [f"ct status dnat tcp dport {plan.port} accept"]
    if plan.dns_port is not None:
        admitted.append(f"ct status dnat {_BOTH} {plan.dns_port} accept")
    closing: _Chains = {
        "malformed": (
            f"type filter hook prerouting {_MALFORMED}; policy accept;",
            others,
            "ip frag-off & 0x3fff != 0 drop",
            "ip hdrlength > 5 drop",
            "meta nfproto ipv6 ip6 nexthdr != { tcp, udp, ipv6-icmp } drop",
        ),
        "spoofed": (
            "type filter hook prerouting priority mangle; policy accept;",
            others,
            f"{_NEIGHBOURS} accept",
            # What makes a source address an origin (class `address`): the way back is the way it came.
            "fib saddr . iif oif missing drop",
        ),
        "input": (
            "type filter hook input priority filter - 1; policy accept;",
            others,
            *admitted,
            f"{_NEIGHBOURS} accept",
            *_REFUSE,
        ),
        "forward": (
            "type filter hook forward priority filter - 1; policy accept;",
            f"{ours} {_REFUSE[-1]}",
            f'oifname "{plan.interface}" drop',
        ),
    }
    redirecting: _Chains = {
        "arriving": (
            # Before other programs that publish ports (Docker, at dstnat): whose rule comes first has the
            # connection.
            "type nat hook prerouting priority dstnat - 1; policy accept;",
            *_redirects(plan, ours),
        )
    }
    return closing, redirecting


def _inside(plan: Inside) -> tuple[_Chains, _Chains]:
    proxy = f"meta skuid {plan.proxy_uid} accept"
    early = [f"ip daddr {DOCKER_DNS} {_BOTH} != {DNS} drop"]
    if plan.dns_port is None:
        early.append(f"{_BOTH} {DNS} drop")
    elif plan.ipv6 is Ipv6.CLOSED:
        early.append(f"meta nfproto ipv6 {_BOTH} {DNS} drop")
    kept_out = f"tcp dport {_set(plan.kept_out)} reject with tcp reset"
    closing: _Chains = {
        "early": (
            # Before all redirects, ours and Docker's: afterwards the port that was asked for is gone.
            "type filter hook output priority raw; policy accept;",
            proxy,
            *early,
        ),
        "output": (
            # The policy is what is left when somebody flushes the chain.
            "type filter hook output priority filter; policy drop;",
            proxy,
            f"{_OWN_LINK} accept",
            *([kept_out] if plan.kept_out else []),
            "fib daddr type local accept",
            *_REFUSE,
        ),
        "forward": ("type filter hook forward priority filter; policy drop;",),
    }
    redirects = _redirects(plan, "")
    redirecting: _Chains = {
        "leaving": (
            "type nat hook output priority -101; policy accept;",
            proxy,
            # DNS first: a resolver of the sandbox's own on loopback would be asked otherwise.
            *(rule for rule in redirects if _BOTH in rule),
            "fib daddr type local accept",
            *(rule for rule in redirects if _BOTH not in rule),
        )
    }
    return closing, redirecting


def _redirects(plan: Plan, where: str) -> tuple[str, ...]:
    where = f"{where} meta nfproto ipv4".strip() if plan.ipv6 is Ipv6.CLOSED else where
    rules = [f"{where} tcp dport {_set(plan.tcp_ports)} redirect to :{plan.port}"]
    if plan.dns_port is not None:
        rules.append(f"{where} {_BOTH} {DNS} redirect to :{plan.dns_port}")
    return tuple(rule.strip() for rule in rules)


def _set(ports: tuple[int, ...]) -> str:
    return f"{{ {', '.join(map(str, ports))} }}"


def _identifier(interface: str) -> str:
    """Injective: `a-b` and `a.b` are two interfaces, and nft takes neither character everywhere."""
    return "".join(each if each.isalnum() else f"_{ord(each):02x}" for each in interface)


def _table(name: str, chains: _Chains) -> str:
    text = [f"table inet {name} {{"]
    for chain, lines in chains.items():
        text += [f"  chain {chain} {{", *(f"    {line}" for line in lines), "  }"]
    return "\n".join([*text, "}", ""])
