"""Rules that ask or limit, and requests that an earlier rule lets past them without.

An exception is no finding: a rule whose requests all fit the one below it has no other purpose. One that is
for other requests as well, and takes some of a stricter rule's with it, has probably been written without a
look at it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator

from coatcheck.decision.path import ENCODED_SLASH
from coatcheck.decision.policy import Limit, LimitKind, LimitScope, PathPattern, Policy, Rule
from coatcheck.policy.diff.answers import Cell
from coatcheck.policy.diff.terms import exceeds
from coatcheck.policy.file.building import DEFAULT_REQUESTS
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.problem import Finding, Level


class Slips:
    """Sees each piece of all requests with the rule that decides it, and says afterwards what slips past
    what."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._numbers = {rule.name: number for number, rule in enumerate(policy.rules)}
        self._open: list[int] = []
        """Strict rules for every path."""
        self._by_path: dict[PathPattern, list[int]] = defaultdict(list)
        for number, rule in enumerate(policy.rules):
            if rule.tunnel or rule.asking is None and not limits_of(rule):
                continue
            if not rule.paths:
                self._open.append(number)
            for path in rule.paths:
                self._by_path[path].append(number)
        self._past: dict[tuple[int, int], Cell] = {}
        """By the strict rule and the one that decides: a request that slips past."""
        self._inside: dict[int, set[int]] = {}
        """By the rule that decides: strict rules that all its requests fit. It is an exception to them."""

    def see(self, cell: Cell, decides: Rule) -> None:
        """`decides` has the terms of all rules that have a say."""
        at = self._numbers[decides.name]
        strict = self._strict(cell)
        self._inside[at] = self._inside.get(at, strict) & strict
        say = {decides.name, *(rule.name for rule in decides.further)}
        for number in strict:
            rule = self._policy.rules[number]
            if number > at and rule.name not in say and lacks(decides, rule):
                self._past.setdefault((number, at), cell)

    def findings(self, reached: Collection[str]) -> Iterator[Finding]:
        """About rules of which the rest is in force: one that is never reached has its own finding."""
        told: set[int] = set()
        for (number, at), cell in sorted(self._past.items(), key=lambda item: item[0]):
            rule, earlier = self._policy.rules[number], self._policy.rules[at]
            if number in told or number in self._inside[at] or rule.name not in reached:
                continue
            told.add(number)
            asks = rule.asking is not None
            request = f"{cell.method} {cell.destination.url}{cell.path.member}"
            yield Finding(
                ("rules", number, "ask" if asks else "limits"),
                f'"{rule.name}" {"asks" if asks else "limits"}, and "{earlier.name}" above it lets some of '
                f"its requests pass, such as {request}",
                f'move it above "{earlier.name}", or narrow that one',
                Level.WARNING,
                Code.SLIPS_PAST,
            )

    def _strict(self, cell: Cell) -> set[int]:
        """The strict rules that fit the requests of the cell as they are written."""
        listed = {number for path in cell.path.matched for number in self._by_path.get(path, ())}
        if ENCODED_SLASH not in cell.path.member:
            listed.update(self._open)
        return {number for number in listed if _at(self._policy.rules[number], cell)}


def _at(rule: Rule, cell: Cell) -> bool:
    return (
        cell.port in rule.ports
        and cell.method in rule.methods
        and (cell.scheme == "https" or rule.plain_http)
        and (rule.websocket or not cell.websocket)
        and any(host.matches(cell.host.member) for host in rule.hosts)
    )


def lacks(decides: Rule, strict: Rule) -> bool:
    """Whether a request under `decides` is not asked about where `strict` asks, or has more than it
    allows."""
    if strict.asking is not None and decides.asking is None:
        return True
    return any(
        exceeds(_of(decides.limits, kind, scope), _of(limits_of(strict), kind, scope))
        for kind in LimitKind
        for scope in LimitScope
    )


def limits_of(rule: Rule) -> tuple[Limit, ...]:
    """Those that somebody wrote."""
    return tuple(limit for limit in rule.limits if limit != DEFAULT_REQUESTS)


def _of(limits: tuple[Limit, ...], kind: LimitKind, scope: LimitScope) -> list[Limit]:
    return [limit for limit in limits if (limit.kind, limit.per) == (kind, scope)]
