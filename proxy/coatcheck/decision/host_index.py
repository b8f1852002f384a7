"""From a host to the rules that name it, in file order, by a few dictionary look-ups.

The index holds, for every exact host and every wildcard's suffix that a policy writes, the complete
list of what matches there. The first hit, from the host itself to ever shorter suffixes, is then the
whole answer: a list under `b.example.org` already includes what `*.example.org` adds.
"""

from collections.abc import Iterable
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
        listed = [(value, tuple(patterns)) for value, patterns in entries]
        names = {pattern for _, patterns in listed for pattern in patterns}

        def values(host: str, host_is_suffix: bool) -> tuple[T, ...]:
            return tuple(
                value
                for value, patterns in listed
                if any(
                    host.endswith("." + suffix) or (host_is_suffix and host == suffix)
                    if wildcard
                    else host == suffix and not host_is_suffix
                    for suffix, wildcard in patterns
                )
            )

        return cls(
            exact={name: values(name, False) for name, wildcard in names if not wildcard},
            below={name: values(name, True) for name, wildcard in names if wildcard},
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
