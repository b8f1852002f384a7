"""Which sessions there are, and how one stops being live.

Used while `State` shows; only `settle_and_tell` waits for disks and others, and is used while it writes.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from math import floor
from typing import Final

from coatcheck.decision.denial import Reason
from coatcheck.decision.message import Origin
from coatcheck.decision.session import Now, Session, alive
from coatcheck.state.database import Database, IssuedHandle, Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.issued import IssuedHandles
from coatcheck.state.journal import Journal
from coatcheck.state.sessions import Sessions
from coatcheck.telemetry.audit.file import AuditUnavailable
from coatcheck.telemetry.events import DaemonEvent, Event, Revocation, SessionChange, SessionEvent


@dataclass(frozen=True, slots=True)
class Taken:
    """What may no longer be used, and since when."""

    sessions: tuple[str, ...]
    """Ids: of what is over, or of what has lost a handle or a credential."""
    what: Revocation | None
    """None: it was not revoked. It lapsed, or was rebound to a new generation."""
    since: float
    """Seconds of `State`'s monotonic clock."""


type Revoked = Callable[[Taken], None]
type Change = tuple[SessionChange, Session]
"""What was taken from a session, which is as it is now."""

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
        max_sessions: int,
        now: Now,
    ) -> None:
        self._database = database
        self._journal = journal
        self._issued = issued
        self._emit = emit
        self._max_sessions = max_sessions
        """That live; as many closed ones are kept."""
        self.closed: dict[str, tuple[Status, float]] = {}
        """Why and when (Unix seconds), the longest closed first."""
        self.callbacks: list[Revoked] = []
        self.kept: Callable[[], AbstractSet[str] | None] = frozenset
        """Sessions of sandboxes that sleep, and of snapshots; None as long as they were not counted."""
        self.shared = False
        """Whether other daemons know them, too: what sleeps there, or was saved, is not known here."""
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

    def make_room(self, origin: Origin, now: Now) -> list[Change]:
        """For one more session, which `origin` is to prove: what had it and is over is closed now. StateError
        when there is no room."""
        held = self.sessions.by_origin.get(origin)
        lapsed = [held] if held is not None and held.id not in self.closed else []
        if held is not None and lapsed and alive(held, now) is None:
            raise StateError(
                Problem.ORIGIN_TAKEN,
                f"this origin ({held.origin.kind}) proves session {held.id} already",
                f"End that session first: coatcheck session revoke {held.id}",
            )
        if len(self.sessions.by_id) - len(self.closed) - len(lapsed) >= self._max_sessions:
            raise StateError(
                Problem.CAPACITY,
                f"{self._max_sessions} sessions are live, which is the limit",
                "End sessions that are not needed, or raise the limit in the settings.",
            )
        return [each for gone in lapsed for each in self.close([gone], status_of(gone, now), now)]

    def unchanged(self, session: Session) -> None:
        """StateError when something was taken from it meanwhile."""
        if self.sessions.by_id.get(session.id) is not session:
            raise StateError(
                Problem.SESSION_CLOSED,
                f"session {session.id} was revoked, or something of it, at the same moment",
                "Check the current state, then repeat what is still needed.",
            )

    def close_dead(self, heard: float, now: Now) -> list[Change]:
        """What has lapsed or expired. `heard`: until then (monotonic seconds) all renewals are known."""
        dead: dict[Status, list[Session]] = {}
        for session in self.sessions.by_id.values():
            if session.id in self.closed or alive(session, now) is None:
                continue
            # Another daemon may have renewed it in time, without our having heard of that yet.
            if heard >= session.lease_deadline or now.wall >= session.expires_at:
                dead.setdefault(status_of(session, now), []).append(session)
        return [each for status, gone in dead.items() for each in self.close(gone, status, now)]

    def close(self, sessions: Sequence[Session], status: Status, now: Now, one: bool = True) -> list[Change]:
        """Refuse the sessions from now on, everywhere here; on disk after `settle_and_tell`. `one`: it was
        asked for this one, and not for whatever there is."""
        dead = self.show_closed(sessions, status, now, one)
        for session in dead:
            self._journal.owe(partial(self._database.close_session, session.id, status, now.wall))
        self.forget()
        return [(CHANGES[status], session) for session in dead]

    def show_closed(
        self, sessions: Sequence[Session], status: Status, now: Now, one: bool = True
    ) -> list[Session]:
        """Refuse the sessions from now on, and cut what runs; as they are now. Nothing is written."""
        if not sessions:
            return []
        revoked = status in (Status.REVOKED, Status.ENDED)
        what = (Revocation.SESSION if one else Revocation.EVERYTHING) if revoked else None
        dead = [replace(session, revoked=revoked, lease_deadline=float("-inf")) for session in sessions]
        self.sessions = self.sessions.having(*dead, epoch=True)
        self.closed |= {session.id: (status, now.wall) for session in dead}
        self.notify(dead, what, now)
        return dead

    def take_credential(self, sessions: Sequence[Session], credential: str, now: Now) -> list[Change]:
        """Take a credential from sessions that go on; on disk after `settle_and_tell`."""
        if not sessions:
            return []
        left = [replace(session, credentials=session.credentials - {credential}) for session in sessions]
        self.sessions = self.sessions.having(*left, epoch=True)
        self.notify(left, Revocation.CREDENTIAL, now)
        for session in left:
            self._journal.owe(partial(self._keep_credentials, session.id))
        return [(SessionChange.CREDENTIAL_REVOKED, session) for session in left]

    def _keep_credentials(self, session_id: str) -> None:
        """Those that are left when it is written: others may have taken more since."""
        if (session := self.sessions.by_id.get(session_id)) is not None:
            self._database.set_credentials(session_id, session.credentials)

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
            kept = held is None or self.shared or session.id in held
            if not over or (status is not Status.REVOKED and kept):
                found.append(session)
        return found

    def forget(self, closed_before: float = float("-inf")) -> None:
        """Drop closed sessions, all from before then (Unix seconds) and the oldest of too many: they are only
        kept for the wording of refusals. Not those whose strings somebody may hold."""
        if closed_before == float("-inf") and len(self.closed) <= self._max_sessions:
            return
        held = self.held()
        if held is None:
            return
        found = [(each, at) for each, (_, at) in self.closed.items() if each not in held]
        surplus = len(found) - self._max_sessions
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
                f"session {session.id}: {change}, but the audit log has no record of it ({error})",
                "Make room on the disk that holds the audit log.",
            ) from error
        return event

    def settle_and_tell(
        self, now: Now, taken: Iterable[Change], caller: str, detail: str
    ) -> list[SessionEvent]:
        """What was taken is visible: now the disk, the others and the log, as much of it as they take. The
        first StateError is raised when everything was tried."""
        failures: list[StateError] = []
        try:
            self._journal.settle_all(now)
        except StateError as error:
            failures.append(error)
        events: list[SessionEvent] = []
        for change, session in taken:
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
