"""Routing rules as words; that they hold is in test_at_interface.py and test_inside.py."""

import pytest

from coatcheck.redirect import routes
from coatcheck.redirect.plan import AtInterface, Inside, Ipv6, Plan

PLANS: tuple[Plan, ...] = (
    AtInterface("veth0", 8443),
    Inside(990, 8443, ipv6=Ipv6.REDIRECTED),
    Inside(1, 8443),
    Inside(4_294_967_294, 8443),
)


def listed(words: routes.Words) -> dict[str, object]:
    """A rule as `ip -json rule` lists it."""
    given = dict(zip(words[::2], words[1::2], strict=False))
    rule: dict[str, object] = {"priority": int(given["pref"]), "src": "all"}
    if "iif" in given:
        rule["iif"] = given["iif"]
    if "uidrange" in given:
        first, last = given["uidrange"].split("-")
        rule |= {"uid_start": int(first), "uid_end": int(last)}
    return rule | ({"action": "prohibit"} if words[-1] == "prohibit" else {"table": given["lookup"]})


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", routes.FAMILIES)
def test_rules_that_are_there_are_not_added_again(plan: Plan, family: str) -> None:
    """And all of them are found when they are to go."""
    there = routes.present(plan.place, [listed(rule) for rule in routes.rules(plan, family)])
    assert set(there) == set(routes.rules(plan, family))
    assert [command for command in routes.apply_commands(plan, family, there) if "rule" in command] == []
    removed = [
        command[4:] for command in routes.remove_commands(plan.place, family, there) if command[2] == "rule"
    ]
    assert set(removed) == set(there)


def test_another_proxy_user_takes_the_place_of_the_former() -> None:
    """What is new is there before what is old goes."""
    there = routes.rules(Inside(990, 8443), "-4")
    commands = routes.apply_commands(Inside(991, 8443), "-4", there)
    done = [command[3] for command in commands if command[2] == "rule"]
    assert done == ["add"] * 4 + ["del"] * 4


@pytest.mark.parametrize("uid", [1, 990, 4_294_967_294])
def test_everybody_but_the_proxy_is_in_a_range(uid: int) -> None:
    """No gap, no overlap; what a socket bound to a device would find ends, too."""
    for action in ("lookup", "prohibit"):
        ranges = sorted(
            tuple(map(int, rule[3].split("-")))
            for rule in routes.rules(Inside(uid, 8443), "-4")
            if action in rule
        )
        covered = sum(last - first + 1 for first, last in ranges)
        assert covered == 4_294_967_294 and not any(first <= uid <= last for first, last in ranges)


def test_rules_of_others_are_not_ours() -> None:
    """Of another preference, another interface, or another kind."""
    others: list[dict[str, object]] = [
        {"priority": 0, "src": "all", "table": "local"},
        {"priority": 900, "src": "all", "iif": "veth1", "action": "prohibit"},
        {"priority": 900, "src": "all", "iif": "veth0", "table": "main"},
        {"priority": 800, "src": "all", "iif": "veth0", "action": "prohibit"},
        {"priority": 900, "src": "all", "uid_start": 0, "uid_end": 5, "table": "vpn"},
    ]
    assert routes.present("veth0", others) == () == routes.present(None, others)
