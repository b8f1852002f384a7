"""Applying and removing the rules with the machine's own tools. Whatever fails on the way leaves less open.

The order is what that rests on: routes close first, then the table that closes, then the one that redirects;
removing goes the other way round.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from coatcheck.redirect import iptables, nftables, routes
from coatcheck.redirect.plan import AtInterface, Inside, Ipv6, Place, Plan, RedirectError

TOOL_SECONDS = 20.0
"""For one run of a tool: iptables waits for others by a lock, which takes seconds on a busy machine."""
SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
"""Where they are looked for: not in a PATH that others set, since we run them as root."""
PACKAGES = {"nft": "nftables", "ip": "iproute2"}
"""Debian's; all others are in `iptables`."""
_EXISTS = ("File exists",)
_ABSENT = ("No such file or directory", "FIB table does not exist", "No such process")


class Tool(StrEnum):
    NFT = "nft"
    IPTABLES = "iptables"
    """iptables and ip6tables, whichever of their two kinds the machine has chosen."""


def script(plan: Plan, tool: Tool) -> str:
    """What `apply` does on a machine that has none of the rules yet, as a shell script."""
    text = ["# 1. Routes: they contain the sandbox even if the rules below are lost or flushed."]
    for family in routes.FAMILIES:
        text += [" ".join(command) for command in routes.apply_commands(plan, family)]
    text.append("# 2. What is redirected; all else is refused.")
    if tool is Tool.NFT:
        text += _here(("nft", "-f", "-"), nftables.apply_text(plan))
    else:
        for family, name in iptables.FAMILIES.items():
            text += _here(
                (f"{name}-restore", "--noflush", "--wait=10"), iptables.apply_text(plan, family, "")
            )
    return "\n".join([*text, ""])


def removal_script(plan: Plan, tool: Tool) -> str:
    """What `remove` does after `apply(plan, tool)`."""
    place = plan.place
    text = ["# What redirects and what refuses; then the routes."]
    if tool is Tool.NFT:
        text += _here(("nft", "-f", "-"), nftables.remove_text(place))
    else:
        for family, name in iptables.FAMILIES.items():
            saved = iptables.apply_text(plan, family, "").replace("-I ", "-A ").replace(" 1 -j", " -j")
            text += _here((f"{name}-restore", "--noflush", "--wait=10"), iptables.remove_text(place, saved))
    for family in routes.FAMILIES:
        commands = routes.remove_commands(place, family, routes.rules(plan, family))
        text += [" ".join(command) for command in commands]
    return "\n".join([*text, ""])


def _here(command: Sequence[str], text: str) -> list[str]:
    return [f"{' '.join(command)} <<'END'", text.rstrip("\n"), "END"]


def apply(plan: Plan, tool: Tool) -> None:
    """Put the rules in force, in place of any that stand for the same interface or namespace.

    Blocking, for seconds at most. RedirectError when the machine is not fit for them, or refuses; then the
    sandbox has no way out until `apply` succeeds or `remove` is called.
    """
    _check_machine(plan)
    for family in routes.FAMILIES:
        for command in routes.apply_commands(plan, family, _routing_rules(plan.place, family)):
            _ip(command)
    if tool is Tool.NFT:
        _run(("nft", "-f", "-"), nftables.apply_text(plan))
        _remove_iptables(plan.place)
    else:
        for family, name in iptables.FAMILIES.items():
            _run(
                (f"{name}-restore", "--noflush", "--wait=10"), iptables.apply_text(plan, family, _saved(name))
            )
        _remove_nft(plan.place)


def remove(place: Place) -> bool:
    """Take away every rule of ours for this interface (None: of this namespace), in both forms.

    Returns whether there was any. Blocking. RedirectError when a tool refuses: then some may still stand.
    """
    found = _remove_nft(place)
    found = _remove_iptables(place) or found
    for family in routes.FAMILIES:
        for command in routes.remove_commands(place, family, _routing_rules(place, family)):
            _ip(command)
            found = True
    return found


def _remove_nft(place: Place) -> bool:
    if _path("nft") is None:
        return False
    listed = _run(("nft", "list", "tables", "inet")).split()
    if not set(nftables.tables(place)) & set(listed):
        return False
    _run(("nft", "-f", "-"), nftables.remove_text(place))
    return True


def _remove_iptables(place: Place) -> bool:
    found = False
    for name in iptables.FAMILIES.values():
        if _path(f"{name}-save") is None:
            continue
        if text := iptables.remove_text(place, _saved(name)):
            _run((f"{name}-restore", "--noflush", "--wait=10"), text)
            found = True
    return found


