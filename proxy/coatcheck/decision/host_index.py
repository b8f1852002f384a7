"""From a host to the rules that name it, in file order, by a few dictionary look-ups.

The index holds, for every exact host and every wildcard's suffix that a policy writes, the complete
list of what matches there. The first hit, from the host itself to ever shorter suffixes, is then the
whole answer: a list under `b.example.org` already includes what `*.example.org` adds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostIndex[T]:
    """Values by host. Built once a policy; reading costs one look-up a label."""

    exact: dict[str, tuple[T, ...]]
    below: dict[str, tuple[T, ...]]
    """By the suffix of `*.suffix`."""

    @classmethod
    def build(cls, entries: Iterable[tuple[T, Iterable[tuple[str, bool]]]]) -> "HostIndex[T]":
        """Entries are values in order, each with its patterns: (suffix, wildcard)."""
        values: list[T] = []
        named: dict[tuple[str, bool], list[int]] = {}
        for index, (value, patterns) in enumerate(entries):
            values.append(value)
            for pattern in patterns:
                named.setdefault(pattern, []).append(index)

        def matching(name: str, wildcard: bool) -> tuple[T, ...]:
            found = set(named[name, wildcard])
            for suffix in suffixes(name):
                found.update(named.get((suffix, True), ()))
            return tuple(values[index] for index in sorted(found))

        return cls(
            exact={name: matching(name, False) for name, wildcard in named if not wildcard},
            below={name: matching(name, True) for name, wildcard in named if wildcard},
        )

    def find(self, host: str) -> tuple[T, ...]:
        """Everything that matches `host` (canonical), in order; empty when nothing does."""
        found = self.exact.get(host)
        if found is not None:
            return found
        below = self.below
        if not below:
            return ()
        dot = host.find(".")
        while dot >= 0:
            host = host[dot + 1 :]
            found = below.get(host)
            if found is not None:
                return found
            dot = host.find(".")
        return ()


def suffixes(host: str) -> Iterator[str]:
    """What remains of `host` after each of its dots, the longest first."""
    dot = host.find(".")
    while dot >= 0:
        yield host[dot + 1 :]
        dot = host.find(".", dot + 1)
