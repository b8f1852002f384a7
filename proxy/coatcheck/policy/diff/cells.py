"""Hosts and paths cut into pieces: within one piece, every pattern matches all or nothing.

So one member of a piece answers for all of it, and looking at each piece once is looking at every request.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import product
from math import prod

from coatcheck.decision.path import ENCODED_SLASH
from coatcheck.decision.policy import HostPattern, PathPattern, segment_matches
from coatcheck.platform.errors import CoatcheckError

MAX_STATES = 20_000
"""Of one host's paths. A thousand plain patterns make some thousand; `/*/a`, `/b/*` and their kin can make
two to the power of their number, and a pull request must not hang the review."""

AMBIGUOUS = "/a//b"
"""Stands for every path with `//` or `;` in it: the core treats all of them alike (`decision.path`)."""


class TooComplex(CoatcheckError):
    """The patterns of one host make more pieces than anybody could review."""

    def __init__(self) -> None:
        super().__init__(
            f"the paths of one host overlap in more than {MAX_STATES} ways",
            "write fewer paths with a star in the middle, or split them over hosts",
        )


@dataclass(frozen=True, slots=True, order=True)
class HostCell:
    """One host; or, with `below`, every name below `suffix` that nothing narrower is written for."""

    suffix: str
    below: bool
    member: str
    """A host of the cell."""

    @property
    def pattern(self) -> HostPattern:
        return HostPattern(self.suffix, self.below)


@dataclass(frozen=True, slots=True)
class PathCell:
    """The paths that exactly the patterns `matched` match, of those that were given."""

    matched: frozenset[PathPattern]
    member: str
    """A path of the cell."""

    @property
    def ambiguous(self) -> bool:
        return self.member == AMBIGUOUS


def host_cells(patterns: Iterable[HostPattern]) -> list[HostCell]:
    """The cells of all hosts that some pattern matches, in order of their names."""
    distinct = set(patterns)
    labels = {label for pattern in distinct for label in pattern.suffix.split(".")}
    free = _free(labels, "any")
    return sorted(
        HostCell(found.suffix, found.wildcard, f"{free}.{found.suffix}" if found.wildcard else found.suffix)
        for found in distinct
    )


def path_cells(patterns: Collection[PathPattern]) -> list[PathCell]:
    """The cells of all paths, whether a pattern matches them or not. Raises TooComplex.

    An automaton over segments: a state is how far each pattern has come, and only the last segment of a
    path that is not ambiguous can be empty (`/x/`).
    """
    listed = sorted(set(patterns), key=str)
    free = _free({segment for pattern in listed for segment in pattern.segments}, "any")
    found: dict[frozenset[PathPattern], str] = {}
    start = frozenset((index, 0) for index in range(len(listed)))
    seen, waiting = {start}, deque([(start, "")])
    while waiting:
        state, path = waiting.popleft()
        written = {listed[index].segments[at] for index, at in state if at < len(listed[index].segments)}
        # The empty one last: `/x/` is a spelling of `/x` as well, and its cell should have a plainer member.
        for symbol in (*sorted(_symbols(written, free) - {""}), ""):
            reached = _step(listed, state, symbol)
            member = f"{path}/{symbol}"
            matched = frozenset(listed[index] for index, at in reached if at == len(listed[index].segments))
            found.setdefault(matched, member)
            if symbol and reached not in seen:
                if len(seen) == MAX_STATES:
                    raise TooComplex
                seen.add(reached)
                waiting.append((reached, member))
    cells = [PathCell(matched, member) for matched, member in found.items()]
    return [*cells, PathCell(frozenset(), AMBIGUOUS)]


def _symbols(written: Collection[str], free: str) -> set[str]:
    """Segments that tell apart all that patterns write at one place: each text; one that none writes; and, of
    those with escaped slashes, each mixture of what stands between."""
    symbols = {free, *(segment for segment in written if ENCODED_SLASH not in segment and segment != "*")}
    encoded = [segment.split(ENCODED_SLASH) for segment in written if ENCODED_SLASH in segment]
    for count in {len(parts) for parts in encoded}:
        columns = zip(*(parts for parts in encoded if len(parts) == count), strict=True)
        choices = [sorted({*column, free} - {"*"}) for column in columns]
        if prod(map(len, choices)) > MAX_STATES:
            raise TooComplex
        symbols |= {ENCODED_SLASH.join(parts) for parts in product(*choices)}
    return symbols


type _State = frozenset[tuple[int, int]]


def _step(patterns: list[PathPattern], state: _State, symbol: str) -> _State:
    """Where the patterns stand after one more segment."""
    reached: set[tuple[int, int]] = set()
    for index, at in state:
        segments = patterns[index].segments
        if at == len(segments):
            if patterns[index].prefix and ENCODED_SLASH not in symbol:
                reached.add((index, at))
        elif segment_matches(segments[at], symbol):
            reached.add((index, at + 1))
    return frozenset(reached)


def _free(taken: Collection[str], name: str) -> str:
    """A segment or label that no pattern writes."""
    while name in taken:
        name += "x"
    return name
