"""The rules of a host for a sandbox behind a veth pair: what reaches whom, by both tools and IP versions.

The world's host forwards, and its own services listen at all addresses: what does not arrive was stopped by
the rules.
"""

from collections.abc import Iterator

import pytest

from coatcheck.redirect.applying import Tool
from coatcheck.redirect.plan import AtInterface, Ipv6
from tests.system.redirect.world import (
    BOX,
    BOX6,
    CONTROL_PORT,
    DNS_PORT,
    HOST,
    HOST6,
    INTERFACE,
    INTERNET,
    INTERNET6,
    PORT,
    RESOLVER,
    World,
    rules_of,
)

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip")

OTHER = "10.99.0.2"
"""An address that the sandbox gave itself."""
WEB = (f"tcp {INTERNET} 443", f"tcp {INTERNET} 80", f"tcp {HOST} 443")
WEB6 = (f"tcp {INTERNET6} 443", f"tcp {INTERNET6} 80", f"tcp {HOST6} 443")
DNS = (f"udp {RESOLVER} 53", f"tcp {RESOLVER} 53", f"udp {HOST} 53")
DNS6 = (f"udp {INTERNET6} 53", f"tcp {INTERNET6} 53")
REFUSED = (
    f"tcp {INTERNET} 8080", f"tcp {INTERNET6} 8080",  # another port
    f"udp {INTERNET} 443", f"udp {INTERNET6} 443",  # QUIC
    f"udp {INTERNET} 9999", f"udp {INTERNET6} 9999",
    f"ping {RESOLVER}", f"ping {INTERNET6}", f"ping {HOST}", f"ping {HOST6}", "ping 192.0.2.1",
    f"tcp {HOST} {CONTROL_PORT}", f"tcp {HOST6} {CONTROL_PORT}",
    f"tcp 192.0.2.1 {CONTROL_PORT}", f"tcp fd78::1 {CONTROL_PORT}",  # the host's other addresses
    f"tcp {HOST} {PORT}", f"tcp {HOST6} {PORT}",  # the listener, not by a redirect
    f"udp {HOST} {DNS_PORT}", f"udp {HOST} 5000", f"udp {HOST6} 5000",
    "udp 224.0.0.1 5000", "udp ff02::1%eth0 5000",
    f"hopbyhop {INTERNET6} 9999", f"hopbyhop {HOST6} {DNS_PORT}", f"hopbyhop {INTERNET6} 53",
    f"fragment {INTERNET} 9999", f"fragment {INTERNET6} 9999", f"fragment {HOST} 5000",
    f"bound {INTERNET} 8080 eth0", f"spoofed {INTERNET} 53 {OTHER}", f"spoofed {HOST} 53 {OTHER}",
)  # fmt: skip
EVERYTHING = (*WEB, *WEB6, *DNS, *DNS6, *REFUSED)


@pytest.fixture
def world(made_world: World) -> Iterator[World]:
    made_world.internet.read()
    made_world.services.read()
    yield made_world
    made_world.host.remove(INTERFACE)
    made_world.host.run("nft", "flush", "ruleset")


OPEN = AtInterface(INTERFACE, PORT, DNS_PORT, ipv6=Ipv6.REDIRECTED)
CLOSED = AtInterface(INTERFACE, PORT)


def test_without_rules_almost_all_of_it_arrives(world: World) -> None:
    """Else the tests below would prove nothing."""
    world.box.ip(f"addr add {OTHER}/32 dev eth0")
    came = world.attempts(*EVERYTHING)
    out = world.internet.read()
    assert {line.split()[0] for line in out} == {
        "tcp/80", "tcp/443", "tcp/8080", "tcp/53", "udp/53", "udp/443", "udp/9999"
    }  # fmt: skip
    assert {line.split()[1] for line in out} >= {BOX, BOX6, OTHER}
    own = world.services.read()
    for port in (f"tcp/{CONTROL_PORT}", f"tcp/{PORT}", f"udp/{DNS_PORT}", "udp/5000"):
        assert any(line.startswith(port) for line in own), port
    answered = {each for each, what in came.items() if what == "answered"}
    assert answered >= {each for each in REFUSED if each.startswith(("ping", "tcp", "bound"))}


