"""What each session used: counted from events, told once when the session ends.

Bounded by live sessions: only a session that was opened (or resumed after a restart) is counted, so
requests that name a dead or invented one leave nothing behind.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from coatcheck.telemetry.event_table import TABLE, Use
from coatcheck.telemetry.events import (
    Completion,
    Decision,
    Event,
    Outcome,
    SessionChange,
    SessionEvent,
    Usage,
)

GRACE_SECONDS = 30.0
"""After its end a session waits so long for requests that are being aborted, whose bytes still count."""

_ENDS = frozenset({SessionChange.ENDED, SessionChange.REVOKED, SessionChange.LAPSED, SessionChange.EXPIRED})


@dataclass(slots=True)
class _Account:
    tenant: str
    subject: str
    opened_at: float
    requests: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    running: int = 0
    """Allowed requests that have not completed."""
    ended_at: float = 0.0


class UsageLedger:
    """Takes every event; returns the Usage records that have become due. Thread-safe."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._ended: dict[str, _Account] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Sessions that are counted: alive, or over and not yet reported."""
        return len(self._accounts) + len(self._ended)

    def resume(self, session: str, tenant: str, subject: str, opened_at: float) -> None:
        """Count a session that was alive before a restart; `replay` adds what it used by then."""
        with self._lock:
            self._accounts.setdefault(session, _Account(tenant, subject, opened_at))

    def replay(self, records: Iterable[dict[str, object]]) -> None:
        """Add what audit records (parsed lines of `telemetry.audit.tail`) say about resumed sessions."""
        with self._lock:
            for record in records:
                account = self._accounts.get(str(record.get("session")))
                if account is None:
                    continue
                if record.get("type") == "decision":
                    account.requests += 1
                elif record.get("type") == "repeated" and record.get("what") == "decision":
                    account.requests += _count(record.get("count"))
                elif record.get("type") == "completion":
                    account.bytes_up += _count(record.get("bytes_up"))
                    account.bytes_down += _count(record.get("bytes_down"))

    def __call__(self, event: Event) -> list[Usage]:
        """Count `event`; the usage of sessions whose last word this was."""
        with self._lock:
            due: list[str] = []
            match TABLE[type(event)].usage:
                case Use.REQUEST:
                    self._requested(cast(Decision, event))
                case Use.COMPLETION:
                    due += self._completed(cast(Completion, event))
                case Use.SESSION:
                    due += self._changed(cast(SessionEvent, event))
                case None:
                    pass
            return self._tell(due, event.at) if self._ended else []

    def close(self, at: float) -> list[Usage]:
        """The usage of sessions that ended and were still waiting for their last requests."""
        with self._lock:
            return self._tell(list(self._ended), at)

    def _requested(self, event: Decision) -> None:
        if account := self._accounts.get(event.session):
            account.requests += 1
            account.running += event.outcome is not Outcome.DENY

    def _changed(self, event: SessionEvent) -> list[str]:
        if event.change is SessionChange.OPENED:
            opened = _Account(event.tenant, event.subject, event.at)
            self._accounts.setdefault(event.session, opened)
        return self._end(event) if event.change in _ENDS else []

    def _end(self, event: SessionEvent) -> list[str]:
        account = self._accounts.pop(event.session, None)
        if account is None:
            return []
        account.ended_at = event.at
        self._ended[event.session] = account
        return [event.session] if account.running == 0 else []

    def _completed(self, event: Completion) -> list[str]:
        account = self._accounts.get(event.session) or self._ended.get(event.session)
        if account is None:
            return []
        account.bytes_up += event.bytes_up
        account.bytes_down += event.bytes_down
        account.running = max(0, account.running - 1)
        return [event.session] if account.running == 0 and event.session in self._ended else []

    def _tell(self, due: list[str], now: float) -> list[Usage]:
        for session, account in self._ended.items():
            if now < account.ended_at + GRACE_SECONDS:
                break  # they stand in the order of their ends: a mass revocation is not walked each time
            if session not in due:
                due.append(session)
        return [_usage(session, self._ended.pop(session)) for session in due]


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _usage(session: str, account: _Account) -> Usage:
    return Usage(
        at=account.ended_at,
        session=session,
        tenant=account.tenant,
        subject=account.subject,
        seconds=max(0.0, account.ended_at - account.opened_at),
        requests=account.requests,
        bytes_up=account.bytes_up,
        bytes_down=account.bytes_down,
    )
