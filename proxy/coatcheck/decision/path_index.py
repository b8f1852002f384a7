"""Finds the patterns that match a path, however many there are.

It is a tree of segments. A look-up takes one step per segment where the patterns differ in their text, and,
where stars overlap, one step for each pattern that still fits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    children: dict[str, "_Node"] = field(default_factory=dict)
    star: "_Node | None" = None
    here: list[int] = field(default_factory=list)
    """Values of the patterns that end here."""
    below: list[int] = field(default_factory=list)
    """Values of the patterns that match here, and everything below."""


class PathIndex:
    """Built once; a pattern is its segments, in which `*` is one segment, and whether it is a prefix."""

    def __init__(self, patterns: Iterable[tuple[int, Sequence[str], bool]]) -> None:
        self._root = _Node()
        for value, segments, prefix in patterns:
            node = self._root
            for segment in segments:
                if segment == "*":
                    node.star = node = node.star or _Node()
                else:
                    node = node.children.setdefault(segment, _Node())
            ending = node.below if prefix else node.here
            if not ending or ending[-1] != value:
                ending.append(value)

    def find(self, parts: Sequence[str]) -> list[int]:
        """The values of all patterns that match, in no order; one that matches in two ways stands there
        twice."""
        nodes = [self._root]
        found = list(self._root.below)
        for part in parts:
            reached = []
            for node in nodes:
                child = node.children.get(part)
                if child is not None:
                    reached.append(child)
                    if child.below:
                        found += child.below
                star = node.star
                if star is not None and part:
                    reached.append(star)
                    if star.below:
                        found += star.below
            if not reached:
                return found
            nodes = reached
        for node in nodes:
            if node.here:
                found += node.here
        return found
