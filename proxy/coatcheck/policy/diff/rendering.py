"""A comparison for people in a terminal, for reviewers under a pull request, and for programs."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from coatcheck.policy.diff.change import Change, Direction, quoted
from coatcheck.policy.diff.sets import Reach

MOST_HOSTS: Final = 12
"""Hosts of one line in text and Markdown; JSON has all. The number of the rest is said."""

_TITLES: Final = {
    Direction.WIDENS: "Widens",
    Direction.NARROWS: "Narrows",
    Direction.CHANGES: "Changes without widening",
}


def as_text(changes: Sequence[Change]) -> str:
    """One line a change, what it reaches below it, and a count at the end."""
    lines = []
    for change in changes:
        lines.append(f"{change.direction}: {change.text}")
        lines += [f"    {_line(reach, str)}" for reach in change.reaches]
    return "\n".join([*lines, summary(changes)]) + "\n"


def as_markdown(changes: Sequence[Change]) -> str:
    """For a comment under a pull request. Whatever stands in the policies stays text: no links, no mentions,
    no HTML."""
    lines = ["### What this changes in meaning", ""]
    if not changes:
        lines += ["Nothing: every request gets the same answer as before, under the same terms.", ""]
    for direction, title in _TITLES.items():
        found = [change for change in changes if change.direction is direction]
        if not found:
            continue
        lines += [f"**{title}**", ""]
        for change in found:
            lines.append(f"- {change.text}")
            lines += [f"  - {_line(reach, quoted)}" for reach in change.reaches]
        lines.append("")
    return "\n".join([*lines, summary(changes)]) + "\n"


def as_json(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Every change with all of its sets."""
    return [
        {
            "direction": change.direction.value,
            "policy": change.policy,
            "subject": change.subject.value,
            "text": change.text,
            "credential": change.credential or None,
            "rule": change.rule or None,
            "sessions": {
                "origins": sorted(change.sessions.origins),
                "isolations": sorted(change.sessions.isolations),
            },
            "requests": [_reach(reach) for reach in change.reaches],
            "before": change.before or None,
            "after": change.after or None,
        }
        for change in changes
    ]


def summary(changes: Iterable[Change]) -> str:
    """`2 changes widen, 1 narrows, 0 change something else`."""
    counts = dict.fromkeys(Direction, 0)
    for change in changes:
        counts[change.direction] += 1
    widens, narrows, others = counts.values()
    if not any(counts.values()):
        return "nothing changes in meaning"
    return f"{widens} {_verb(widens, 'widen')}, {narrows} {_verb(narrows, 'narrow')}, {others} otherwise"


def _verb(count: int, verb: str) -> str:
    return verb if count != 1 else f"{verb}s"


def _line(reach: Reach, shown: Any) -> str:
    """`gist.github.com: GET, POST on /gists/**, /user`."""
    hosts = [shown(str(host)) for host in reach.hosts[:MOST_HOSTS]]
    if len(reach.hosts) > MOST_HOSTS:
        hosts.append(f"and {len(reach.hosts) - MOST_HOSTS} more")
    said = ", ".join(hosts)
    doors = [door for door in reach.doors if door != ("https", 443)]
    if doors or not reach.doors:
        said += f" ({', '.join(_door(*door) for door in reach.doors)})"
    if not reach.methods:
        return said
    what = ", ".join(reach.methods)
    if True in reach.websocket:
        what += " also as WebSocket" if False in reach.websocket else " as WebSocket"
    return f"{said}: {what} on {', '.join(shown(str(path)) for path in reach.paths)}"


def _door(scheme: str, port: int) -> str:
    return f"port {port}" if scheme == "https" else f"plain HTTP on port {port}"


def _reach(reach: Reach) -> dict[str, Any]:
    return {
        "hosts": [{"host": str(host.pattern), "except": list(map(str, host.but))} for host in reach.hosts],
        "doors": [{"scheme": scheme, "port": port} for scheme, port in reach.doors],
        "methods": list(reach.methods),
        "websocket": list(reach.websocket),
        "paths": [
            {
                "within": list(map(str, path.within)),
                "except": list(map(str, path.but)),
                "ambiguous": path.odd.value,
            }
            for path in reach.paths
        ],
    }
