"""`State`: every change to sessions, handles and policies goes through here.

Readers (`sessions`, `policies`, `claims_of`) take no lock: they see values that are replaced whole. Changes
take two, in any thread, if both then in this order: `_writing` while something is written to disk and told
to a fleet, one after the other, however long that takes; `_showing` while values are replaced, which waits
for neither. The order within a change follows from what it does:

- what *gives* (open, renew, mint) is on disk first, then visible, then reported;
- what *takes* (revoke, end, lapse) is visible first, so that a full disk cannot keep it alive, then on
  disk, then reported and answered. If the disk refuses, the caller is told, and `sweep` tries again.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Final

from coatcheck.decision.denial import Deny
from coatcheck.decision.policy import Policy
from coatcheck.decision.session import Now, Session
from coatcheck.state.clock import Clock
from coatcheck.state.database import Database, IssuedHandle, Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.fair_lock import FairLock
from coatcheck.state.genuine import GenuineHandles
from coatcheck.state.issued import IssuedHandles, MintedHandle, mint
from coatcheck.state.journal import Journal
from coatcheck.state.opening import open_stored
from coatcheck.state.registry import Registry, Revoked, status_of
from coatcheck.state.replica import Replica
from coatcheck.state.replication_health import ReplicationHealth
from coatcheck.state.sessions import NewSession, Sessions, StateSettings, granted, new_session, renewed
from coatcheck.state.shared_database import SharedDatabase
from coatcheck.state.signing_keys import SigningKeys
from coatcheck.telemetry.events import DaemonEvent, Event, Revocation, SessionChange, SessionEvent

HIGH_WATER_SECONDS: Final = 10.0
"""How far the persisted clock may be behind: as much as a clock set back during a restart could win."""


class State:
    """Open it with `State.open`; call `sweep` about once a second; `close` it last."""

    policies: Mapping[str, Policy]
    """By name; replaced whole by `swap_policies`."""

    genuine: GenuineHandles
    """`claims_of` and its kin."""
    hearing: ReplicationHealth | None = None
    replica: Replica | None = None
    """Both set where a fleet of daemons shares the state."""

    def __init__(
        self,
        database: Database,
        keys: SigningKeys,
        clock: Clock,
        settings: StateSettings,
        emit: Callable[[Event], None],
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.database = database
        self._journal = Journal(database)
        self.keys = keys
        self.writing, self.showing = FairLock(), RLock()
        self._tidied_at = float("-inf")
        self.issued = IssuedHandles(database.handles())
        self.genuine = GenuineHandles(keys, self.issued)
        self.policies = MappingProxyType({})
        now = clock.now()
        self.registry = Registry(database, self._journal, self.issued, emit, settings.max_sessions, now)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        emit: Callable[[Event], None],
        settings: StateSettings | None = None,
        clock: Clock | None = None,
        seen_version: int | None = None,
        max_silence: float | None = None,
    ) -> "State":
        """The state in `directory` (`StateDirectory.sessions`), made if there is none; one process at a time.

        `seen_version` is the greatest `state_version` in the audit log. A database that is behind it was
        lost or rolled back, and may have forgotten revocations: then every session and every signing key
        is dropped, and a DaemonEvent says so. `max_silence`: it is shared with other daemons, and without
        word of them for so many seconds nothing may go on. StateError or PrivateFileError when the files
        cannot be trusted or used.
        """
        clock = clock or Clock()
        stored = open_stored(directory, clock, seen_version, shared=max_silence is not None)
        try:
            state = cls(stored.database, stored.keys, clock, settings or StateSettings(), emit)
        except BaseException:
            stored.database.close()
            raise
        if isinstance(stored.database, SharedDatabase) and max_silence is not None:
            state.hearing = ReplicationHealth(max_silence)
            state.registry.shared = True
            parts = (state.registry, state.issued, state.genuine, stored.keys, clock)
            state.replica = Replica(state.writing, state.showing, stored.database, *parts)
        if stored.lost:
            emit(DaemonEvent(clock.now().wall, stored.lost, stored.detail))
        return state

    def close(self) -> None:
        """Save the clock and what is owed. Sessions live on for the next run."""
        with self.writing:
            try:
                self._journal.settle(self.clock.now())
            finally:
                self.database.close()

    # --- reading, in any thread, without a lock ---------------------------------------------------

    @property
    def sessions(self) -> Sessions:
        """The snapshot. Read it once a request."""
        return self.registry.sessions

    def stale(self, now: Now) -> Deny | None:
        """Why nothing may go on that needs a session: what others revoked may not be known here."""
        return self.hearing.stale(now) if self.hearing is not None else None

    def session(self, session_id: str) -> Session:
        """StateError(UNKNOWN_SESSION) when there is none, or none any more."""
        return self.registry.session(session_id)

    def status(self, session_id: str) -> Status:
        session = self.session(session_id)
        closed = self.registry.closed.get(session_id)
        return closed[0] if closed is not None else status_of(session, self.clock.now())

    def handles(self, session_id: str) -> tuple[IssuedHandle, ...]:
        """What was issued to a session: ids and expiry, no values."""
        with self.showing:
            return self.issued.of(self.session(session_id).id)

    def listeners(self) -> Mapping[str, int]:
        """By session, what `note_listener` was told; of closed sessions, too."""
        with self.writing:
            return self.database.listeners()

    # --- giving ------------------------------------------------------------------------------------

    def open_session(self, wanted: NewSession, caller: str) -> tuple[Session, tuple[MintedHandle, ...]]:
        """A live session with one handle a credential."""
        with self.writing:
            now, policies = self.clock.now(), self.policies
            parent = self.session(wanted.parent) if wanted.parent is not None else None
            session = new_session(wanted, policies, self.settings, caller, now, parent)
            with self.showing:
                lapsed = self.registry.make_room(session.origin, now)
            if lapsed:
                why = "its origin was given to another session"
                self.registry.settle_and_tell(now, lapsed, "", why)
                if parent is not None:  # it may be the one that lapsed
                    parent = self.session(parent.id)
            made = [
                mint(session, policies[session.policy].credentials[name], now, None, self.keys.sign)
                for name in sorted(session.credentials)
            ]
            with self._journal.giving(now):
                self.database.put_session(session, now.wall + session.lease_seconds)
                for _, issued in made:
                    self.database.put_handle(issued)
            with self.showing:
                for _, issued in made:
                    self.issued.add(issued)
                self.registry.sessions = self.sessions.having(session)
            try:
                self.registry.tell(
                    now, SessionChange.OPENED, session, caller, f"origin {session.origin.kind}"
                )
                if parent is not None:
                    self.registry.unchanged(parent)
            except StateError:
                with suppress(StateError):  # nobody was given it, and it must not hold its origin
                    self._take(session.id, Status.ENDED, caller, "it could not be given")
                raise
            return session, tuple(minted for minted, _ in made)

    def renew(self, session_id: str, caller: str, lease_seconds: float | None = None) -> Session:
        """Renew the lease. A session that is no longer alive is not revived: StateError."""
        with self.writing:
            now = self.clock.now()
            session = renewed(self.registry.live(session_id, now), lease_seconds, self.settings, now)
            left = session.lease_deadline - now.monotonic
            with self._journal.giving(now, flush=False):
                self.database.set_lease(session_id, session.lease_seconds, now.wall + left)
            with self.showing:  # it may have been revoked meanwhile
                session = replace(
                    self.registry.live(session_id, now),
                    lease_seconds=session.lease_seconds,
                    lease_deadline=session.lease_deadline,
                )
                self.registry.sessions = self.sessions.having(session)
            with suppress(StateError):
                # A full audit log refuses every request; it need not end every sandbox, too. The log says
                # how many records it lost.
                self.registry.tell(now, SessionChange.RENEWED, session, caller)
            return session

    def note_listener(self, session_id: str, port: int) -> None:
        """A session has a listener of its own, which the next run must open again where it was: on this
        loopback port, (0) its Unix socket, or its SANDBOX_SOCKETS. Sandboxes hold the address and cannot be
        told another."""
        with self.writing, self._journal.giving(self.clock.now(), flush=False):
            self.database.put_listener(self.session(session_id).id, port)

    def mint(
        self, session_id: str, credential: str, ttl: float | None = None, caller: str = ""
    ) -> MintedHandle:
        """One more handle of a live session, for clients that can refresh. `ttl` in seconds."""
        with self.writing:
            now = self.clock.now()
            session = self.registry.live(session_id, now)
            found = granted(session, credential, self.policies)
            self._check_handles(session_id, now, 1)
            minted, issued = mint(session, found, now, ttl, self.keys.sign)
            with self._journal.giving(now):
                self.database.put_handle(issued)
            with self.showing:
                self.issued.add(issued)
            self.registry.tell(
                now, SessionChange.HANDLE_MINTED, session, caller, f"{credential} {minted.jti}"
            )
            return minted

    def rebind(self, session_id: str, caller: str) -> tuple[Session, tuple[MintedHandle, ...]]:
        """Raise the generation of a live session, whose sandbox has begun a new life: every handle issued to
        it before is refused from now on, and what runs on one is cut off. The handles of the new generation,
        one a credential. StateError: nothing has changed, and the old handles still count. NOT_RECORDED is
        the exception: the old handles are refused and stay so, nobody was given the new ones, and another
        rebind gives some."""
        with self.writing:
            now = self.clock.now()
            session = self.registry.live(session_id, now)
            # Later than every child's, too: what this one is given now is nothing that a child inherited.
            children = (each for each in self.sessions.by_id.values() if session_id in each.ancestors)
            latest = max([session.generation, *(each.generation for each in children)])
            session = replace(session, generation=latest + 1)
            policy = self.policies.get(session.policy)
            wanted = sorted(session.credentials & policy.credentials.keys()) if policy is not None else []
            self._check_handles(session_id, now, len(wanted))
            made = [
                mint(session, policy.credentials[name], now, None, self.keys.sign)
                for name in wanted
                if policy is not None
            ]
            with self._journal.giving(now):
                self.database.set_generation(session_id, session.generation)
                for _, issued in made:
                    self.database.put_handle(issued)
            with self.showing:  # it may have been revoked meanwhile
                session = replace(self.registry.live(session_id, now), generation=session.generation)
                for _, issued in made:
                    self.issued.add(issued)
                self.registry.sessions = self.sessions.having(session, epoch=True)
                self.registry.notify([session], None, now)
            self.registry.tell(
                now, SessionChange.REBOUND, session, caller, f"generation {session.generation}"
            )
            return session, tuple(minted for minted, _ in made)

    def swap_policies(self, policies: Mapping[str, Policy]) -> None:
        """The policies in force from now on. Running streams see a new epoch and ask again."""
        with self.showing:
            self.policies = MappingProxyType(dict(policies))
            self.registry.sessions = self.sessions.having(epoch=True)

    # --- taking ------------------------------------------------------------------------------------

    def revoke(self, session_id: str, caller: str, why: str = "") -> Session:
        """Kill a session: refused everywhere at once, and on disk when this returns. Again is no error.

        StateError(NOT_DURABLE): it is revoked, but a crash right now would revive it. NOT_RECORDED: it is
        revoked, on disk, and the audit log does not tell of it.
        """
        return self._take(session_id, Status.REVOKED, caller, why)

    def end(self, session_id: str, caller: str) -> Session:
        """End the session: its sandbox has ended. Otherwise like `revoke`."""
        return self._take(session_id, Status.ENDED, caller, "")

    def revoke_handle(self, session_id: str, jti: str, caller: str = "", why: str = "") -> None:
        """Kill one handle of a session. Like `revoke`."""
        with self.showing:
            now = self.clock.now()
            session = self.session(session_id)
            if jti not in {handle.claims.jti for handle in self.issued.of(session_id)}:
                raise StateError(
                    Problem.UNKNOWN_HANDLE,
                    f"session {session_id} has no handle {jti}",
                    f"It may have expired. See `coatcheck session show {session_id}`.",
                )
            self.issued.revoke(session_id, jti)
            revoked = replace(session, revoked_handles=session.revoked_handles | {jti})
            self.registry.sessions = self.sessions.having(revoked, epoch=True)
            self.registry.notify([session], Revocation.HANDLE, now)
            self._journal.owe(partial(self.database.revoke_handle, session_id, jti))
        with self.writing:
            taken = [(SessionChange.HANDLE_REVOKED, revoked)]
            self.registry.settle_and_tell(now, taken, caller, f"{jti} {why}".rstrip())

    def revoke_where(
        self, chosen: Callable[[Session], bool], credential: str | None, caller: str, why: str = ""
    ) -> tuple[str, ...]:
        """Kill every session that is `chosen`, or only take `credential` from it; the ids of those that lost
        something: live ones, and those of sandboxes that sleep or could be restored. One write for all of
        them; otherwise like `revoke`. Also what was being opened before, here or by another daemon."""
        taken = self._take_where(chosen, credential, caller, why)
        if self.hearing is not None:
            self.hearing.catch_up(self.clock.now())
        return taken + self._take_where(chosen, credential, caller, why)

    def sweep(self) -> tuple[SessionEvent, ...]:
        """Close what has lapsed or expired, save the clock, rotate keys. Blocks on disk: not in a loop.

        Nothing depends on it for safety: a lapsed session is refused by its own deadline.
        """
        with self.writing:  # from the start: a renewal on its way is not overtaken
            now = self.clock.now()
            heard = self.hearing.heard_at if self.hearing is not None else now.monotonic
            with self.showing:
                taken = self.registry.close_dead(heard, now)
            events = self.registry.settle_and_tell(now, taken, "", "") if taken else []
            if self._journal.in_debt:
                self._journal.settle(now)
            if now.monotonic - self._tidied_at >= HIGH_WATER_SECONDS:
                self._tidy(now)
                self._tidied_at = now.monotonic
            return tuple(events)

    def keep(self, kept: Callable[[], AbstractSet[str] | None]) -> None:
        """Ask `kept` before anything is forgotten: which sessions that are over left strings behind that are
        held, in sandboxes that sleep and in snapshots? None: not known yet, so nothing is forgotten."""
        with self.showing:
            self.registry.kept = kept

    def on_revoked(self, callback: Revoked) -> None:
        """Call `callback` right after something was taken, in the taker's thread. It must not block."""
        with self.showing:
            self.registry.callbacks.append(callback)

    @property
    def version(self) -> int:
        return self.database.version

    # --- inside -------------------------------------------------------------------------------------

    def _check_handles(self, session_id: str, now: Now, more: int) -> None:
        """StateError(CAPACITY) when so many more would be above the limit of unexpired handles."""
        unexpired = [h for h in self.handles(session_id) if now.wall < h.claims.expires_at]
        if len(unexpired) + more > self.settings.max_handles:
            raise StateError(
                Problem.CAPACITY,
                f"session {session_id} has {len(unexpired)} handles, and the limit is"
                f" {self.settings.max_handles}",
                "Use a handle until it expires instead of minting one a request.",
            )

    def _take_where(
        self, chosen: Callable[[Session], bool], credential: str | None, caller: str, why: str
    ) -> tuple[str, ...]:
        with self.showing:
            now = self.clock.now()
            found = [s for s in self.registry.revocable() if chosen(s)]
            if credential is None:
                taken = self.registry.close(found, Status.REVOKED, now, one=False)
            else:
                found = [session for session in found if credential in session.credentials]
                taken = self.registry.take_credential(found, credential, now)
                why = f"{credential} {why}".rstrip()
        with self.writing:  # also if none was found: perhaps they were taken a moment ago
            self.registry.settle_and_tell(now, taken, caller, why)
        return tuple(session.id for session in found)

    def _take(self, session_id: str, status: Status, caller: str, why: str) -> Session:
        with self.showing:
            now = self.clock.now()
            session = self.session(session_id)
            before = self.registry.closed.get(session_id)
            new = before is None or (status is Status.REVOKED and before[0] is not Status.REVOKED)
            # Also one that is over: what sleeps, or was saved, must not come back with it.
            taken = self.registry.close([session], status, now) if new else []
        with self.writing:
            self.registry.settle_and_tell(now, taken, caller, why)
        return self.sessions.by_id.get(session_id, session)

    def _tidy(self, now: Now) -> None:
        """What nobody notices: old closed sessions, expired handles, keys, the clock's high-water mark."""
        with self.showing:
            self.registry.forget(now.wall - self.settings.retain_closed)
            expired = self.registry.useless(self.issued.expired(now))
            self.issued.drop(expired)
            jtis = [handle.claims.jti for handle in expired]
            self._journal.owe(partial(self.database.drop_handles, jtis))
        self._journal.settle(now)
        if now.wall - self.keys.created_at >= self.settings.key_rotation:
            self.keys.rotate(now.wall, self.settings.max_age)
        self.keys.prune(now.wall)
