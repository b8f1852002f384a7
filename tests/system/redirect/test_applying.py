"""The real tools, run and failing; that the rules hold is in test_at_interface.py and test_inside.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.redirect import applying, nftables
from coatcheck.redirect.applying import Tool, check_inside, removal_script, script
from coatcheck.redirect.plan import AtInterface, Inside, Ipv6, Plan, RedirectError
from tests.system.redirect.world import Namespace, namespace, rules_of

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip")

PLANS: tuple[Plan, ...] = (
    AtInterface("agent0", 8443, 8053, ipv6=Ipv6.REDIRECTED),
    Inside(990, 8443, 8053, ipv6=Ipv6.REDIRECTED, kept_out=(9900,)),
    Inside(990, 8443),
)


@pytest.fixture
def there() -> Iterator[Namespace]:
    """A namespace with a veth pair in it: `agent0`, as a sandbox's host has it."""
    with namespace() as made:
        made.ip("link add agent0 type veth peer name peer0", "link set agent0 up")
        yield made


@pytest.mark.parametrize("tool", Tool)
def test_what_is_printed_is_what_is_done(there: Namespace, tool: Tool) -> None:
    """The shell scripts of `print` leave the same rules as `apply`, and as `remove`."""
    for plan in PLANS:
        there.apply(plan, tool)
        applied = rules_of(there)
        assert applied and there.remove(plan.place)
        there.run("sh", "-e", stdin=script(plan, tool))
        assert rules_of(there) == applied
        there.run("sh", "-e", stdin=removal_script(plan, tool))
        assert rules_of(there) == []


def test_an_interface_that_is_not_there_is_no_sandbox_in_safety(there: Namespace) -> None:
    """A typo would leave the real one open."""
    with pytest.raises(RedirectError, match="there is no interface agent1") as refused:
        there.apply(AtInterface("agent1", 8443), Tool.NFT)
    assert "make it first" in refused.value.hint and rules_of(there) == []


def test_a_bridge_port_is_refused(there: Namespace) -> None:
    """Its packets arrive from the bridge: rules for it would look well and match nothing."""
    there.ip("link add br0 type bridge", "link set agent0 master br0")
    with pytest.raises(RedirectError, match="agent0 is a port of br0") as refused:
        there.apply(PLANS[0], Tool.NFT)
    assert "--interface br0" in refused.value.hint and rules_of(there) == []


@pytest.mark.parametrize("family", ["-4", "-6"])
def test_this_machines_own_way_out_is_refused(there: Namespace, family: str) -> None:
    """Who confuses the two ends of a wire would cut off the machine."""
    there.ip("addr add 10.0.0.1/24 dev agent0", "addr add fd00::1/64 dev agent0 nodad")
    there.run("ip", family, "route", "add", "default", "via", "10.0.0.2" if family == "-4" else "fd00::2")
    with pytest.raises(RedirectError, match="own default route"):
        there.apply(PLANS[0], Tool.NFT)
    assert rules_of(there) == []


def test_a_tool_that_is_missing_is_told_with_its_package(
    there: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the routes that were made before keep the sandbox in."""
    (tmp_path / "ip").symlink_to("/usr/sbin/ip" if Path("/usr/sbin/ip").exists() else "/sbin/ip")
    monkeypatch.setattr(applying, "SEARCH_PATH", str(tmp_path))
    with pytest.raises(RedirectError, match="nft is not installed") as refused:
        there.apply(PLANS[0], Tool.NFT)
    assert refused.value.hint == "apt-get install nftables"
    with pytest.raises(RedirectError, match="iptables-save is not installed") as refused:
        there.apply(PLANS[0], Tool.IPTABLES)
    assert refused.value.hint == "apt-get install iptables"
    monkeypatch.undo()
    assert len(rules_of(there)) == 2
    assert there.remove("agent0") and rules_of(there) == []


def test_a_tool_that_refuses_is_quoted_and_nothing_opens(
    there: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nft's own words, and what stood before stands."""
    there.apply(PLANS[0], Tool.NFT)
    before = rules_of(there)
    monkeypatch.setattr(nftables, "apply_text", lambda plan: "flush ruleset\nnonsense\n")
    with pytest.raises(RedirectError, match=r"`nft -f -` failed: .*syntax error") as refused:
        there.apply(PLANS[0], Tool.NFT)
    assert "nothing was opened" in refused.value.hint and rules_of(there) == before


def kernel(directory: Path, **values: int) -> Path:
    """/proc/sys/net with a few settings."""
    for name, value in values.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return directory


def test_strict_reverse_path_filters_are_found_before_they_drop_the_proxys_answers(tmp_path: Path) -> None:
    """One interface is enough, unless all are set to loose: the larger of the two counts."""
    net = kernel(tmp_path, ipv4__conf__all__rp_filter=0, ipv4__conf__eth0__rp_filter=1)
    with pytest.raises(RedirectError, match=r"rp_filter is strict here \(eth0\)") as refused:
        check_inside(Inside(990, 8443), net)
    assert "rp_filter=2" in refused.value.hint
    check_inside(Inside(990, 8443), kernel(tmp_path, ipv4__conf__all__rp_filter=2))


def test_ipv6_that_is_off_is_closed_and_not_redirected(tmp_path: Path) -> None:
    """Loopback has no ::1 then."""
    plan = Inside(990, 8443, ipv6=Ipv6.REDIRECTED)
    for net in (tmp_path / "none", kernel(tmp_path / "off", ipv6__conf__lo__disable_ipv6=1)):
        with pytest.raises(RedirectError, match="IPv6 is off") as refused:
            check_inside(plan, net)
        assert refused.value.hint == "give --ipv6 closed"
    check_inside(plan, kernel(tmp_path / "on", ipv6__conf__lo__disable_ipv6=0))
