"""Which secrets each session was served, so that every answer to it loses every one of them (I1)."""

from collections import OrderedDict

from coatcheck.decision.scrub import Patterns


class SessionSecrets:
    """The secrets that each session was served, compiled for scrubbing: every answer to a session loses
    every one of them (I1), also those that a rotation has replaced."""

    KEPT = 512
    """Values a session, rotated ones included. One more is refused, not forgotten: a secret that was served
    and is no longer looked for would come back."""
    COMPILED = 512
    """Compiled sets kept; sessions with the same secrets share one."""

    def __init__(self) -> None:
        self._values: dict[str, set[tuple[str, str]]] = {}
        self._patterns: dict[str, Patterns] = {}
        self._compiled: OrderedDict[frozenset[tuple[str, str]], Patterns] = OrderedDict()

    def add(self, session_id: str, value: str, username: str) -> bool:
        """Look for `value` in all further answers to the session. False: no room, so it must not be used."""
        values = self._values.setdefault(session_id, set())
        if (value, username) in values:
            return True
        if len(values) >= self.KEPT:
            return False
        values.add((value, username))
        self._patterns[session_id] = self._compile(frozenset(values))
        return True

    def values(self, session_id: str) -> frozenset[tuple[str, str]]:
        """What the session was served since the daemon started: each value, and Basic's user name or ""."""
        return frozenset(self._values.get(session_id, ()))

    def patterns(self, session_id: str) -> Patterns | None:
        return self._patterns.get(session_id)

    def with_minted(self, session_id: str, minted: tuple[str, ...]) -> Patterns:
        """The session's values and what was made for one request; compiled for its answer only."""
        values = self.values(session_id)
        return Patterns.of([*(value for value, _ in values), *minted], {name for _, name in values if name})

    def forget(self, session_id: str) -> None:
        self._values.pop(session_id, None)
        self._patterns.pop(session_id, None)

    def _compile(self, values: frozenset[tuple[str, str]]) -> Patterns:
        known = self._compiled.get(values)
        if known is None:
            known = Patterns.of([value for value, _ in values], {name for _, name in values if name})
            self._compiled[values] = known
            if len(self._compiled) > self.COMPILED:
                self._compiled.popitem(last=False)
        return known
