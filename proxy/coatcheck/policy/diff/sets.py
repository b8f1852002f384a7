"""Cells put together again: the few lines of hosts, methods and paths that say exactly the same."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from coatcheck.decision.path import ambiguous
from coatcheck.decision.policy import HostPattern, PathPattern
from coatcheck.policy.diff.answers import Cell
from coatcheck.policy.diff.cells import HostCell, PathCell
from coatcheck.policy.file.overlap import host_covers


class Odd(StrEnum):
    """Whether paths with `//` or `;` are meant: only rules that do not look at paths allow them."""

    WITH = "with"
    WITHOUT = "without"
    ONLY = "only"


@dataclass(frozen=True, slots=True)
class HostSet:
    """All hosts that `pattern` matches and none of `but` does."""

    pattern: HostPattern
    but: tuple[HostPattern, ...] = ()

    def contains(self, host: str) -> bool:
        return self.pattern.matches(host) and not any(found.matches(host) for found in self.but)

    def __str__(self) -> str:
        return f"{self.pattern}{_except(self.but)}"


@dataclass(frozen=True, slots=True)
class PathSet:
    """All paths that every one of `within` matches and none of `but` does; empty `within`: all paths."""

    within: tuple[PathPattern, ...] = ()
    but: tuple[PathPattern, ...] = ()
    odd: Odd = Odd.WITHOUT

    def contains(self, path: str) -> bool:
        """`path` is canonical."""
        if ambiguous(path):
            return self.odd is not Odd.WITHOUT
        if self.odd is Odd.ONLY:
            return False
        return all(p.matches(path) for p in self.within) and not any(p.matches(path) for p in self.but)

    def __str__(self) -> str:
        if self.odd is Odd.ONLY:
            return "paths with // or ;"
        inside = " and ".join(map(str, self.within))
        if not inside:
            inside = "every path" if self.odd is Odd.WITH or self.but else "/**"
        return f"{inside}{_except(self.but)}"


@dataclass(frozen=True, slots=True)
class Reach:
    """A product of sets: each host, on each door, with each method, on each path."""

    hosts: tuple[HostSet, ...]
    doors: tuple[tuple[str, int], ...]
    """Scheme and port."""
    methods: tuple[str, ...]
    """Empty for a tunnel, in which none is seen."""
    websocket: tuple[bool, ...]
    """Whether the upgrade is asked for; both: with and without."""
    paths: tuple[PathSet, ...]

    def contains(self, scheme: str, host: str, port: int, method: str, websocket: bool, path: str) -> bool:
        return (
            (scheme, port) in self.doors
            and websocket in self.websocket
            and method in self.methods
            and any(found.contains(host) for found in self.hosts)
            and any(found.contains(path) for found in self.paths)
        )


type _Piece = tuple[tuple[tuple[str, int], ...], tuple[bool, ...], tuple[str, ...], tuple[PathSet, ...]]


def reaches(
    cells: Iterable[Cell], paths_at: Mapping[HostCell, Collection[PathCell]], hosts: Collection[HostCell]
) -> tuple[Reach, ...]:
    """`cells` as few products. `paths_at` and `hosts` are all that there are: what is left out is named."""
    by_host: dict[HostCell, dict[tuple[str, int, bool, str], set[PathCell]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for cell in cells:
        by_host[cell.host][cell.scheme, cell.port, cell.websocket, cell.method].add(cell.path)
    alike: dict[frozenset[_Piece], set[HostCell]] = defaultdict(set)
    for host, found in by_host.items():
        alike[_pieces(found, paths_at[host])].add(host)
    return tuple(
        Reach(host_sets(group, hosts), doors, methods, websocket, paths)
        for pieces, group in sorted(alike.items(), key=lambda item: min(item[1]))
        for doors, websocket, methods, paths in sorted(pieces, key=str)
    )


def _pieces(
    found: Mapping[tuple[str, int, bool, str], set[PathCell]], universe: Collection[PathCell]
) -> frozenset[_Piece]:
    """One host's requests: methods that reach the same paths together, then doors that are alike."""
    methods: dict[tuple[str, int, bool, tuple[PathSet, ...]], set[str]] = defaultdict(set)
    for (scheme, port, websocket, method), cells in found.items():
        methods[scheme, port, websocket, path_sets(cells, universe)].add(method)
    upgrades: dict[tuple[str, int, tuple[PathSet, ...], tuple[str, ...]], set[bool]] = defaultdict(set)
    for (scheme, port, websocket, paths), names in methods.items():
        upgrades[scheme, port, paths, tuple(sorted(names))].add(websocket)
    doors: dict[tuple[tuple[bool, ...], tuple[PathSet, ...], tuple[str, ...]], set[tuple[str, int]]]
    doors = defaultdict(set)
    for (scheme, port, paths, listed), sockets in upgrades.items():
        doors[tuple(sorted(sockets)), paths, listed].add((scheme, port))
    return frozenset(
        (tuple(sorted(through, reverse=True)), sockets, listed, paths)
        for (sockets, paths, listed), through in doors.items()
    )


