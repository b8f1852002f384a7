"""The iptables form as text; what it does is in test_at_interface.py and test_inside.py."""

import pytest

from coatcheck.redirect.iptables import FAMILIES, apply_text, remove_text
from coatcheck.redirect.plan import AtInterface, Inside, Ipv6, Plan
from tests.system.redirect.world import Namespace, namespace

PLANS: tuple[Plan, ...] = (
    AtInterface("abcdefghij-0.78", 8443, 8053, (80, 443, 8080), Ipv6.REDIRECTED),
    AtInterface("v", 8443),
    Inside(990, 8443, 8053, ipv6=Ipv6.REDIRECTED, kept_out=(9900,)),
    Inside(990, 8443, 8053),
)
KINDS = ("nft", "legacy")
"""Of iptables: two programs, two kernel interfaces, one grammar."""


def command(family: str, kind: str, which: str) -> str:
    return f"{FAMILIES[family]}-{kind}-{which}"


def saved(there: Namespace, family: str, kind: str) -> str:
    """Rules and chains, without the tools' own comments, and without tables that hold none of either."""
    said = there.run(command(family, kind, "save")).stdout
    return "".join(
        f"{line}\n" for line in said.splitlines() if not line.startswith("#") and "ACCEPT [" not in line
    )


def rules(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("-A") or " - [" in line]


@pytest.mark.needs_debian("iptables", "ip")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_applied_twice_and_removed_between_the_rules_of_others(family: str, kind: str) -> None:
    """By the real tools: one jump each, in front; foreign rules and chains stay where they are."""
    with namespace() as there:
        theirs = (
            "*filter\n:THEIRS - [0:0]\n-A THEIRS -j RETURN\n-A INPUT -p tcp --dport 7 -j THEIRS\nCOMMIT\n"
        )
        there.run(command(family, kind, "restore"), "--noflush", stdin=theirs)
        before = rules(saved(there, family, kind))
        restore = (command(family, kind, "restore"), "--noflush", "--wait=10")
        for plan in PLANS:
            there.run(*restore, stdin=apply_text(plan, family, saved(there, family, kind)))
            once = saved(there, family, kind)
            there.run(*restore, stdin=apply_text(plan, family, once))
            assert rules(saved(there, family, kind)) == rules(once)
            jumps = [line for line in rules(once) if "-j COATCHECK-" in line]
            assert jumps and len(jumps) == len(set(jumps))
            first = next(line for line in rules(once) if line.startswith("-A INPUT"))
            assert ("-j COATCHECK-I-" in first) == isinstance(plan, AtInterface)
            there.run(*restore, stdin=remove_text(plan.place, once))
            assert rules(saved(there, family, kind)) == before
            assert remove_text(plan.place, saved(there, family, kind)) == ""


@pytest.mark.needs_debian("iptables", "ip")
def test_a_jump_that_was_lost_or_doubled_is_set_right() -> None:
    """`iptables -F INPUT`, or a tool that restored a saved state on top of ours."""
    plan = PLANS[0]
    with namespace() as there:
        there.run("iptables-restore", "--noflush", stdin=apply_text(plan, "-4", ""))
        there.run("iptables", "-F", "INPUT")
        there.run("iptables", "-A", "FORWARD", "-j", f"COATCHECK-F-{plan.place}")
        there.run(
            "iptables-restore", "--noflush", stdin=apply_text(plan, "-4", there.run("iptables-save").stdout)
        )
        text = there.run("iptables-save").stdout
        for chain in ("INPUT", "FORWARD"):
            assert len([line for line in text.splitlines() if line.startswith(f"-A {chain} -j")]) == 1


def test_what_others_named_alike_is_not_ours() -> None:
    """Chains of another interface, and jumps with a condition."""
    theirs = (
        "*filter\n:INPUT ACCEPT [0:0]\n:COATCHECK-I-veth1 - [0:0]\n-A INPUT -j COATCHECK-I-veth1\n"
        "-A INPUT -s 10.0.0.1/32 -j COATCHECK-I-veth0\nCOMMIT\n"
    )
    assert remove_text("veth0", theirs) == ""


def test_closed_ipv6_has_no_redirect() -> None:
    """ip6tables gets what closes only."""
    for plan in (PLANS[1], PLANS[3]):
        assert "*nat" in apply_text(plan, "-4", "") and "REDIRECT --to" not in apply_text(plan, "-6", "")
