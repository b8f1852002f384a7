"""Rules in a sandbox's own network namespace: with parts of them, and when they are lost."""

import pytest

from coatcheck.redirect.applying import Tool
from coatcheck.redirect.plan import Inside, Ipv6
from tests.system.redirect.attempts_inside import EVERYTHING, OPEN, OWN, WEB, WEB6, proxy, world
from tests.system.redirect.world import (
    AGENT_UID,
    BOX,
    BOX6,
    CONTROL_PORT,
    INTERNET,
    PORT,
    PROXY_UID,
    Server,
    World,
    rules_of,
)

__all__ = ["proxy", "world"]

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip")

FLUSH = {
    Tool.NFT: "nft flush ruleset",
    Tool.IPTABLES: "for ip in iptables ip6tables; do for t in raw filter nat; do $ip -t $t -F; done; done",
}


CLOSED = Inside(PROXY_UID, PORT, kept_out=(CONTROL_PORT,))


@pytest.mark.parametrize("tool", Tool)
def test_ipv6_and_dns_can_be_closed(world: World, proxy: Server, tool: Tool) -> None:
    """Docker's own resolver on loopback, too: it would ask the world."""
    world.box.apply(CLOSED, tool)
    came = world.attempts(*EVERYTHING, uid=AGENT_UID)
    assert (world.internet.read(), world.services.read()) == ([], [])
    assert {each for each, what in came.items() if what == "answered"} == {*WEB, *OWN}
    assert came[WEB6[0]] == "EACCES"
    assert not any("udp" in line for line in proxy.read())


@pytest.mark.parametrize("tool", Tool)
def test_rules_that_are_lost_leave_no_way_out(world: World, proxy: Server, tool: Tool) -> None:
    """For root without CAP_NET_ADMIN neither, nor by a socket that is bound to the device."""
    world.box.apply(OPEN, tool)
    world.box.run("sh", "-c", FLUSH[tool])
    for uid in (AGENT_UID, None):
        # What goes to everybody on the own link needs no route.
        wanted = [each for each in EVERYTHING if not each.startswith("udp 224")]
        came = world.attempts(*wanted, uid=uid)
        assert (world.internet.read(), world.services.read()) == ([], [])
        answered = {each.split()[1] for each, what in came.items() if what == "answered"}
        assert answered <= {"127.0.0.1", "127.0.0.11", "::1", BOX, BOX6}
    assert world.attempts(f"tcp {INTERNET} 443", uid=PROXY_UID) == {f"tcp {INTERNET} 443": "answered"}


def test_all_of_it_goes(world: World) -> None:
    """Rules, routes and the routing table; also those of another proxy user than the last."""
    world.box.apply(OPEN, Tool.IPTABLES)
    world.box.apply(CLOSED, Tool.NFT)
    world.box.apply(Inside(77, PORT, ipv6=Ipv6.REDIRECTED), Tool.NFT)
    uids = [line for line in rules_of(world.box) if "uidrange" in line]
    assert len(uids) == 8 and not any(str(PROXY_UID + 1) in line for line in uids)
    assert world.box.remove(None)
    assert rules_of(world.box) == [] and not world.box.remove(None)
    assert world.attempts(f"tcp {INTERNET} 443", uid=AGENT_UID) == {f"tcp {INTERNET} 443": "answered"}
