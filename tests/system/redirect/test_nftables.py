"""The nftables form as text; what it does is in test_at_interface.py and test_inside.py."""

import subprocess

import pytest

from coatcheck.redirect.nftables import apply_text, remove_text, tables
from coatcheck.redirect.plan import AtInterface, Inside, Ipv6, Plan
from tests.system.redirect.world import namespace

PLANS: tuple[Plan, ...] = (
    AtInterface("agent-0.7", 8443, 8053, (80, 443, 8080), Ipv6.REDIRECTED),
    AtInterface("v", 8443),
    Inside(990, 8443, 8053, ipv6=Ipv6.REDIRECTED, kept_out=(9900,)),
    Inside(990, 8443, 8053),
    Inside(1, 8443),
)


@pytest.mark.needs_debian("nft", "ip")
def test_nft_takes_every_form_of_it_twice_and_removes_all_of_it() -> None:
    """By the real tool, in one transaction each: applying again changes nothing."""
    with namespace() as there:
        for plan in PLANS:
            there.run("nft", "-f", "-", stdin=apply_text(plan))
            once = there.run("nft", "list", "ruleset").stdout
            there.run("nft", "-f", "-", stdin=apply_text(plan))
            assert there.run("nft", "list", "ruleset").stdout == once != ""
            there.run("nft", "-f", "-", stdin=remove_text(plan.place))
            assert there.run("nft", "list", "ruleset").stdout == ""
            there.run("nft", "-f", "-", stdin=remove_text(plan.place))


@pytest.mark.needs_debian("nft", "ip")
def test_a_broken_text_changes_nothing() -> None:
    """One transaction: what stood before stands."""
    with namespace() as there:
        there.run("nft", "-f", "-", stdin=apply_text(PLANS[0]))
        before = there.run("nft", "list", "ruleset").stdout
        ran: subprocess.CompletedProcess[str] = there.run(
            "nft", "-f", "-", stdin=apply_text(PLANS[0]) + "add rule inet nowhere x drop\n", check=False
        )
        assert ran.returncode != 0 and there.run("nft", "list", "ruleset").stdout == before


def test_each_interface_has_tables_of_its_own() -> None:
    """Names that differ in a character only; and no table is another's closing one."""
    names = ("a-b", "a.b", "a_b", "ab", "a_2db", "a", "a_closed", None)
    all_of_them = [name for place in names for name in tables(place)]
    assert len(set(all_of_them)) == 2 * len(names)


def test_closed_ipv6_is_never_redirected() -> None:
    """Each redirect names IPv4."""
    for plan in (PLANS[1], PLANS[3]):
        redirects = [line for line in apply_text(plan).splitlines() if "redirect to" in line]
        assert redirects and all("meta nfproto ipv4" in line for line in redirects)
