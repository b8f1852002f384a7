"""Rules in a sandbox's own network namespace, the proxy in it as a user of its own (a pod, a sidecar)."""

import pytest

from coatcheck.redirect.applying import Tool
from tests.system.redirect.attempts_inside import DNS, DNS6, EVERYTHING, OPEN, OWN, WEB, WEB6, proxy, world
from tests.system.redirect.world import (
    AGENT_UID,
    CONTROL_PORT,
    DNS_PORT,
    INTERNET,
    INTERNET6,
    PORT,
    PROXY_UID,
    Server,
    World,
)

__all__ = ["proxy", "world"]

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip")


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
