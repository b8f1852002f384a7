"""The rules as iptables and ip6tables know them: chains of our own, and one jump into each.

`iptables-restore --noflush` replaces a table's part in one step. Its grammar cannot say "unless it is there",
so the jumps that are there now are given to the functions here, as `iptables-save` shows them.
"""

from coatcheck.redirect.nftables import DOCKER_DNS
from coatcheck.redirect.plan import DNS, AtInterface, Inside, Ipv6, Place, Plan

FAMILIES = {"-4": "iptables", "-6": "ip6tables"}
"""As `ip` has it -> the command's name, without -save and -restore."""

type _Rules = tuple[str, ...]
type _Chains = dict[tuple[str, str], _Rules]
"""(Table, built-in chain that jumps to ours) -> our rules."""


def apply_text(plan: Plan, family: str, saved: str) -> str:
    """For `iptables-restore --noflush`; `saved`: what `iptables-save` says now.

    What closes comes before what redirects: each table is one step.
    """
    return _restore(plan.place, _chains(plan, family), saved)


def remove_text(place: Place, saved: str) -> str:
    """The same, for what `saved` has of ours; empty when it has nothing."""
    return _restore(place, {}, saved)


def _restore(place: Place, wanted: _Chains, saved: str) -> str:
    names = _names(place)
    old_chains, old_jumps = _found(names, saved)
    text: list[str] = []
    tables = ("raw", "filter", "nat") if wanted else ("nat", "filter", "raw")
    for table in tables:
        lines: list[str] = []
        for key, chain in names.items():
            if key[0] != table:
                continue
            new, old = key in wanted, (table, chain) in old_chains
            if new or old:
                lines.append(f":{chain} - [0:0]")  # makes it, or empties it
            lines += [f"-D {key[1]} -j {chain}"] * old_jumps.count(key)
            if new:
                lines += [f"-A {chain} {rule}" for rule in wanted[key]]
                lines.append(f"-I {key[1]} 1 -j {chain}")
            elif old:
                lines.append(f"-X {chain}")
        if lines:
            # Declarations come first in iptables-restore's grammar.
            lines.sort(key=lambda line: not line.startswith(":"))
            text += [f"*{table}", *lines, "COMMIT"]
    return "\n".join([*text, ""]) if text else ""


def _names(place: Place) -> dict[tuple[str, str], str]:
    """(Table, built-in chain) -> our chain, whose name has at most 28 characters; an interface's has 15."""
    if place is None:
        return {
            ("raw", "OUTPUT"): "COATCHECK-INSIDE-EARLY",
            ("filter", "OUTPUT"): "COATCHECK-INSIDE-OUTPUT",
            ("filter", "FORWARD"): "COATCHECK-INSIDE-FORWARD",
            ("nat", "OUTPUT"): "COATCHECK-INSIDE-REDIRECT",
        }
    return {
        ("raw", "PREROUTING"): f"COATCHECK-P-{place}",
        ("filter", "INPUT"): f"COATCHECK-I-{place}",
        ("filter", "FORWARD"): f"COATCHECK-F-{place}",
        ("nat", "PREROUTING"): f"COATCHECK-R-{place}",
    }


def _found(
    names: dict[tuple[str, str], str], saved: str
) -> tuple[set[tuple[str, str]], list[tuple[str, str]]]:
    """Our chains (table, chain) and our jumps (table, built-in chain) in what `iptables-save` says."""
    chains: set[tuple[str, str]] = set()
    jumps: list[tuple[str, str]] = []
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith(":"):
            chains.add((table, line[1:].split()[0]))
        elif line.startswith("-A"):
            words = line.split()[1:]
            jumps += [
                key for key, chain in names.items() if key[0] == table and words == [key[1], "-j", chain]
            ]
    return chains & {(key[0], chain) for key, chain in names.items()}, jumps


def _chains(plan: Plan, family: str) -> _Chains:
    return _at_interface(plan, family) if isinstance(plan, AtInterface) else _inside(plan, family)