@pytest.mark.parametrize("tool", Tool)
def test_only_what_is_redirected_arrives_and_only_at_the_listener(world: World, tool: Tool) -> None:
    """With the destination that was meant as evidence; DNS at the resolver; nothing else anywhere."""
    world.host.apply(OPEN, tool)
    came = world.attempts(*EVERYTHING)
    assert world.internet.read() == []
    dns = [f"udp/{DNS_PORT} {BOX} -"] * 2 + [f"tcp/{DNS_PORT} {BOX} {RESOLVER} 53"]
    dns += [f"udp/{DNS_PORT} {BOX6} -", f"tcp/{DNS_PORT} {BOX6} {INTERNET6} 53"]
    web = [f"tcp/{PORT} {BOX} {each[4:]}" for each in WEB] + [
        f"tcp/{PORT} {BOX6} {each[4:]}" for each in WEB6
    ]
    assert sorted(world.services.read()) == sorted(dns + web)
    assert {each for each, what in came.items() if what == "answered"} == {*WEB, *WEB6, *DNS, *DNS6}
    # Told, not left hanging: what a program tries first must not cost it a minute.
    assert came[f"tcp {HOST} {CONTROL_PORT}"] == came[f"tcp {HOST6} {CONTROL_PORT}"] == "ECONNREFUSED"


@pytest.mark.parametrize("tool", Tool)
def test_ipv6_and_dns_can_be_closed(world: World, tool: Tool) -> None:
    """Then a client is told at once to turn to IPv4, and names are not to be had."""
    world.host.apply(CLOSED, tool)
    came = world.attempts(*EVERYTHING)
    assert world.internet.read() == []
    assert sorted(world.services.read()) == sorted(f"tcp/{PORT} {BOX} {each[4:]}" for each in WEB)
    assert {each for each, what in came.items() if what == "answered"} == set(WEB)
    assert came[f"tcp {INTERNET6} 443"] == "EACCES"


FLUSH = "for ip in iptables ip6tables; do for t in raw filter nat; do $ip -t $t -F; $ip -t $t -X; done; done"
LOST = {
    Tool.NFT: (
        ("nft", "delete", "table", "inet", f"coatcheck_at_{INTERFACE}"),
        ("nft", "flush", "ruleset"),
    ),
    Tool.IPTABLES: (
        ("sh", "-c", "iptables -t nat -F; ip6tables -t nat -F"),
        ("sh", "-c", FLUSH),
    ),
}  # fmt: skip


@pytest.mark.parametrize("tool", Tool)
def test_rules_that_are_lost_leave_no_way_out(world: World, tool: Tool) -> None:
    """First what redirects, then every rule of the firewall: nothing passes this host."""
    world.host.apply(OPEN, tool)
    redirect, everything = LOST[tool]
    world.host.run(*redirect)
    came = world.attempts(*EVERYTHING)
    assert (world.internet.read(), world.services.read()) == ([], [])
    assert "answered" not in came.values()
    world.host.run(*everything)
    came = world.attempts(*EVERYTHING)
    assert world.internet.read() == []
    assert [each for each, what in came.items() if what == "answered" and not at_host(each)] == []
    world.host.apply(OPEN, tool)
    assert world.attempts(WEB[0], WEB6[0]) == {WEB[0]: "answered", WEB6[0]: "answered"}
    assert world.internet.read() == []


def at_host(attempt: str) -> bool:
    """The host's own services are its own firewall's matter once every rule of ours is gone."""
    return attempt.split()[1] in (HOST, HOST6, "192.0.2.1", "fd78::1")


def test_the_form_can_be_changed_and_all_of_it_goes(world: World) -> None:
    """One form at a time, and after `remove` nothing is there that was not there before."""
    world.host.run("nft", "add", "table", "inet", "theirs")
    world.host.ip("rule add pref 890 from 192.0.2.99 lookup main")
    before = everything(world)
    world.host.apply(OPEN, Tool.NFT)
    nft = rules_of(world.host)
    world.host.apply(OPEN, Tool.IPTABLES)
    assert not any(line.startswith("table inet coatcheck") for line in rules_of(world.host))
    world.host.apply(OPEN, Tool.NFT)
    world.host.apply(OPEN, Tool.NFT)
    assert rules_of(world.host) == nft
    assert world.host.remove(INTERFACE)
    assert rules_of(world.host) == [] and everything(world) == before
    assert not world.host.remove(INTERFACE)
    world.host.ip("rule del pref 890")


def everything(world: World) -> list[str]:
    said = [
        world.host.run(*command.split()).stdout
        for command in ("nft list table inet theirs", "ip rule", "ip -6 rule")
    ]
    saved = world.host.run("iptables-save").stdout + world.host.run("ip6tables-save").stdout
    return [*said, *(line for line in saved.splitlines() if line.startswith("-A") or " - [" in line)]