def host_sets(chosen: Collection[HostCell], universe: Collection[HostCell]) -> tuple[HostSet, ...]:
    """`chosen` of all hosts that some pattern names, exactly."""
    left_out = [cell.pattern for cell in universe if cell not in chosen]
    found = []
    for cell in sorted(chosen):
        below = [p for p in left_out if p != cell.pattern and host_covers(cell.pattern, p)]
        widest = [p for p in below if not any(q != p and host_covers(q, p) for q in below)]
        found.append(HostSet(cell.pattern, tuple(widest)))
    return tuple(
        each for each in found if not any(other is not each and _includes(other, each) for other in found)
    )


def _includes(outer: HostSet, inner: HostSet) -> bool:
    return host_covers(outer.pattern, inner.pattern) and not any(
        host_covers(gap, inner.pattern) for gap in outer.but
    )


def path_sets(chosen: Collection[PathCell], universe: Collection[PathCell]) -> tuple[PathSet, ...]:
    """`chosen` of all cells of one host, exactly: by whole patterns where that is possible."""
    plain = frozenset(cell for cell in universe if not cell.ambiguous)
    take = plain & frozenset(chosen)
    odd = any(cell.ambiguous for cell in chosen)
    if take == plain:
        return (PathSet(odd=Odd.WITH if odd else Odd.WITHOUT),)
    cells_of = {
        pattern: frozenset(cell for cell in plain if pattern in cell.matched)
        for pattern in sorted({p for cell in plain for p in cell.matched}, key=str)
    }
    found = [PathSet(odd=Odd.ONLY)] if odd else []
    whole = _widest({pattern: cells for pattern, cells in cells_of.items() if cells <= take})
    found += [PathSet((pattern,)) for pattern in whole]
    rest = take.difference(*(cells_of[pattern] for pattern in whole))
    while rest:
        within, but = _but_for(rest, take, plain, cells_of) or _one(min(rest, key=_name), cells_of)
        found.append(PathSet(within, but))
        covered = plain.intersection(*(cells_of[pattern] for pattern in within))
        rest -= covered.difference(*(cells_of[pattern] for pattern in but))
    return tuple(found)


type _Patterns = tuple[PathPattern, ...]


def _but_for(
    rest: frozenset[PathCell],
    take: frozenset[PathCell],
    plain: frozenset[PathCell],
    cells_of: Mapping[PathPattern, frozenset[PathCell]],
) -> tuple[_Patterns, _Patterns] | None:
    """The pattern that covers most of `rest`, but for whole others that are not meant."""
    bases: list[tuple[_Patterns, frozenset[PathCell]]] = [((p,), cells) for p, cells in cells_of.items()]
    bases = sorted([*bases, ((), plain)], key=lambda base: (-len(base[1] & rest), len(base[1])))
    for within, cells in bases:
        missing = cells - take
        gaps = {p: own & cells for p, own in cells_of.items() if own & cells and own & cells <= missing}
        if cells & rest and missing == frozenset().union(*gaps.values()):
            return within, _widest(gaps)
    return None


def _one(cell: PathCell, cells_of: Mapping[PathPattern, frozenset[PathCell]]) -> tuple[_Patterns, _Patterns]:
    """One cell by its definition: what all of its patterns match, and no other."""
    within = tuple(
        p for p in sorted(cell.matched, key=str) if not any(cells_of[q] < cells_of[p] for q in cell.matched)
    )
    inside = [cells_of[p] for p in within]
    others = {p: cells for p, cells in cells_of.items() if p not in cell.matched}
    gaps = {p: cells for p, cells in others.items() if cells.intersection(*inside)}
    return within, _widest(gaps)


def _widest(sets: Mapping[PathPattern, frozenset[PathCell]]) -> _Patterns:
    """Without those that another one covers; of equal ones, the first."""
    kept: dict[frozenset[PathCell], PathPattern] = {}
    for pattern, cells in sets.items():
        kept.setdefault(cells, pattern)
    return tuple(p for cells, p in kept.items() if not any(cells < other for other in kept))


def _name(cell: PathCell) -> str:
    return cell.member


def _except(gaps: Iterable[object]) -> str:
    listed = ", ".join(map(str, gaps))
    return f" except {listed}" if listed else ""
