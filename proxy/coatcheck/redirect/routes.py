"""The last ring: routing rules by which a sandbox's packets lead nowhere, whatever becomes of the firewall.

`nft flush ruleset` and `iptables -F` take every rule of ours along; policy routing is no part of either. What
the redirect takes never needs these routes: it is delivered on this machine.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from coatcheck.redirect.plan import LARGEST_UID, AtInterface, Inside, Ipv6, Place, Plan

PREFERENCE = 900
"""And the next number. After the kernel's `local` (0; 100 where Cilium moved it), before VRFs (1000),
Tailscale (5210) and main."""
TABLE = 10_443
"""Of routes for everybody but the proxy, in a sandbox's own namespace."""
FAMILIES = ("-4", "-6")

type Words = tuple[str, ...]
"""Of a rule, after `ip rule add`; or of a whole command."""


def rules(plan: Plan, family: str) -> tuple[Words, ...]:
    """What must stand in the policy routing table of `family`."""
    if isinstance(plan, AtInterface):
        return (("pref", str(PREFERENCE), "iif", plan.interface, "prohibit"),)
    ranges = ((0, plan.proxy_uid - 1), (plan.proxy_uid + 1, LARGEST_UID))
    others = [f"{first}-{last}" for first, last in ranges if first <= last]
    led = [("pref", str(PREFERENCE), "uidrange", uids, "lookup", str(TABLE)) for uids in others]
    # For a socket that asked for another device than loopback (SO_BINDTODEVICE): the look-up above fails.
    ended = [("pref", str(PREFERENCE + 1), "uidrange", uids, "prohibit") for uids in others]
    return (*ended, *(led if leads_to_loopback(plan, family) else ()))


def leads_to_loopback(plan: Plan, family: str) -> bool:
    """Inside, a connection must have a route before the redirect can take it: one to loopback, where it is
    taken or lost."""
    return isinstance(plan, Inside) and (family == "-4" or plan.ipv6 is Ipv6.REDIRECTED)


def present(place: Place, listed: Iterable[Mapping[str, Any]]) -> tuple[Words, ...]:
    """Our rules in what `ip -json rule` lists, in the words that made them and that remove them."""
    found: list[Words] = []
    for rule in listed:
        if rule.get("priority") not in (PREFERENCE, PREFERENCE + 1):
            continue
        preference = str(rule["priority"])
        action = ("prohibit",) if rule.get("action") == "prohibit" else ("lookup", str(rule.get("table")))
        if place is not None and rule.get("iif") == place and action == ("prohibit",):
            found.append(("pref", preference, "iif", place, "prohibit"))
        elif place is None and "uid_start" in rule and action in (("prohibit",), ("lookup", str(TABLE))):
            uids = f"{rule['uid_start']}-{rule['uid_end']}"
            found.append(("pref", preference, "uidrange", uids, *action))
    return tuple(found)


def apply_commands(plan: Plan, family: str, there: tuple[Words, ...] = ()) -> tuple[Words, ...]:
    """`ip …`, from the rules that are `there` to the wanted ones: what is new comes first."""
    wanted = rules(plan, family)
    commands: list[Words] = []
    if leads_to_loopback(plan, family):
        commands.append(("ip", "link", "set", "dev", "lo", "up"))
        # Before the rule: one that leads to an empty table leads on, to the next rule.
        commands.append(("ip", family, "route", "replace", "default", "dev", "lo", "table", str(TABLE)))
    commands += (("ip", family, "rule", "add", *rule) for rule in wanted if rule not in there)
    commands += (("ip", family, "rule", "del", *rule) for rule in there if rule not in wanted)
    return tuple(commands)


def remove_commands(place: Place, family: str, there: tuple[Words, ...]) -> tuple[Words, ...]:
    """`ip …`, so that none of `there` is left."""
    commands: list[Words] = [("ip", family, "rule", "del", *rule) for rule in there]
    if place is None and any("lookup" in rule for rule in there):
        commands.append(("ip", family, "route", "flush", "table", str(TABLE)))
    return tuple(commands)