def _refuse(family: str) -> _Rules:
    with_icmp = "icmp-admin-prohibited" if family == "-4" else "icmp6-adm-prohibited"
    return ("-p tcp -j REJECT --reject-with tcp-reset", f"-j REJECT --reject-with {with_icmp}")


def _neighbours(family: str, *more: str) -> _Rules:
    if family == "-4":
        return ()
    kinds = ("neighbour-solicitation", "neighbour-advertisement", *more)
    return tuple(f"-p icmpv6 --icmpv6-type {kind} -j ACCEPT" for kind in kinds)


_MALFORMED = {
    "-4": ("-f -j DROP",),
    # One rule each: together they would mean a packet that has them all.
    "-6": tuple(
        f"-m ipv6header --header {header} --soft -j DROP"
        for header in ("hop", "route", "frag", "dst", "auth", "esp", "none")
    ),
}
"""Extension headers; and fragments, where the kernel has not put them together before (-400)."""


def _at_interface(plan: AtInterface, family: str) -> _Chains:
    others = f"! -i {plan.interface} -j RETURN"
    admitted = [f"-p tcp --dport {plan.port} -m conntrack --ctstate DNAT -j ACCEPT"]
    if plan.dns_port is not None:
        admitted += [
            f"-p {protocol} --dport {plan.dns_port} -m conntrack --ctstate DNAT -j ACCEPT"
            for protocol in ("udp", "tcp")
        ]
    chains: _Chains = {
        ("raw", "PREROUTING"): (
            others,
            *_MALFORMED[family],
            *_neighbours(family),
            "-m rpfilter --invert -j DROP",
        ),
        ("filter", "INPUT"): (others, *admitted, *_neighbours(family), *_refuse(family)),
        ("filter", "FORWARD"): (
            f"-i {plan.interface} {_refuse(family)[-1]}",
            f"-o {plan.interface} -j DROP",
        ),
    }
    redirects = (*_web(plan, family), *_dns(plan, family))
    if redirects:
        chains["nat", "PREROUTING"] = tuple(f"-i {plan.interface} {rule}" for rule in redirects)
    return chains


def _inside(plan: Inside, family: str) -> _Chains:
    proxy = f"-m owner --uid-owner {plan.proxy_uid} -j RETURN"
    local = "-m addrtype --dst-type LOCAL"
    early = []
    if family == "-4":
        early += [f"-d {DOCKER_DNS} -p {protocol} ! --dport {DNS} -j DROP" for protocol in ("udp", "tcp")]
    if not _dns(plan, family):
        early += [f"-p {protocol} --dport {DNS} -j DROP" for protocol in ("udp", "tcp")]
    chains: _Chains = {
        ("raw", "OUTPUT"): (proxy, *early),
        ("filter", "OUTPUT"): (
            proxy,
            *_neighbours(family, "router-solicitation", "131", "143"),
            *(f"-p tcp --dport {port} -j REJECT --reject-with tcp-reset" for port in plan.kept_out),
            f"{local} -j ACCEPT",
            *_refuse(family),
        ),
        ("filter", "FORWARD"): ("-j DROP",),
    }
    if redirects := _web(plan, family):
        chains["nat", "OUTPUT"] = (proxy, *_dns(plan, family), f"{local} -j RETURN", *redirects)
    return chains


def _web(plan: Plan, family: str) -> _Rules:
    if family == "-6" and plan.ipv6 is Ipv6.CLOSED:
        return ()
    return tuple(f"-p tcp --dport {port} -j REDIRECT --to-ports {plan.port}" for port in plan.tcp_ports)


def _dns(plan: Plan, family: str) -> _Rules:
    if plan.dns_port is None or (family == "-6" and plan.ipv6 is Ipv6.CLOSED):
        return ()
    return tuple(
        f"-p {protocol} --dport {DNS} -j REDIRECT --to-ports {plan.dns_port}" for protocol in ("udp", "tcp")
    )
