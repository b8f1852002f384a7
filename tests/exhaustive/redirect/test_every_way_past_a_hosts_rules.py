"""The rules of a host for a sandbox behind a veth pair: no rules, parts of them, and rules that were lost."""

import pytest

from coatcheck.redirect.applying import Tool
from coatcheck.redirect.plan import AtInterface
from tests.system.redirect.attempts_at_interface import EVERYTHING, OPEN, OTHER, REFUSED, WEB, WEB6, world
from tests.system.redirect.world import (
    BOX,
    BOX6,
    CONTROL_PORT,
    DNS_PORT,
    HOST,
    HOST6,
    INTERFACE,
    INTERNET6,
    PORT,
    World,
    rules_of,
)

__all__ = ["world"]

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip")


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
