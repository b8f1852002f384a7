"""Two policies, side by side: what sandboxes may do that they could not, and the other way round. Exact.

All requests are cut into cells that no pattern of either policy tells apart (`cells`), and both policies are
asked about each. A session is taken to be granted every credential of its policy: which ones it is granted is
not the policy's business, and nothing widens for one that has fewer. Headers by which a request names another
method (`decision.steering`) are left out: each method that they could name is looked at by itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from coatcheck.decision.policy import LimitScope, Policy, Rule
from coatcheck.decision.session import DEFAULT_ORIGIN_CLASSES
from coatcheck.policy.diff.answers import Cell, answer, cells_at, hosts_of, tunnels_at
from coatcheck.policy.diff.cells import HostCell, PathCell
from coatcheck.policy.diff.change import Change, Direction, Sessions, Subject, quoted
from coatcheck.policy.diff.sets import Reach, host_sets, reaches
from coatcheck.policy.diff.terms import (
    Term,
    credential_terms,
    filesystem_terms,
    observe_terms,
    rule_terms,
)

type Way = tuple[Subject, str]
"""A way of leaving, and the credential that goes along, if any."""


@dataclass(slots=True)
class Ways:
    """One side: the cells that may leave, by way."""

    cells: dict[Way, set[Cell]] = field(default_factory=lambda: defaultdict(set))
    tunnels: set[tuple[HostCell, int]] = field(default_factory=set)


@dataclass(slots=True)
class Sides:
    """Both policies, asked about everything."""

    old: Ways = field(default_factory=Ways)
    new: Ways = field(default_factory=Ways)
    deciding: dict[tuple[str, str], tuple[Rule, Rule]] = field(default_factory=dict)
    """The pairs of rules that decide some request in the old and in the new policy."""
    hosts: list[HostCell] = field(default_factory=list)
    paths_at: dict[HostCell, set[PathCell]] = field(default_factory=lambda: defaultdict(set))


def compare(name: str, old: Policy | None, new: Policy | None) -> list[Change]:
    """What changes for sessions of policy `name`, what widens first. None: there is no such policy.

    Raises TooComplex.
    """
    nothing = Policy(name, "", "")
    sides = look(old or nothing, new or nothing)
    changes = [*_policy(name, old, new)]
    changes += _requests(name, sides, old or nothing, new or nothing)
    changes += _tunnels(name, sides)
    if old is not None and new is not None:
        changes += _rules(name, sides)
        changes += _credentials(name, old, new)
    order = list(Direction)
    return sorted(changes, key=lambda change: order.index(change.direction))


def look(old: Policy, new: Policy) -> Sides:
    """Ask both policies about every cell."""
    sides = Sides(hosts=hosts_of([old, new]))
    for host in sides.hosts:
        for cell in cells_at(host, [old, new]):
            sides.paths_at[host].add(cell.path)
            before, after = answer(old, cell), answer(new, cell)
            for found, side in ((before, sides.old), (after, sides.new)):
                for kind, credential in found.ways if found else ():
                    side.cells[Subject(kind), credential].add(cell)
            if before and after and before.ways and after.ways:
                sides.deciding[before.rule.name, after.rule.name] = (before.rule, after.rule)
        opened, opens = tunnels_at(host, old), tunnels_at(host, new)
        sides.old.tunnels |= {(host, port) for port in opened}
        sides.new.tunnels |= {(host, port) for port in opens}
        for port in opened.keys() & opens.keys():
            sides.deciding[opened[port].name, opens[port].name] = (opened[port], opens[port])
    return sides


# --- requests -------------------------------------------------------------------------------------------


def _requests(name: str, sides: Sides, old: Policy, new: Policy) -> Iterator[Change]:
    for way in sorted(sides.old.cells.keys() | sides.new.cells.keys()):
        before, after = sides.old.cells.get(way, set()), sides.new.cells.get(way, set())
        was, is_ = _sessions(old, way[1]), _sessions(new, way[1])
        yield from _told(name, sides, way, Direction.WIDENS, after - before, before, is_)
        yield from _told(name, sides, way, Direction.NARROWS, before - after, after, was)
        both = before & after
        for sessions in is_.minus(was) if both else ():
            yield _one(name, sides, way, Direction.WIDENS, both, sessions, "")
        for sessions in was.minus(is_) if both else ():
            yield _one(name, sides, way, Direction.NARROWS, both, sessions, "")


def _sessions(policy: Policy, credential: str) -> Sessions:
    found = policy.credentials.get(credential)
    return Sessions.of(found) if found is not None else Sessions()


def _told(
    name: str,
    sides: Sides,
    way: Way,
    direction: Direction,
    cells: set[Cell],
    others: set[Cell],
    sessions: Sessions,
) -> Iterator[Change]:
    """Hosts that the other side does not reach at all this way, then more or fewer requests to the rest."""
    known = {cell.host for cell in others}
    elsewhere = {cell for cell in cells if cell.host not in known}
    more = "more" if direction is Direction.WIDENS else "fewer"
    if elsewhere:
        there = {cell.host for cell in elsewhere}
        yield _one(
            name, sides, way, direction, elsewhere, sessions, f"to {_count(sides, there, bool(known), more)}"
        )
    if rest := cells - elsewhere:
        there = {cell.host for cell in rest}
        where = f"in {more} requests to {_count(sides, there, False)}"
        yield _one(name, sides, way, direction, rest, sessions, where, still=True)


def _one(
    name: str,
    sides: Sides,
    way: Way,
    direction: Direction,
    cells: set[Cell],
    sessions: Sessions,
    where: str,
    still: bool = False,
) -> Change:
    """`where` empty: the same requests, for other sessions. `still`: the hosts stay within reach."""
    subject, credential = way
    match subject:
        case Subject.BARE:
            does = "send requests without a credential"
        case Subject.HANDLE:
            does = f"send credential {quoted(credential)}"
        case _:
            does = f"send credential {quoted(credential)} without showing its handle"
    may = "may now" if direction is Direction.WIDENS else "may" if still else "may no longer"
    usual = where and sessions == Sessions(DEFAULT_ORIGIN_CLASSES)
    who = f"sessions of policy {quoted(name)}" + (f" {sessions}" if str(sessions) and not usual else "")
    to = where or f"to {_count(sides, {cell.host for cell in cells}, False)}"
    text = f"{who} {may} {does} {to}"
    found = reaches(cells, sides.paths_at, sides.hosts)
    return Change(direction, name, subject, text, credential, sessions=sessions, reaches=found)


def _count(sides: Sides, hosts: set[HostCell], further: bool, more: str = "") -> str:
    """`2 more hosts and names below 1 more domain`; hosts below such a domain are not counted again."""
    found = host_sets(hosts, sides.hosts)
    below = sum(each.pattern.wildcard for each in found)
    exact = len(found) - below
    also = f"{more} " if further and more == "more" else ""
    parts = [f"{exact} {also}host{'s' * (exact != 1)}"] if exact else []
    if below:
        parts.append(f"names below {below} {also}domain{'s' * (below != 1)}")
    return " and ".join(parts)


def _tunnels(name: str, sides: Sides) -> Iterator[Change]:
    for direction, pairs in (
        (Direction.WIDENS, sides.new.tunnels - sides.old.tunnels),
        (Direction.NARROWS, sides.old.tunnels - sides.new.tunnels),
    ):
        ports: dict[int, set[HostCell]] = defaultdict(set)
        for host, port in pairs:
            ports[port].add(host)
        found = tuple(
            Reach(host_sets(hosts, sides.hosts), (("https", port),), (), (), ())
            for port, hosts in sorted(ports.items())
        )
        if found:
            may = "may now" if direction is Direction.WIDENS else "may no longer"
            where = _count(sides, {host for host, _ in pairs}, False)
            who = f"sessions of policy {quoted(name)}"
            text = f"{who} {may} open uninspected tunnels to {where}"
            yield Change(direction, name, Subject.TUNNEL, text, reaches=found)


# --- terms ----------------------------------------------------------------------------------------------


def _rules(name: str, sides: Sides) -> Iterator[Change]:
    for (was, is_), (old, new) in sides.deciding.items():
        rule = (
            f"rule {quoted(is_)}" if was == is_ else f"what rule {quoted(was)} allowed and {quoted(is_)} does"
        )
        for term in rule_terms(old, new):
            yield _term(name, Subject.TERMS, f"{rule}: ", term, rule=is_)
    yield from _counted_apart(name, sides.deciding)


def _counted_apart(name: str, deciding: Mapping[tuple[str, str], tuple[Rule, Rule]]) -> Iterator[Change]:
    """A rule cut in two counts twice: each half has the whole limit. Per credential it stays one count."""
    for at, direction in ((0, Direction.WIDENS), (1, Direction.NARROWS)):
        parts: dict[str, list[str]] = defaultdict(list)
        for pair in deciding:
            parts[pair[at]].append(pair[1 - at])
        for whole, names in parts.items():
            rules = {pair[at]: both[at] for pair, both in deciding.items()}
            alone = any(limit.per is not LimitScope.CREDENTIAL for limit in rules[whole].limits)
            if len(names) > 1 and alone:
                listed = ", ".join(map(quoted, sorted(names)))
                verb = "is now counted apart, by" if at == 0 else "now counts together what was counted by"
                text = f"rule {quoted(whole)} {verb} {listed}: each of them has limits of its own"
                yield Change(direction, name, Subject.TERMS, text, rule=whole)


def _credentials(name: str, old: Policy, new: Policy) -> Iterator[Change]:
    for key in sorted(old.credentials.keys() & new.credentials.keys()):
        for term in credential_terms(old.credentials[key], new.credentials[key]):
            yield _term(name, Subject.CREDENTIAL, f"credential {quoted(key)}: ", term, credential=key)


def _policy(name: str, old: Policy | None, new: Policy | None) -> Iterator[Change]:
    if old is None or new is None:
        if new is not None:
            text = f"policy {quoted(name)} is new: sessions can be opened under it"
            yield Change(Direction.WIDENS, name, Subject.POLICY, text)
            for term in observe_terms(None, new.observe):
                yield _term(name, Subject.POLICY, f"policy {quoted(name)}: ", term)
        elif old is not None:
            text = f"policy {quoted(name)} was removed: all requests of its sessions are refused"
            yield Change(Direction.NARROWS, name, Subject.POLICY, text)
        return
    if old.owner != new.owner:
        term = Term(Direction.CHANGES, "the owner", old.owner, new.owner)
        yield _term(name, Subject.POLICY, f"policy {quoted(name)}: ", term)
    for term in (
        *observe_terms(old.observe, new.observe),
        *filesystem_terms(old.filesystem, new.filesystem),
    ):
        yield _term(name, Subject.POLICY, f"policy {quoted(name)}: ", term)


def _term(
    name: str, subject: Subject, about: str, term: Term, credential: str = "", rule: str = ""
) -> Change:
    if term.before and term.after:
        said = f"{term.what} from {quoted(term.before)} to {quoted(term.after)}"
    elif term.after:
        said = f"{term.what}: {quoted(term.after)} added"
    else:
        said = f"{term.what}: {quoted(term.before)} removed"
    text = about + said
    return Change(term.direction, name, subject, text, credential, rule, before=term.before, after=term.after)
