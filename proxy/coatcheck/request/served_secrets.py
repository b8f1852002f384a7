"""Which secrets each session was served, so that every answer to it loses every one of them (I1)."""

from collections import OrderedDict

from coatcheck.decision.scrub import Patterns


class SessionSecrets:
    """The secrets that each session was served, compiled for scrubbing: every answer to a session loses
    every one of them (I1), also those that a rotation has replaced."""

    KEPT = 512
    """Values a session, rotated ones included. One more is refused, not forgotten: a secret that was served
    and is no longer looked for would come back."""
    MINTED = 32
    """Signatures a session, the latest ones: a sandbox can have any number of them made, and each costs
    about 30 KiB (measured). One that has left the ring is still taken out of the answer to its own request.
    In other answers it shows: with a timestamp it soon counts no more; without one the linter warns."""
    COMPILED = 512
    """Compiled sets kept; sessions with the same secrets share one."""

    def __init__(self) -> None:
        self._values: dict[str, set[tuple[str, str]]] = {}
        self._served: dict[str, Patterns] = {}
        self._minted: dict[str, OrderedDict[str, Patterns]] = {}
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
        self._served[session_id] = self._compile(frozenset(values))
        self._join(session_id)
        return True

    def values(self, session_id: str) -> frozenset[tuple[str, str]]:
        """What the session was served since the daemon started: each value, and Basic's user name or ""."""
        return frozenset(self._values.get(session_id, ()))

    def patterns(self, session_id: str) -> Patterns | None:
        return self._patterns.get(session_id)

    def add_minted(self, session_id: str, value: str) -> Patterns:
        """Look for `value`, which was made for one request, in all answers to the session while it is among
        the latest. Returns its own patterns: the answer to that request is searched for them to its end."""
        ring = self._minted.setdefault(session_id, OrderedDict())
        known = ring.get(value)
        if known is not None:  # the same request again: nothing new to look for
            ring.move_to_end(value)
            return known
        made = ring[value] = Patterns.small(value)
        if len(ring) > self.MINTED:
            ring.popitem(last=False)
        self._join(session_id)
        return made

    def _join(self, session_id: str) -> None:
        """What is looked for in all: the secrets, compiled once for all who have them, beside the ring."""
        served, ring = self._served.get(session_id), self._minted.get(session_id)
        recent = Patterns.together(tuple(ring.values())) if ring else None
        both = served.beside(recent) if served and recent else served or recent
        if both is not None:
            self._patterns[session_id] = both

    def forget(self, session_id: str) -> None:
        self._values.pop(session_id, None)
        self._served.pop(session_id, None)
        self._minted.pop(session_id, None)
        self._patterns.pop(session_id, None)

    def _compile(self, values: frozenset[tuple[str, str]]) -> Patterns:
        known = self._compiled.get(values)
        if known is None:
            known = Patterns.of([value for value, _ in values], {name for _, name in values if name})
            self._compiled[values] = known
            if len(self._compiled) > self.COMPILED:
                self._compiled.popitem(last=False)
        return known
