"""Refusals and alarms that repeat: the first ones one by one, the rest as counts.

A refusal costs its sender nothing and the audit log some hundred bytes; a full disk refuses everybody. So a
session that keeps being refused for one reason gets a record of its own only now and then, and a `repeated`
record says how many there were beside. What was allowed is always recorded: the policy's limits bound it.
"""

import threading
from dataclasses import dataclass
from typing import Final

from coatcheck.decision.denial import Reason
from coatcheck.decision.ratelimit import Rate, take
from coatcheck.telemetry.events import Alarm, Decision, Event, Outcome, Repeated

BURST: Final = 100
"""Refusals of a session for one reason that are recorded one by one: an agent that tries hosts or fights with
a client's configuration stays below."""
EVERY_SECONDS: Final = 5.0
"""After those, one so often: with all reasons at once and the longest paths some 25 KB/s a session."""
RATE: Final = Rate(1, EVERY_SECONDS, BURST)
TELL_SECONDS: Final = 10.0
"""How long counts wait: what a `kill -9` can lose of them."""
MAX_FLOODS: Final = 50_000
"""Pairs of session and reason that are told apart, about 10 MB; past it they share a count."""

ALLOWED_BEFORE: Final = frozenset(
    {
        Reason.ADDRESS_REFUSED,
        Reason.OWN_SURFACE,
        Reason.UPSTREAM_UNREACHABLE,
        Reason.UPSTREAM_TLS,
        Reason.UPSTREAM_TIMEOUT,
        Reason.UPSTREAM_RESPONSE_REFUSED,
        Reason.SIGNATURE_REFUSED,
    }
)
"""They follow a record which says that the request was allowed, and which must not stand alone."""

type _Key = tuple[str, str, Reason]


@dataclass(slots=True)
class _Flood:
    tenant: str
    full_at: float
    """When BURST more may be recorded again (the bucket's theoretical arrival time)."""
    count: int = 0
    since: float = 0.0


class Repeats:
    """Thread-safe. Times are those of the events."""

    def __init__(self, max_floods: int = MAX_FLOODS) -> None:
        self._max = max_floods
        self._floods: dict[_Key, _Flood] = {}
        self._counting: dict[_Key, _Flood] = {}
        self._lock = threading.Lock()

    def floods(self) -> tuple[_Key, ...]:
        """What is repeated: a kind of event, a session and a reason, each."""
        return tuple(self._floods)

    def admit(self, event: Event) -> bool:
        """Whether `event` gets a record of its own; if not, it was counted."""
        if isinstance(event, Decision):
            if event.outcome is not Outcome.DENY or event.reason is None or event.reason in ALLOWED_BEFORE:
                return True
            key: _Key = ("decision", event.session, event.reason)
        elif isinstance(event, Alarm):
            key = ("alarm", event.session, event.reason)
        else:
            return True
        with self._lock:
            key, flood = self._flood(key, event.tenant, event.at)
            full_at, early = take(RATE, flood.full_at, event.at, 1)
            if early <= 0:
                flood.full_at = full_at
                return True
            if not flood.count:
                flood.since = event.at
                self._counting[key] = flood
            flood.count += 1
            return False

    def due(self, at: float, *, everything: bool = False) -> list[Repeated]:
        """The counts that have waited for TELL_SECONDS, or all."""
        if not self._counting:
            return []
        with self._lock:
            told: list[Repeated] = []
            for key, flood in tuple(self._counting.items()):
                if not everything and at < flood.since + TELL_SECONDS:
                    break  # they stand in the order in which they began
                what, session, reason = key
                told.append(Repeated(at, what, session, flood.tenant, reason, flood.count, flood.since))
                flood.count = 0
                del self._counting[key]
            return told

    def _flood(self, key: _Key, tenant: str, at: float) -> tuple[_Key, _Flood]:
        flood = self._floods.get(key)
        if flood is None:
            if len(self._floods) >= self._max:
                self._floods = {k: f for k, f in self._floods.items() if f.count or f.full_at > at}
            if len(self._floods) >= self._max:
                key, tenant = (key[0], "", key[2]), ""
            flood = self._floods.setdefault(key, _Flood(tenant, at))
        return key, flood
