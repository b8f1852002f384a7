"""Finds what a policy says of a host, by a few dictionary look-ups.

The index holds, for every exact host and every wildcard's suffix that a policy writes, all that matches
there. The first hit, from the host itself to ever shorter suffixes, is then the whole answer: what is said
under `b.example.org` already includes what `*.example.org` adds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostIndex[T]:
    """What is said of each host. Built once a policy; reading costs one look-up a label."""

    exact: dict[str, T]
    below: dict[str, T]
    """By the suffix of `*.suffix`."""

    @classmethod
    def build[V](
        cls, entries: Iterable[tuple[V, Iterable[tuple[str, bool]]]], of: Callable[[tuple[V, ...]], T]
    ) -> "HostIndex[T]":
        """Entries are values in order, each with its patterns: (suffix, wildcard). `of` makes one thing of
        all values that match a host; for hosts with the same values it is called once."""
        values: list[V] = []
        named: dict[tuple[str, bool], list[int]] = {}
        for index, (value, patterns) in enumerate(entries):
            values.append(value)
            for pattern in patterns:
                named.setdefault(pattern, []).append(index)
        made: dict[tuple[int, ...], T] = {}

        def matching(name: str, wildcard: bool) -> T:
            found = set(named[name, wildcard])
            for suffix in suffixes(name):
                found.update(named.get((suffix, True), ()))
            numbers = tuple(sorted(found))
            if numbers not in made:
                made[numbers] = of(tuple(values[number] for number in numbers))
            return made[numbers]

        return cls(
            exact={name: matching(name, False) for name, wildcard in named if not wildcard},
            below={name: matching(name, True) for name, wildcard in named if wildcard},
        )

    def find(self, host: str) -> T | None:
        """What is said of `host` (canonical); None when nothing matches it."""
        found = self.exact.get(host)
        if found is not None:
            return found
        below = self.below
        if not below:
            return None
        dot = host.find(".")
        while dot >= 0:
            host = host[dot + 1 :]
            found = below.get(host)
            if found is not None:
                return found
            dot = host.find(".")
        return None


def suffixes(host: str) -> Iterator[str]:
    """What remains of `host` after each of its dots, the longest first."""
    dot = host.find(".")
    while dot >= 0:
        yield host[dot + 1 :]
        dot = host.find(".", dot + 1)