def _saved(name: str) -> str:
    return _run((f"{name}-save",))


def _routing_rules(place: Place, family: str) -> tuple[routes.Words, ...]:
    return routes.present(place, _json(("ip", family, "-json", "rule")))


def _json(command: Sequence[str]) -> list[Mapping[str, Any]]:
    try:
        listed: list[Mapping[str, Any]] = json.loads(_run(command) or "[]")
    except ValueError:
        raise RedirectError(
            f"`{' '.join(command)}` did not answer in JSON", "install iproute2 (busybox's ip cannot do this)"
        ) from None
    return listed


def _ip(command: Sequence[str]) -> None:
    """Somebody else may have done, in the meantime, what was to be done."""
    fine = _EXISTS if "add" in command else _ABSENT
    _run(command, fine=fine)


def _path(command: str) -> str | None:
    return shutil.which(command, path=SEARCH_PATH)


def _run(command: Sequence[str], text: str = "", fine: tuple[str, ...] = ()) -> str:
    """Its standard output. `fine`: errors that mean that there was nothing to do."""
    path = _path(command[0])
    if path is None:
        raise RedirectError(
            f"{command[0]} is not installed", f"apt-get install {PACKAGES.get(command[0], 'iptables')}"
        )
    try:
        ran = subprocess.run(
            [path, *command[1:]],
            input=text,
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            env={"PATH": SEARCH_PATH, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RedirectError(
            f"{command[0]} did not run: {error}", "try it by hand: " + " ".join(command)
        ) from None
    if ran.returncode and not any(each in ran.stderr for each in fine):
        said = ran.stderr.strip() or f"exit code {ran.returncode}"
        raise RedirectError(f"`{' '.join(command)}` failed: {said[:2000]}", _hint(said))
    return ran.stdout


def _hint(said: str) -> str:
    if any(word in said for word in ("ermission denied", "not permitted", "be root")):
        return "run it as root, or with CAP_NET_ADMIN in the network namespace that is meant"
    if "xtables lock" in said:
        return "another program changes iptables now; run this again"
    return "nothing was opened; see what the tool says, then run this again, or `coatcheck redirect remove`"


def _check_machine(plan: Plan) -> None:
    if isinstance(plan, AtInterface):
        _check_interface(plan.interface)
    else:
        check_inside(plan)


def _check_interface(name: str) -> None:
    # Not by /sys/class/net: a process that enters a namespace (nsenter --net) still sees the former one's
    # there.
    links = [link for link in _json(("ip", "-json", "link")) if link.get("ifname") == name]
    if not links:
        raise RedirectError(
            f"there is no interface {name} in this network namespace",
            "make it first, apply the rules, and only then start the sandbox",
        )
    if master := links[0].get("master"):
        raise RedirectError(
            f"{name} is a port of {master}, so that its packets arrive from {master} and no rule for {name} "
            "would ever see one",
            f"take it out (ip link set {name} nomaster), or give --interface {master} if only sandboxes are "
            "behind it",
        )
    for family in routes.FAMILIES:
        listed = _json(("ip", family, "-json", "route", "show", "default"))
        if any(route.get("dev") == name for route in listed):
            raise RedirectError(
                f"{name} leads to this machine's own default route: it is no sandbox's interface, and these "
                "rules would cut this machine off",
                "give the host's end of the sandbox's veth pair",
            )


def check_inside(plan: Inside, net: Path = Path("/proc/sys/net")) -> None:
    """RedirectError when this namespace is not fit for rules of its own. `net`: the kernel's settings."""
    strict = [name for name in ("all", "lo") if _number(net / f"ipv4/conf/{name}/rp_filter") == 1]
    strict += [path.parent.name for path in net.glob("ipv4/conf/*/rp_filter") if _number(path) == 1]
    if strict and _number(net / "ipv4/conf/all/rp_filter") != 2:
        raise RedirectError(
            f"rp_filter is strict here ({', '.join(sorted(set(strict)))}): answers to the proxy would be "
            "dropped, since only the proxy's user has a route to where they come from",
            "sysctl -w net.ipv4.conf.all.rp_filter=2 (in this network namespace), then run this again",
        )
    if plan.ipv6 is Ipv6.REDIRECTED and _number(net / "ipv6/conf/lo/disable_ipv6") != 0:
        raise RedirectError(
            "IPv6 is off in this network namespace, so that it cannot be redirected",
            "give --ipv6 closed",
        )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
