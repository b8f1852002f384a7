"""What there is now, as far as one caller may see it: made at most once a second for all who see the same."""

import asyncio
import time
from collections.abc import Collection
from typing import Any, Final

import coatcheck
from coatcheck.control.backend import Backend
from coatcheck.control.bridge import STALLED_SECONDS
from coatcheck.control.caller import EVERY, Caller
from coatcheck.control.context import Context
from coatcheck.control.page.present import shown_alarm
from coatcheck.control.problem import ControlProblem
from coatcheck.control.views import lease_expires_at
from coatcheck.decision.policy import LimitScope
from coatcheck.decision.session import Session, alive
from coatcheck.state.levels import Level, levels, together
from coatcheck.telemetry.recent import cut

FRESH_SECONDS: Final = 1.0
MAX_SESSIONS: Final = 200
"""That are listed, the newest first; all are counted. A page of thousands helps nobody and costs 1 MiB."""
MAX_APPROVALS: Final = 50
MAX_ALARMS: Final = 50
MAX_AGES: Final = 100
MAX_CHOICES: Final = 100
ALARM_SECONDS: Final = 24 * 3600.0
"""What is older is the audit log's."""

type Part = dict[str, Any]


class Snapshots:
    """Belongs to the control API's loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[frozenset[str], tuple[float, Part]] = {}
        """By tenants: people see what these have, whatever their role is."""

    async def of(self, caller: Caller) -> Part:
        now = time.monotonic()
        self._made = {who: made for who, made in self._made.items() if now - made[0] < FRESH_SECONDS}
        if caller.tenants in self._made:
            return self._made[caller.tenants][1]
        approvals = await self._approvals(caller)
        made = await self._context.read(lambda: _now(self._context.backend, caller))
        made["approvals"] = approvals
        if self._context.bridge.age > STALLED_SECONDS:
            made["daemon"]["missing"].append("plane")
        self._made[caller.tenants] = (now, made)
        return made

    async def _approvals(self, caller: Caller) -> Part:
        """`waiting` is None while the plane, which holds them, does not answer."""
        if self._context.bridge.age > STALLED_SECONDS:
            return {"waiting": None, "more": 0}

        async def found() -> list[Part]:
            return [
                {
                    "id": each.id,
                    "asked_at": each.asked_at,
                    "until": each.until,
                    "session": each.session.id,
                    "tenant": each.session.tenant,
                    "subject": each.session.subject,
                    "policy": each.session.policy,
                    "rule": each.rule,
                    "credentials": list(each.credentials),
                    "method": cut(each.method, 32),
                    "url": cut(each.destination + each.path, 1000),
                    "readings": [cut(reading, 1000) for reading in each.readings],
                    "remember": each.asking.remember,
                    "same": each.asking.same,
                    "whose": each.asking.whose,
                }
                for each in self._context.backend.approvals.waiting()
                if caller.sees(each.session)
            ]

        try:
            async with asyncio.timeout(STALLED_SECONDS):  # all the rest must not wait for the plane
                waiting = await self._context.bridge.call(found)
        except (ControlProblem, TimeoutError):
            return {"waiting": None, "more": 0}
        return {"waiting": waiting[:MAX_APPROVALS], "more": max(0, len(waiting) - MAX_APPROVALS)}


def _now(backend: Backend, caller: Caller) -> Part:
    state = backend.state
    now = state.clock.now()
    by_id = state.sessions.by_id
    live = [each for each in by_id.values() if caller.sees(each) and alive(each, now) is None]
    live.sort(key=lambda session: -session.opened_at)
    everything = EVERY in caller.tenants

    def sees_session(session_id: str) -> bool:
        session = by_id.get(session_id)
        return session is not None and caller.sees(session)

    going_on = {each.id for each in live}
    alarms = [
        group for group in backend.recent.alarms(caller.of_tenant) if group.last > now.wall - ALARM_SECONDS
    ]
    return {
        "kind": "now",
        "at": now.wall,
        "daemon": {
            "version": coatcheck.__version__,
            "missing": list(backend.missing()),
            "store_silent": backend.store_silent(),
            "policy_refused": cut(backend.policies.last_refused) if everything else "",
            "ca_not_after": backend.ca_not_after.timestamp(),
        },
        "sessions": {"live": len(live), "listed": [_session(backend, each) for each in live[:MAX_SESSIONS]]},
        "pace": backend.recent.pace(caller.of_tenant, now.wall),
        "alarms": {
            "listed": [
                shown_alarm(group, sees_session) | {"live": group.session in going_on}
                for group in alarms[:MAX_ALARMS]
            ],
            "more": max(0, len(alarms) - MAX_ALARMS),
        },
        "limits": _limits(backend, caller, now.monotonic),
        "secrets": _ages(backend, None if everything else live),
        "shadow": _shadow(backend) if everything else None,
        "choices": _choices(live),
    }


def _session(backend: Backend, session: Session) -> Part:
    return {
        "id": session.id,
        "tenant": session.tenant,
        "subject": session.subject,
        "policy": session.policy,
        "isolation": session.isolation.value,
        "origin": session.origin.kind.value,
        "credentials": sorted(session.credentials)[:20],
        "opened_at": session.opened_at,
        "opened_by": session.opened_by,
        "lease_expires_at": lease_expires_at(session, backend.state),
    }


def _limits(backend: Backend, caller: Caller, monotonic: float) -> list[Part]:
    by_id = backend.state.sessions.by_id

    def sees(scope: LimitScope, who: tuple[str, ...]) -> bool:
        match scope:
            case LimitScope.SESSION:
                session = by_id.get(who[0])
                return session is not None and caller.sees(session)
            case LimitScope.SUBJECT | LimitScope.TENANT:
                return caller.of_tenant(who[0])
        return EVERY in caller.tenants  # shared by all tenants: how full it is tells what the others do

    tats, running = backend.buckets.used()
    near = levels(tats, running, tuple(backend.state.policies.values()), monotonic, sees)
    elsewhere = (each for each in backend.buckets.near_elsewhere() if sees(each.limit.per, each.who))
    return [_level(backend, each) for each in together(near, elsewhere)]


def _level(backend: Backend, level: Level) -> Part:
    session = (
        backend.state.sessions.by_id.get(level.who[0]) if level.limit.per is LimitScope.SESSION else None
    )
    return {
        "policy": level.policy,
        "rule": level.rule,
        "limit": f"{level.limit.count} {level.limit.kind.value.replace('_', ' ')}"
        + (f" in {level.limit.period:g} s" if level.limit.kind != "concurrent" else " at once"),
        "per": level.limit.per.value,
        "who": f"{session.tenant}/{session.subject}" if session is not None else "/".join(level.who),
        "session": session.id if session is not None else "",
        "used": round(min(level.used, 9.99), 2),
    }


def _ages(backend: Backend, live: Collection[Session] | None) -> Part:
    """Of one tenant: those that its own sessions may use. How often others' are read is not its business."""
    ages = backend.secret_ages()
    if live is not None:
        own = frozenset().union(*(session.credentials for session in live))
        ages = {name: age for name, age in ages.items() if name in own}
    oldest = sorted(ages.items(), key=lambda each: -each[1])
    return {
        "ttl": backend.secret_ttl,
        "ages": [{"credential": name, "age": round(age, 1)} for name, age in oldest[:MAX_AGES]],
    }


def _shadow(backend: Backend) -> Part | None:
    shadow = backend.shadow
    if shadow is None:
        return None
    candidates = shadow.candidates.policies if shadow.candidates is not None else {}
    return {
        "policies": [
            {"name": each.name, "sha256": each.sha256[:16]} for _, each in sorted(candidates.items())[:20]
        ],
        "refused": cut(shadow.refused),
        "results": {result.value: count for result, count in shadow.results.items()},
    }


def _choices(live: Collection[Session]) -> Part:
    """What a form for revoking many may name."""
    policies: dict[str, set[str]] = {}
    for session in live:
        policies.setdefault(session.policy, set()).update(session.credentials)
    return {
        "tenants": sorted({session.tenant for session in live})[:MAX_CHOICES],
        "policies": {
            name: sorted(credentials)[:MAX_CHOICES]
            for name, credentials in sorted(policies.items())[:MAX_CHOICES]
        },
    }
