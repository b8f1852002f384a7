"""Rules in a sandbox's own network namespace, the proxy in it as a user of its own (a pod, a sidecar)."""

from collections.abc import Iterator

import pytest

from coatcheck.redirect.applying import Tool
from coatcheck.redirect.plan import Inside, Ipv6
from tests.system.redirect.world import (
    AGENT_UID,
    BOX,
    BOX6,
    CONTROL_PORT,
    DNS_PORT,
    HOST,
    HOST6,
    INTERNET,
    INTERNET6,
    PORT,
    PROXY_UID,
    RESOLVER,
    Server,
    World,
    rules_of,
    serving,
)

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip")

WEB = (f"tcp {INTERNET} 443", f"tcp {INTERNET} 80", f"tcp {HOST} 443")
WEB6 = (f"tcp {INTERNET6} 443",)
DNS = (f"udp {RESOLVER} 53", f"tcp {RESOLVER} 53", "udp 127.0.0.53 53", "udp 127.0.0.11 53")
DNS6 = (f"udp {INTERNET6} 53",)
OWN = ("tcp 127.0.0.1 3000", "tcp ::1 3000", f"tcp {BOX} 3000", f"tcp {BOX6} 3000")
"""A server of the sandbox's own."""
REFUSED = (
    f"tcp {INTERNET} 8080", f"tcp {INTERNET6} 8080", f"udp {INTERNET} 443", f"udp {INTERNET6} 443",
    f"udp {INTERNET} 9999", f"udp {INTERNET6} 9999",
    f"fragment {INTERNET} 9999", f"fragment {INTERNET6} 9999",
    f"tcp 127.0.0.1 {CONTROL_PORT}", f"tcp ::1 {CONTROL_PORT}", f"tcp {BOX} {CONTROL_PORT}",
    f"tcp {HOST} {CONTROL_PORT}", f"tcp {HOST6} {CONTROL_PORT}", f"udp {HOST} 5000", f"udp {HOST6} 5000",
    "udp 127.0.0.11 5353",  # Docker's resolver: that its port is another one than 53 is no secret
    "udp 224.0.0.1 5000",
    f"bound {INTERNET} 443 eth0", f"bound {INTERNET6} 443 eth0", f"bound {INTERNET} 8080 eth0",
)  # fmt: skip
FLUSH = {
    Tool.NFT: "nft flush ruleset",
    Tool.IPTABLES: "for ip in iptables ip6tables; do for t in raw filter nat; do $ip -t $t -F; done; done",
}
EVERYTHING = (*WEB, *WEB6, *DNS, *DNS6, *OWN, *REFUSED)


@pytest.fixture(scope="module")
def proxy(made_world: World) -> Iterator[Server]:
    """The stand-in for the sidecar, and for whatever else listens in the pod."""
    at = ("127.0.0.1", "::1")  # an answer over UDP leaves from where the question came to
    dns = [f"{protocol}/{DNS_PORT}@{address}" for protocol in ("udp", "tcp") for address in at]
    words = (*dns, f"tcp/{PORT}", f"tcp/{CONTROL_PORT}", "tcp/3000", "udp/5353")
    with serving(made_world.box, *words, uid=PROXY_UID) as server:
        yield server


@pytest.fixture
def world(made_world: World, proxy: Server) -> Iterator[World]:
    made_world.internet.read()
    made_world.services.read()
    proxy.read()
    yield made_world
    made_world.box.remove(None)
    made_world.box.run("nft", "flush", "ruleset")


OPEN = Inside(PROXY_UID, PORT, DNS_PORT, ipv6=Ipv6.REDIRECTED, kept_out=(CONTROL_PORT,))
CLOSED = Inside(PROXY_UID, PORT, kept_out=(CONTROL_PORT,))


@pytest.mark.parametrize("tool", Tool)
def test_the_sandbox_is_led_to_the_proxy_and_only_the_proxy_gets_out(
    world: World, proxy: Server, tool: Tool
) -> None:
    """The same attempts without rules arrive in the internet, or at the host."""
    world.attempts(*EVERYTHING, uid=AGENT_UID)
    assert len(world.internet.read()) >= 10 and world.services.read()
    proxy.read()
    world.box.apply(OPEN, tool)
    came = world.attempts(*EVERYTHING, uid=AGENT_UID)
    assert (world.internet.read(), world.services.read()) == ([], [])
    heard = proxy.read()
    assert {line.split(" ", 2)[2] for line in heard if line.startswith(f"tcp/{PORT}")} == {
        each[4:] for each in (*WEB, *WEB6)
    }
    assert sum(line.startswith(f"udp/{DNS_PORT}") for line in heard) == 4
    assert {each for each, what in came.items() if what == "answered"} == {*WEB, *WEB6, *DNS, *DNS6, *OWN}
    assert came[f"tcp {INTERNET} 8080"] == came[f"tcp 127.0.0.1 {CONTROL_PORT}"] == "ECONNREFUSED"
    own = (f"tcp {INTERNET} 443", f"tcp {INTERNET6} 8080", f"tcp 127.0.0.1 {CONTROL_PORT}")
    assert set(world.attempts(*own, uid=PROXY_UID).values()) == {"answered"}
    assert len(world.internet.read()) == 2


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
