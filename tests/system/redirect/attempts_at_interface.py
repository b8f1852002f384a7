"""What a sandbox behind a veth pair tries to reach, and the rules for its interface."""

from collections.abc import Iterator

import pytest

from coatcheck.redirect.plan import AtInterface, Ipv6
from tests.system.redirect.world import (
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
)

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
