"""What other daemons of the fleet changed becomes true here: in memory first, then in our own database."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import RLock

from coatcheck.decision.session import Now, Session
from coatcheck.state.changes import (
    TAKING,
    Change,
    Closed,
    CredentialsLeft,
    HandleRevoked,
    KeysChanged,
    Minted,
    Opened,
    Rebound,
    Renewed,
)
from coatcheck.state.clock import Clock
from coatcheck.state.database import Status
from coatcheck.state.errors import StateError
from coatcheck.state.fair_lock import FairLock
from coatcheck.state.fleet_approvals import (
    ApprovalAnswered,
    ApprovalGone,
    ApprovalRemembered,
    ApprovalWaiting,
    FleetApprovals,
)
from coatcheck.state.genuine import GenuineHandles
from coatcheck.state.issued import IssuedHandles
from coatcheck.state.registry import CHANGES, Registry
from coatcheck.state.sessions import Sessions
from coatcheck.state.shared_database import Position, SharedDatabase
from coatcheck.state.signing_keys import SigningKeys
from coatcheck.telemetry.events import Revocation, SessionChange

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Commit:
    """What one daemon committed at once."""

    by: str
    """Its name in the fleet."""
    at: float
    """Unix seconds, on its clock."""
    changes: tuple[Change, ...]


class Replica:
    """The parts of a `State` that others may change, under its locks."""

    def __init__(
        self,
        writing: FairLock,
        showing: RLock,
        database: SharedDatabase,
        registry: Registry,
        issued: IssuedHandles,
        genuine: GenuineHandles,
        keys: SigningKeys,
        clock: Clock,
    ) -> None:
        self.writing = writing
        """Held while the others are told, too: changes get there in the order in which they were judged."""
        self._showing = showing
        self.database = database
        self.keys = keys
        self.clock = clock
        self.approvals = FleetApprovals()
        self.plausible = 10.0
        """Seconds: an entry's time further ahead than this comes from a broken clock, and moves ours not at
        all. Twice what a clock may be apart from the database's."""
        self._registry = registry
        self._issued = issued
        self._genuine = genuine
        self.position = database.position
        """Of the last commit that was applied; None before the first contact ever."""
        self.marks = database.marks()
        """Of the shared rows that our copy stands for, by place. Changed while `writing` is held."""

    def known(self, session_id: str) -> tuple[Session | None, Status | None]:
        """A session as it is known here, and how it was closed if it was."""
        with self._showing:
            closed = self._registry.closed.get(session_id)
            return self._registry.sessions.by_id.get(session_id), closed[0] if closed is not None else None

    def apply(self, entries: Sequence[Commit], position: Position, marks: Mapping[str, int]) -> None:
        """What was committed, in its order, up to `position`, and the marks of its rows. sqlite3.Error when
        it could not be kept: what it takes is taken all the same, and it must be applied again."""
        with self.writing:
            with self._showing:
                for entry in entries:
                    self._show(entry)
            self._keep([change for entry in entries for change in entry.changes], position, marks)

    def hear_early(self, entry: Commit) -> None:
        """What another daemon took is taken here before it is read: it is applied and kept then."""
        if all(isinstance(change, TAKING) for change in entry.changes):
            with self._showing:
                self._show(entry)

    def renewed(self, renewals: Iterable[Renewed]) -> None:
        """Leases that others renewed. A lease never gets shorter by that, and no longer than was asked for:
        only what is left of it on the wall clock counts, which is not before that of the daemon that renewed
        it."""
        with self.writing:
            now = self.clock.now()
            changed: dict[str, Session] = {}
            with self._showing:
                for renewal in renewals:
                    session = changed.get(renewal.session) or self._live(renewal.session)
                    if session is None:
                        continue
                    deadline = now.monotonic + min(renewal.until - now.wall, renewal.seconds)
                    if deadline > session.lease_deadline:
                        changed[session.id] = replace(
                            session, lease_seconds=renewal.seconds, lease_deadline=deadline
                        )
                self._registry.sessions = self._registry.sessions.having(*changed.values())
            if not changed:
                return
            with self.database.applying(), self.database.unflushed(now):
                for session in changed.values():
                    until = now.wall + session.lease_deadline - now.monotonic
                    self.database.set_lease(session.id, session.lease_seconds, until)

    def start_over(self, why: str) -> None:
        """The shared state was lost, or is another: every session, handle and revocation that we know of it
        is gone, and what runs is cut. What is owed to it is owed no more, unless none was ever read: then it
        may be from before our directory was rolled back, and about sessions that others have."""
        with self.writing:
            now = self.clock.now()
            with self._showing:
                live = [each for each in self._registry.sessions.by_id.values() if self._live(each.id)]
                self._close(live, Status.REVOKED, now, "shared state", why)
                epoch = self._registry.sessions.epoch + 1
                for session in self._registry.sessions.by_id.values():
                    self._issued.drop(self._issued.of(session.id))
                self._registry.sessions = Sessions(epoch=epoch)
                self._registry.closed.clear()
                self._genuine.forget_refusals()
                self.approvals.clear()
            known, self.position = self.position, None
            self.marks.clear()
            with self.database.applying(), self.database.flushed(now):
                self.database.forget_all()
                if known is not None:
                    self.database.forget_owed()

    def load(
        self, entries: Sequence[Commit], held: AbstractSet[str], position: Position, marks: Mapping[str, int]
    ) -> None:
        """What is new in all rows, which have the sessions `held`. A live session that is not among them is
        over."""
        with self.writing:
            now = self.clock.now()
            with self._showing:
                gone = [each for each in self._registry.sessions.by_id.values() if self._live(each.id)]
                gone = [each for each in gone if each.id not in held]
                self._close(gone, Status.ENDED, now, "shared state", "it is not in the shared state any more")
                for entry in entries:
                    self._show(entry)
            over = [Closed(each.id, Status.ENDED, now.wall) for each in gone]
            changes = [change for entry in entries for change in entry.changes]
            dropped = self.marks.keys() - marks.keys()
            self._keep([*changes, *over], position, marks, dropped)

    def kept[T](
        self, place: Callable[[Change], T | None]
    ) -> tuple[dict[str, int], Position | None, AbstractSet[str]]:
        """The marks of all rows, up to where they count, and the places of those that are of use."""
        with self.writing, self._showing:  # what is committed is shown before it counts as read
            now, registry = self.clock.now(), self._registry
            changes: list[Change] = [KeysChanged({}), *self.approvals.changes(now.wall)]
            for session in registry.sessions.by_id.values():
                changes.append(Opened(session, 0.0))
                changes += [Minted(handle) for handle in self._issued.of(session.id)]
            owed = self.database.owed()
            return dict(self.marks), self.position, {str(place(change)) for change in (*changes, *owed)}

    def dropped(self, places: Iterable[str], position: Position) -> None:
        """Rows that are gone by our own commit."""
        with self.writing:
            self._keep([], position, {}, set(places))

    def cut_all(self) -> None:
        """End what runs: this daemon no longer hears of revocations. The sessions go on when it does."""
        with self._showing:
            now = self.clock.now()
            live = [each for each in self._registry.sessions.by_id.values() if self._live(each.id)]
            self._registry.notify(live, None, now)

    # --- one change --------------------------------------------------------------------------------

    def _live(self, session_id: str) -> Session | None:
        if session_id in self._registry.closed:
            return None
        return self._registry.sessions.by_id.get(session_id)

    def _closes(self, session_id: str, status: Status) -> bool:
        """Also one that is over, if it is revoked now: what sleeps here, or was saved, must not come back."""
        before = self._registry.closed.get(session_id)
        return before is None or (status is Status.REVOKED and before[0] is not Status.REVOKED)

    def _show(self, entry: Commit) -> None:
        """In memory, for all that ask from now on. What closes comes last, and at once for all."""
        gives = any(isinstance(change, Opened | Minted | Rebound) for change in entry.changes)
        if gives and entry.at <= self.clock.now().wall + self.plausible:
            # Nobody's handles come from our future, and no lease gets longer. What only takes may come from
            # one whose clock is wrong, as it must be taken all the same.
            self.clock.raise_to(entry.at)
        now = self.clock.now()
        closed: dict[Status, list[Session]] = {}
        ends = {change.session: change for change in entry.changes if isinstance(change, Closed)}
        for change in entry.changes:
            match change:
                case Opened():
                    self._opened(change, now, entry.by, ends.get(change.session.id))
                case Minted(handle):
                    if not self._knows(handle.claims.sid, handle.claims.jti):
                        self._issued.add(handle)
                    if handle.revoked:  # a snapshot says so of one that is known, too
                        self._handle_revoked(handle.claims.sid, handle.claims.jti, now, entry.by)
                case Rebound():
                    self._rebound(change, now, entry.by)
                case HandleRevoked(session_id, jti):
                    self._handle_revoked(session_id, jti, now, entry.by)
                case CredentialsLeft():
                    self._credentials_left(change, now, entry.by)
                case KeysChanged(keys):
                    self.keys.adopt(keys)
                case Closed(session_id, status, _):
                    session = self._registry.sessions.by_id.get(session_id)
                    if session is not None and self._closes(session_id, status):
                        closed.setdefault(status, []).append(session)
                case ApprovalWaiting() | ApprovalGone() | ApprovalAnswered() | ApprovalRemembered():
                    self.approvals.show(change, now.wall)
                case Renewed():
                    pass  # they have a way of their own
        if any(isinstance(change, KeysChanged | Minted) for change in entry.changes):
            self._genuine.forget_refusals()
        for status, sessions in closed.items():
            self._close(sessions, status, now, entry.by, "")

    def _knows(self, session_id: str, jti: str) -> bool:
        return any(each.claims.jti == jti for each in self._issued.of(session_id))

    def _opened(self, change: Opened, now: Now, by: str, closed: Closed | None) -> None:
        opened = change.session
        if opened.id in self._registry.sessions.by_id:  # a snapshot has no more of what was taken meanwhile
            self._credentials_left(CredentialsLeft(opened.id, opened.credentials), now, by)
            self._rebound(Rebound(opened.id, opened.generation), now, by)
            return
        left = min(change.lease_until - now.wall, opened.lease_seconds)
        session = replace(opened, lease_deadline=now.monotonic + left)
        if closed is not None:  # long over: known for the wording of refusals only, and no news
            over = closed.status in (Status.REVOKED, Status.ENDED)
            session = replace(session, revoked=over, lease_deadline=float("-inf"))
            self._registry.closed[session.id] = (closed.status, closed.at)
        self._registry.sessions = self._registry.sessions.having(session)
        if closed is None:
            self._tell(now, SessionChange.OPENED, session, by, f"origin {session.origin.kind}")

    def _rebound(self, change: Rebound, now: Now, by: str) -> None:
        session = self._live(change.session)
        if session is not None and session.generation < change.generation:
            session = replace(session, generation=change.generation)
            self._registry.sessions = self._registry.sessions.having(session, epoch=True)
            self._registry.notify([session], None, now)
            self._tell(now, SessionChange.REBOUND, session, by, f"generation {session.generation}")

    def _handle_revoked(self, session_id: str, jti: str, now: Now, by: str) -> None:
        session = self._registry.sessions.by_id.get(session_id)
        if session is None or jti in session.revoked_handles:
            return
        if self._knows(session_id, jti):
            self._issued.revoke(session_id, jti)
        session = replace(session, revoked_handles=session.revoked_handles | {jti})
        self._registry.sessions = self._registry.sessions.having(session, epoch=True)
        self._registry.notify([session], Revocation.HANDLE, now)
        self._tell(now, SessionChange.HANDLE_REVOKED, session, by, jti)

    def _credentials_left(self, change: CredentialsLeft, now: Now, by: str) -> None:
        session = self._registry.sessions.by_id.get(change.session)
        if session is None or not session.credentials - change.credentials:
            return
        lost = ", ".join(sorted(session.credentials - change.credentials))
        session = replace(session, credentials=session.credentials & change.credentials)
        self._registry.sessions = self._registry.sessions.having(session, epoch=True)
        self._registry.notify([session], Revocation.CREDENTIAL, now)
        self._tell(now, SessionChange.CREDENTIAL_REVOKED, session, by, lost)

    def _close(self, sessions: Sequence[Session], status: Status, now: Now, by: str, why: str) -> None:
        if not sessions:
            return
        dead = self._registry.show_closed(sessions, status, now, one=len(sessions) == 1)
        for session in dead:
            self._tell(now, CHANGES[status], session, by, why)

    def _tell(self, now: Now, change: SessionChange, session: Session, by: str, detail: str) -> None:
        with suppress(StateError):  # it is in that daemon's log; a full disk here undoes nothing
            self._registry.tell(now, change, session, f"fleet:{by}", detail)

    def _keep(
        self,
        changes: Sequence[Change],
        position: Position,
        marks: Mapping[str, int],
        dropped: AbstractSet[str] = frozenset(),
    ) -> None:
        now = self.clock.now()
        # What was taken here and nobody was told of yet: it may have been forgotten, and is back.
        owed = tuple(each for each in self.database.owed() if isinstance(each, TAKING))
        with self._showing:
            self._show(Commit("this daemon", now.wall, owed))
        if any(isinstance(change, KeysChanged) for change in changes):
            self.keys.save()
        with self.database.applying(), self.database.unflushed(now):
            for change in (*changes, *owed):
                self._write(change)
            self.database.drop_marks(dropped)
            self.database.put_marks(marks)
            self.database.set_position(position)
        self.position = position
        for place in dropped:
            self.marks.pop(place, None)
        self.marks |= marks

    def _write(self, change: Change) -> None:
        match change:
            case Opened(session, until):
                self.database.insert_session(session, until)
                known = self._registry.sessions.by_id.get(session.id, session)
                self.database.set_credentials(session.id, known.credentials)
                self.database.set_generation(session.id, known.generation)
            case Minted(handle):
                self.database.insert_handle(handle)
            case Rebound(session_id, generation):
                bound = self._registry.sessions.by_id.get(session_id)
                self.database.set_generation(session_id, bound.generation if bound else generation)
            case HandleRevoked(session_id, jti):
                self.database.revoke_handle(session_id, jti)
            case CredentialsLeft(session_id, credentials):
                left = self._registry.sessions.by_id.get(session_id)
                self.database.set_credentials(session_id, left.credentials if left else credentials)
            case Closed(session_id, status, at):
                self.database.close_session(session_id, status, at)
            case _:
                pass  # keys have a file of their own, leases a way of their own, questions no disk
