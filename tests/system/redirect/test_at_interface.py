"""The rules of a host for a sandbox behind a veth pair: what reaches whom, by both tools and IP versions.

The world's host forwards, and its own services listen at all addresses: what does not arrive was stopped by
the rules.
"""

import pytest

from coatcheck.redirect.applying import Tool
from tests.system.redirect.attempts_at_interface import DNS, DNS6, EVERYTHING, OPEN, WEB, WEB6, world
from tests.system.redirect.world import (
    BOX,
    BOX6,
    CONTROL_PORT,
    DNS_PORT,
    HOST,
    HOST6,
    INTERNET6,
    PORT,
    RESOLVER,
    World,
)

__all__ = ["world"]

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip")


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
