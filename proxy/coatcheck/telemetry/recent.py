"""What happened lately, for the page: the last events of each tenant, and its alarms as groups.

An event is appended under a lock; a page comes and looks. No page has a queue, so a slow one misses something
(and is told so), and nothing ever waits for one.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from threading import Lock
from typing import Any, Final

from coatcheck.decision.denial import Reason
from coatcheck.telemetry.event_table import TABLE
from coatcheck.telemetry.events import (
    Alarm,
    ApprovalEvent,
    Decision,
    Event,
    Outcome,
    Repeated,
    ShadowDifference,
)

KEPT: Final = 256
"""Events of one tenant: a busy one cannot push out what happened to another."""
MAX_TENANTS: Final = 64
"""Those that something happened to last. With KEPT of at most 1.5 KiB each: 24 MiB at the very worst."""
MAX_TEXT: Final = 500
"""Characters of a path or a detail; what a sandbox writes longer stands whole in the audit log."""
MAX_ALARMS: Final = 512
"""Groups of alarms. The tenant with most of them gives way first."""
SLOT_SECONDS: Final = 10
SLOTS: Final = 60
"""The pace of ten minutes."""


@dataclass(frozen=True, slots=True)
class Numbered:
    number: int
    event: Event


@dataclass(frozen=True, slots=True)
class Page:
    events: tuple[Numbered, ...]
    """The oldest first."""
    next: int
    """Ask after this one next time."""
    missed: bool
    """There were more than are shown here."""


@dataclass(frozen=True, slots=True)
class AlarmGroup:
    """Alarms of one session for one reason about one credential."""

    tenant: str
    session: str
    reason: Reason
    credential: str
    first: float
    last: float
    """Unix seconds."""
    count: int
    detail: str
    where: str
    """The last request of this kind that was refused; empty where it went on (a handle in a body)."""


@dataclass(slots=True)
class _Tenant:
    ring: deque[Numbered] = field(default_factory=lambda: deque(maxlen=KEPT))
    pace: dict[int, list[int]] = field(default_factory=dict)
    """By slot of time: how many were allowed, how many refused."""
    dropped: int = 0
    """The number of the newest event that the ring has lost."""


class Recent:
    """Thread-safe."""

    def __init__(self) -> None:
        self.last = 0
        """The newest event's number."""
        self._lost = 0
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._alarms: OrderedDict[tuple[str, str, Reason, str], AlarmGroup] = OrderedDict()
        self._refused: tuple[str, Reason, str] | None = None
        self._lock = Lock()
        self.elsewhere: Callable[[], Sequence[AlarmGroup]] = tuple
        """What a fleet's other daemons raised."""

    def put(self, event: Event) -> None:
        """Keep `event`, if it is one for people. A few microseconds."""
        row = TABLE[type(event)]
        if row.page is None or not row.kept_for_page(event):
            return
        event = _short(event)
        with self._lock:
            if self._group(event):
                return  # the refusal before it says so already
            self.last += 1
            of_tenant = self._of(_tenant_of(event))
            if len(of_tenant.ring) == KEPT:
                of_tenant.dropped = of_tenant.ring[0].number
            of_tenant.ring.append(Numbered(self.last, event))
            self._count(of_tenant, event)

    def after(self, number: int | None, sees: Callable[[str], bool], most: int) -> Page:
        """The last `most` events after `number` of tenants for which `sees`. None: whatever is kept."""
        if number is not None and number >= self.last:
            return Page((), number, missed=False)
        with self._lock:
            after, last = number or 0, self.last
            seen = [each for tenant, each in self._tenants.items() if sees(tenant)]
            found = [
                list(takewhile(lambda each: each.number > after, reversed(tenant.ring))) for tenant in seen
            ]
            lost = max((self._lost, *(tenant.dropped for tenant in seen)))
        newest = list(islice(heapq.merge(*found, key=lambda each: -each.number), most))
        missed = number is not None and (lost > number or len(newest) < sum(map(len, found)))
        return Page(tuple(reversed(newest)), last, missed)

    def alarms(self, sees: Callable[[str], bool]) -> list[AlarmGroup]:
        """The newest first; those of other daemons, too."""
        found = {_key(group): group for group in self.alarms_here()}
        for theirs in self.elsewhere():
            known = found.get(_key(theirs))
            found[_key(theirs)] = theirs if known is None else _together(known, theirs)
        newest = sorted(found.values(), key=lambda group: -group.last)
        return [group for group in newest if sees(group.tenant)]

    def alarms_here(self) -> list[AlarmGroup]:
        """This daemon's, the newest first."""
        with self._lock:
            return list(reversed(self._alarms.values()))

    def pace(self, sees: Callable[[str], bool], now: float) -> list[tuple[int, int]]:
        """Allowed and refused requests of each of the last SLOTS times SLOT_SECONDS, the oldest first."""
        newest = int(now) // SLOT_SECONDS
        slots = {slot: [0, 0] for slot in range(newest - SLOTS + 1, newest + 1)}
        with self._lock:
            for tenant, kept in self._tenants.items():
                if sees(tenant):
                    for slot, (allowed, refused) in kept.pace.items():
                        if slot in slots:
                            slots[slot][0] += allowed
                            slots[slot][1] += refused
        return [(allowed, refused) for allowed, refused in slots.values()]

    # --- under the lock ----------------------------------------------------------------------------------

    def _of(self, tenant: str) -> _Tenant:
        found = self._tenants.get(tenant)
        if found is None:
            if len(self._tenants) >= MAX_TENANTS:
                _, gone = self._tenants.popitem(last=False)
                self._lost = max(self._lost, gone.ring[-1].number)
            found = self._tenants[tenant] = _Tenant()
        self._tenants.move_to_end(tenant)
        return found

    def _count(self, tenant: _Tenant, event: Event) -> None:
        if isinstance(event, Decision):
            refused, count = event.outcome is Outcome.DENY, 1
        elif isinstance(event, Repeated) and event.what == "decision":
            refused, count = True, event.count
        else:
            return
        slot = int(event.at) // SLOT_SECONDS
        if slot not in tenant.pace:
            tenant.pace[slot] = [0, 0]
            if len(tenant.pace) > SLOTS:
                del tenant.pace[next(iter(tenant.pace))]
        tenant.pace[slot][refused] += count

    def _group(self, event: Event) -> bool:
        """Count an alarm. Whether the request that raised it has been told right before."""
        if isinstance(event, Decision):
            # Its alarm comes right after it, and does not say which request it was.
            if event.alarm and event.reason is not None:
                where = f"{event.method} {event.destination}{event.path}"
                self._refused = (event.session, event.reason, where)
            return False
        if isinstance(event, Repeated) and event.what == "alarm":
            key = next(
                (key for key in reversed(self._alarms) if key[1:3] == (event.session, event.reason)), None
            )
            if key is not None:
                old = self._alarms[key]
                self._alarms[key] = replace(old, last=event.at, count=old.count + event.count)
                self._alarms.move_to_end(key)
            return False
        if not isinstance(event, Alarm):
            return False
        key = (event.tenant, event.session, event.reason, event.credential)
        known = self._alarms.get(key)
        refused, self._refused = self._refused, None
        where = refused[2] if refused is not None and refused[:2] == (event.session, event.reason) else ""
        if known is None and len(self._alarms) >= MAX_ALARMS:
            del self._alarms[self._least()]
        self._alarms[key] = AlarmGroup(
            *key,
            first=known.first if known is not None else event.at,
            last=event.at,
            count=known.count + 1 if known is not None else 1,
            detail=event.detail,
            where=where or (known.where if known is not None else ""),
        )
        self._alarms.move_to_end(key)
        return bool(where)

    def _least(self) -> tuple[str, str, Reason, str]:
        """The oldest group of the tenant that has most."""
        counts: dict[str, int] = {}
        for tenant, *_ in self._alarms:
            counts[tenant] = counts.get(tenant, 0) + 1
        most = max(counts, key=lambda tenant: counts[tenant])
        return next(key for key in self._alarms if key[0] == most)


