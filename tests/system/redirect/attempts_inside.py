"""What a sandbox whose proxy is in its own network namespace tries to reach, and the rules there."""

from collections.abc import Iterator

import pytest

from coatcheck.redirect.plan import Inside, Ipv6
from tests.system.redirect.world import (
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
    serving,
)

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
