"""Which sessions there are, and how one stops being live. Used under `State`'s lock."""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from math import floor
from typing import Final

from coatcheck.decision.session import Now, Session, alive
from coatcheck.decision.verdict import Reason
from coatcheck.state.database import Database, IssuedHandle, Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.issued import IssuedHandles
from coatcheck.state.journal import Journal
from coatcheck.state.sessions import Sessions
from coatcheck.telemetry.audit_file import AuditUnavailable
from coatcheck.telemetry.events import DaemonEvent, Event, Revocation, SessionChange, SessionEvent


@dataclass(frozen=True, slots=True)
class Taken:
    """What may no longer be used, and since when."""

    sessions: tuple[str, ...]
    """Ids: of what is over, or of what has lost a handle or a credential."""
    what: Revocation | None
    """None: nobody revoked it. It lapsed, or was restored as a new generation."""
    since: float
    """Seconds of `State`'s monotonic clock."""


type Revoked = Callable[[Taken], None]

CHANGES: Final = {
    Status.REVOKED: SessionChange.REVOKED,
    Status.ENDED: SessionChange.ENDED,
    Status.LAPSED: SessionChange.LAPSED,
    Status.EXPIRED: SessionChange.EXPIRED,
}


class Registry:
    """The snapshot that planes read, and the closed sessions that are kept for the wording of refusals."""

    sessions: Sessions

    def __init__(
        self,
        database: Database,
        journal: Journal,
        issued: IssuedHandles,
        emit: Callable[[Event], None],
        max_closed: int,
        now: Now,
    ) -> None:
        self._database = database
        self._journal = journal
        self._issued = issued
        self._emit = emit
        self._max_closed = max_closed
        self.closed: dict[str, tuple[Status, float]] = {}
        """Why and when (Unix seconds), the longest closed first."""
        self.callbacks: list[Revoked] = []
        self.kept: Callable[[], AbstractSet[str] | None] = frozenset
        """Sessions of sandboxes that sleep, and of snapshots; None as long as they were not counted."""
        self.sessions = Sessions().having(*self._load(now))

    def session(self, session_id: str) -> Session:
        """StateError(UNKNOWN_SESSION) when there is none, or none any more."""
        session = self.sessions.by_id.get(session_id)
        if session is None:
            raise StateError(
                Problem.UNKNOWN_SESSION, f"there is no session {session_id}", "See `coatcheck session list`."
            )
        return session

    def live(self, session_id: str, now: Now) -> Session:
        """StateError(SESSION_CLOSED) when it may no longer act: nothing is revived."""
        session = self.session(session_id)
        denied = alive(session, now)
        if denied is not None or session_id in self.closed:
            why = self.closed.get(session_id, (status_of(session, now), 0.0))[0]
            raise StateError(
                Problem.SESSION_CLOSED,
                f"session {session_id} is {why}, and is not revived",
                "Open a new session.",
            )
        return session

    def close(
        self, sessions: Sequence[Session], status: Status, now: Now, caller: str, why: str, one: bool = True
    ) -> list[SessionEvent]:
        """Refuse the sessions from now on, everywhere; on disk when this returns. `one`: it was asked for
        this one, and not for whatever there is."""
        dead = self.show_closed(sessions, status, now, one)
        for session in dead:
            self._journal.owe(partial(self._database.close_session, session.id, status, now.wall))
        self.forget()
        return self.settle_and_tell(now, CHANGES[status], dead, caller, why)

    def show_closed(
        self, sessions: Sequence[Session], status: Status, now: Now, one: bool = True
    ) -> list[Session]:
        """Refuse the sessions from now on, and cut what runs; as they are now. Nothing is written."""
        revoked = status in (Status.REVOKED, Status.ENDED)
        what = (Revocation.SESSION if one else Revocation.EVERYTHING) if revoked else None
        dead = [replace(session, revoked=revoked, lease_deadline=float("-inf")) for session in sessions]
        self.sessions = self.sessions.having(*dead, epoch=True)
        self.closed |= {session.id: (status, now.wall) for session in dead}
        self.notify(dead, what, now)
        return dead

    def take_credential(
        self, sessions: Sequence[Session], credential: str, now: Now, caller: str, why: str
    ) -> None:
        """Take a credential from sessions that go on; on disk when this returns."""
        left = [replace(session, credentials=session.credentials - {credential}) for session in sessions]
        self.sessions = self.sessions.having(*left, epoch=True)
        self.notify(left, Revocation.CREDENTIAL, now)
        for session in left:
            self._journal.owe(partial(self._database.set_credentials, session.id, session.credentials))
        detail = f"{credential} {why}".rstrip()
        self.settle_and_tell(now, SessionChange.CREDENTIAL_REVOKED, left, caller, detail)

    def held(self) -> AbstractSet[str] | None:
        """Sessions that may be over and whose strings are held: a live one's ancestors, and `kept`.

        None: that is not known yet.
        """
        kept = self.kept()
        if kept is None:
            return None
        live = (each for each in self.sessions.by_id.values() if each.id not in self.closed)
        return kept | frozenset().union(*(each.ancestors for each in live))

    def revocable(self) -> list[Session]:
        """Those that are live, and those that are over and that a new one may be opened after: nobody revoked
        them, and what they were in is kept, or may be."""
        held, found = self.held(), []
        for session in self.sessions.by_id.values():
            status, _ = self.closed.get(session.id, (Status.LIVE, 0.0))
            over = status is not Status.LIVE
            if not over or (status is not Status.REVOKED and (held is None or session.id in held)):
                found.append(session)
        return found

    def forget(self, closed_before: float = float("-inf")) -> None:
        """Drop closed sessions, all from before then (Unix seconds) and the oldest of too many: they are only
        kept for the wording of refusals. Not those whose strings somebody may hold."""
        if closed_before == float("-inf") and len(self.closed) <= self._max_closed:
            return
        held = self.held()
        if held is None:
            return
        found = [(each, at) for each, (_, at) in self.closed.items() if each not in held]
        surplus = len(found) - self._max_closed
        oldest = [each for n, (each, at) in enumerate(found) if n < surplus or at <= closed_before]
        if not oldest:
            return
        self.sessions = self.sessions.having(without=[self.sessions.by_id[name] for name in oldest])
        for session_id in oldest:
            del self.closed[session_id]
            self._issued.drop(self._issued.of(session_id))
            self._journal.owe(partial(self._database.drop_session, session_id))

    def useless(self, expired: Iterable[IssuedHandle]) -> list[IssuedHandle]:
        """Of handles that have expired, those that nobody needs. What was issued with a session stands in
        environments, which nothing refreshes; handles of minutes were minted for clients that can."""
        held = self.held()
        if held is None:
            return []
        ends = {each: self.sessions.by_id[each].expires_at for each in held if each in self.sessions.by_id}
        return [
            each
            for each in expired
            if each.claims.sid not in ends or each.claims.expires_at < floor(ends[each.claims.sid])
        ]

    def notify(self, sessions: Sequence[Session], what: Revocation | None, now: Now) -> None:
        """Tell the planes what was taken, so that they abort what depended on it (I5): all of it at once,
        as each look goes over every connection."""
        taken = Taken(tuple(session.id for session in sessions), what, now.monotonic)
        for callback in self.callbacks:
            try:
                callback(taken)
            except Exception as error:  # noqa: BLE001 - one plane's failure must not keep others open
                self._emit(DaemonEvent(now.wall, "revocation_callback_failed", repr(error)))

    def tell(
        self, now: Now, change: SessionChange, session: Session, caller: str, detail: str = ""
    ) -> SessionEvent:
        """Report a change that is visible and, if the disk works, written. StateError(NOT_RECORDED)."""
        event = SessionEvent(
            at=now.wall,
            change=change,
            session=session.id,
            tenant=session.tenant,
            subject=session.subject,
            policy=session.policy,
            caller=caller,
            detail=detail,
            state_version=self._database.version,
        )
        try:
            self._emit(event)
        except AuditUnavailable as error:
            raise StateError(
                Problem.NOT_RECORDED,
                f"session {session.id}: {change}, but the audit log does not tell of it ({error})",
                "Make room on the disk that holds the audit log.",
            ) from error
        return event

    def settle_and_tell(
        self, now: Now, change: SessionChange, sessions: Sequence[Session], caller: str, detail: str
    ) -> list[SessionEvent]:
        """What was taken is visible: now the disk and the log, as much of it as they take. The first
        StateError is raised when everything was tried."""
        failures: list[StateError] = []
        try:
            self._journal.settle(now)
        except StateError as error:
            failures.append(error)
        events: list[SessionEvent] = []
        for session in sessions:
            try:
                events.append(self.tell(now, change, session, caller, detail))
            except StateError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return events

    def _load(self, now: Now) -> list[Session]:
        """Closed sessions first: an origin belongs to the live session that has it now."""
        loaded: list[Session] = []
        rows = sorted(self._database.sessions(now), key=lambda row: (row[1] is Status.LIVE, row[2]))
        for session, status, closed_at in rows:
            loaded.append(replace(session, revoked_handles=self._issued.revoked_of(session.id)))
            if status is not Status.LIVE:
                self.closed[session.id] = (status, closed_at)
        return loaded


def status_of(session: Session, now: Now) -> Status:
    """Why a session is not alive, as its own values say."""
    denied = alive(session, now)
    if denied is None:
        return Status.LIVE
    if denied.reason is Reason.SESSION_REVOKED:
        return Status.REVOKED
    return Status.EXPIRED if denied.reason is Reason.SESSION_EXPIRED else Status.LAPSED