def _key(group: AlarmGroup) -> tuple[str, str, Reason, str]:
    return group.tenant, group.session, group.reason, group.credential


def _together(one: AlarmGroup, other: AlarmGroup) -> AlarmGroup:
    newer = max(one, other, key=lambda group: group.last)
    return replace(newer, first=min(one.first, other.first), count=one.count + other.count)


def _tenant_of(event: Event) -> str:
    """Empty: the daemon itself, or a client that belongs to no session."""
    return getattr(event, "tenant", "")


def _short(event: Event) -> Event:
    """A sandbox chooses its paths: what is kept of them has a bound."""
    if isinstance(event, Decision):
        if len(event.path) + len(event.detail) + len(event.method) > MAX_TEXT:
            return replace(
                event, path=cut(event.path), detail=cut(event.detail), method=cut(event.method, 32)
            )
    elif isinstance(event, ShadowDifference):
        if len(event.path) + len(event.method) > MAX_TEXT:
            return replace(event, path=cut(event.path), method=cut(event.method, 32))
    elif isinstance(event, Repeated):
        return event
    elif isinstance(event, ApprovalEvent):
        return replace(event, path=cut(event.path), method=cut(event.method, 32))
    elif len(detail := getattr(event, "detail", "")) > MAX_TEXT:
        long: Any = event  # of a class that has the field
        kept: Event = replace(long, detail=cut(detail))
        return kept
    return event


def cut(text: str, most: int = MAX_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
