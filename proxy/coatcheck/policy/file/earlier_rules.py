"""The rules above a rule, found by what they name: ten thousand are not compared pair by pair."""

from dataclasses import dataclass, field

from coatcheck.decision.host_index import suffixes
from coatcheck.decision.policy import PathPattern
from coatcheck.policy.file.models import RuleSpec


class EarlierRules:
    """Numbers of rules, in file order. They may cover or overlap; whether one does, the caller looks."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, bool], _Paths] = {}
        """Those that name a host or a wildcard's suffix, by their paths."""
        self._below: dict[str, list[tuple[int, bool]]] = {}
        """Those that name something below a suffix, and whether each is a tunnel."""
        self._named: dict[tuple[str, bool, bool], list[int]] = {}
        """By suffix, wildcard and tunnel."""

    def add(self, number: int, rule: RuleSpec) -> None:
        """After all before it."""
        for host in rule.hosts:
            self._hosts.setdefault((host.suffix, host.wildcard), _Paths()).add(number, rule.paths)
            self._named.setdefault((host.suffix, host.wildcard, rule.tunnel), []).append(number)
            for suffix in suffixes(host.suffix):
                self._below.setdefault(suffix, []).append((number, rule.tunnel))

    def may_cover(self, rule: RuleSpec) -> list[int]:
        """Those that could allow all that `rule` does: they cover its first host and its first path."""
        host = rule.hosts[0]
        found: set[int] = set()
        for key in ((host.suffix, host.wildcard), *((suffix, True) for suffix in suffixes(host.suffix))):
            if key in self._hosts:
                found |= self._hosts[key].covering(rule.paths[0] if rule.paths else None)
        return sorted(found)

    def other_kind(self, rule: RuleSpec) -> list[int]:
        """Those that share a host with `rule`, where one is a tunnel and the other is not."""
        other = not rule.tunnel
        found: set[int] = set()
        for host in rule.hosts:
            found.update(self._named.get((host.suffix, host.wildcard, other), ()))
            for suffix in suffixes(host.suffix):
                found.update(self._named.get((suffix, True, other), ()))
            if host.wildcard:
                found.update(number for number, tunnel in self._below.get(host.suffix, ()) if tunnel is other)
        return sorted(found)


@dataclass(slots=True)
class _Paths:
    """Rules by the segments of their paths."""

    everything: list[int] = field(default_factory=list)
    """Every path below here, or every path at all."""
    exactly: list[int] = field(default_factory=list)
    inner: "dict[str, _Paths]" = field(default_factory=dict)

    def add(self, number: int, paths: list[PathPattern]) -> None:
        if not paths:
            self.everything.append(number)
        for path in paths:
            node = self
            for segment in path.segments:
                node = node.inner.setdefault(segment, _Paths())
            (node.everything if path.prefix else node.exactly).append(number)

    def covering(self, path: PathPattern | None) -> set[int]:
        """Those with a pattern that matches all that `path` matches; None: every path."""
        if path is None:
            return set(self.everything)
        found: set[int] = set()
        nodes = [self]
        for segment in path.segments:
            for node in nodes:
                found.update(node.everything)
            # A star needs a segment that is not empty.
            wanted = {segment, "*"} if segment else {segment}
            nodes = [node.inner[each] for node in nodes for each in wanted if each in node.inner]
        for node in nodes:
            found.update(node.everything)
            if not path.prefix:
                found.update(node.exactly)
        return found
