"""The thread that keeps this daemon's copy of the fleet's state: listens, applies, notices what is wrong.

A look at the database counts only if it showed everything that was committed by then. When none has counted
for `max_silence`, no request leaves (`ReplicationHealth`) and running ones are cut.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coatcheck.decision.session import Now
from coatcheck.fleet.connection import LEAVING_SECONDS, SharedStateDown
from coatcheck.fleet.rows import Head, Place, Row, entries_of, total
from coatcheck.fleet.seal import SealBroken
from coatcheck.fleet.store import FIRST, WHOLE_SECONDS, Heard, StateLost, Store
from coatcheck.platform.outage import Outage
from coatcheck.state.changes import TAKING, KeysChanged
from coatcheck.state.errors import StateError
from coatcheck.state.replica import Commit, Replica
from coatcheck.state.replication_health import ReplicationHealth
from coatcheck.state.shared_database import Position
from coatcheck.telemetry.events import DaemonEvent, Event

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 0.2
"""Between two attempts on a server that fails: a fleet must not storm one that comes back."""
HOUSE_SECONDS: Final = 60.0
"""Between two looks at what nobody needs."""
DROPPED_AT_ONCE: Final = 1_000
"""Rows that nobody needs: fewer are dropped each DROP_SECONDS only, as every daemon then reads all rows."""
DROP_SECONDS: Final = 3_600.0


class ClockApart(Exception):
    """Our clock and the database's differ by more than leases may."""


FAILURES: Final = (SharedStateDown, SealBroken, StateLost, ClockApart, StateError, sqlite3.Error, OSError)
"""What the world may do to us; each is tried again."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds."""

    max_silence: float
    max_skew: float
    key_rotation: float
    max_age: float
    """Of sessions: for so long what a retired key signed counts."""

    @property
    def timeout(self) -> float:
        """For one answer."""
        return min(1.0, self.max_silence / 2)

    @property
    def write_timeout(self) -> float:
        """For one answer to a change, which waits for other daemons' changes, too."""
        return min(2.0, self.max_silence / 2)

    @property
    def pause(self) -> float:
        """The longest wait for news before the database is asked whether we have all of it."""
        return min(0.5, self.max_silence / 10)


class Follower:
    """`start` it once, `stop` it last. Everything between happens in its thread."""

    def __init__(
        self,
        store: Store,
        replica: Replica,
        hearing: ReplicationHealth,
        bounds: Bounds,
        emit: Callable[[Event], None],
    ) -> None:
        self.store, self._replica, self._hearing, self._bounds, self._emit = (
            store,
            replica,
            hearing,
            bounds,
            emit,
        )
        store.on_taken = replica.hear_early
        self.members = 1
        """Daemons that shared the state a moment ago, this one included."""
        self._leases_after = FIRST
        self._leases: dict[str, str] = {}
        self._deaf = True
        self._house_at = self._dropped_at = time.monotonic()
        self._outage = Outage()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shared-state", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended, after LEAVING_SECONDS at most: it finds a closed state then, and
        ends as well."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(LEAVING_SECONDS)
        if self._thread.is_alive():
            logger.warning(
                "the thread that follows the shared state is stuck in a statement, and is left behind"
            )
        else:
            self.store.disconnect()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._listen():
                    self._watch()
                    self._keep_house()
                    if not self._stopping.is_set():
                        self.store.wait(self._bounds.pause)
            except FAILURES as error:
                self._failed(str(error))
            except Exception:
                logger.exception("the shared state could not be followed")
                self._failed("an error of ours, see the log")

    def _failed(self, why: str) -> None:
        self._hearing.why = why
        if self._outage.noticed(why):
            logger.warning("the shared state cannot be followed: %s", why)
        self.store.disconnect()
        self._read_leases_again()
        self._watch()
        self._stopping.wait(AGAIN_SECONDS)

    # --- listening -----------------------------------------------------------------------------------------

    def _listen(self) -> bool:
        """Apply what is new. True: everything is known that was committed when we asked."""
        known, store = self._replica.position, self.store
        store.incarnation = known.incarnation if known is not None else 0
        asked = self._replica.clock.now().monotonic
        heard = store.listen(
            known.rev if known is not None else -1,
            self._leases_after,
            seconds=WHOLE_SECONDS if known is None else None,
        )
        compare_clocks(self._replica.clock.now(), heard, asked, self._bounds.max_skew)
        head = heard.head
        lost = _lost(known, head)
        if lost is not None or head is None:
            self._found(head, known, lost or "")
            return False
        try:
            if known is None or head.incarnation > known.incarnation:
                self._begin_anew(head, known)
                return False
            if head.base > known.rev:
                self._read_all(known)
                return False
            if not self._catch_up(known, head, heard.rows):
                return False
        except StateLost as error:
            self._found(head, known, str(error))
            return False
        # Renewals after the rows: the sessions that they are of must be known.
        new = [each for each in heard.leases if self._leases.get(each[0]) != each[1]]
        if new:
            self._replica.renewed(store.opened_leases(known.incarnation, new))
        self._leases = {session: at for session, at, _ in heard.leases}
        self._leases_after = heard.snapshot
        self.members = heard.members
        self._hearing.heard(asked)
        self._hearing.why = "it does not answer"
        return True

    def _catch_up(self, known: Position, head: Head, rows: Sequence[Row]) -> bool:
        """Apply the rows that changed since; False when something was missed. SealBroken: a row was written
        without our key. StateLost: all rows together are not what the fleet's row says."""
        if head.rev == known.rev:
            if head.digest != known.digest:
                raise StateLost(f"revision {head.rev} is another than the one that was read")
            return True
        marks, before = self.store.rows, self._replica.marks
        new = {row.place: marks.mark(head.incarnation, row) for row in rows}
        old = [before[str(place)] for place in new if str(place) in before]
        entries = self._entries(head, rows)
        if total(known.digest, plus=new.values(), minus=old) != head.digest:
            raise StateLost(f"what follows revision {known.rev} does not lead to revision {head.rev}")
        for entry in entries:  # before anybody's disk is waited for
            self._replica.hear_early(
                replace(entry, changes=tuple(c for c in entry.changes if isinstance(c, TAKING)))
            )
        position = Position(head.incarnation, head.rev, head.digest)
        self._replica.apply(entries, position, {str(place): mark for place, mark in new.items()})
        return True

    def _entries(self, head: Head, rows: Sequence[Row]) -> list[Commit]:
        return entries_of((row, self.store.rows.entry(head.incarnation, row)) for row in rows)

    def _read_all(self, known: Position | None) -> None:
        """All rows as one moment has them, in place of our copy. StateLost: they are not whole, or one that
        is no newer than our copy is another than in our copy."""
        seconds = WHOLE_SECONDS if self._deaf else self._bounds.max_silence
        head, rows = self.store.all_rows(seconds)
        if head is None or (known is not None and head.incarnation != known.incarnation):
            return  # it was begun anew a moment ago, which the next look tells
        marks = {row.place: self.store.rows.mark(head.incarnation, row) for row in rows}
        before = self._replica.marks if known is not None else {}
        news = [row for row in rows if before.get(str(row.place)) != marks[row.place]]
        entries = self._entries(head, news)
        if total(0, plus=marks.values()) != head.digest:
            raise StateLost(f"the rows are not those of revision {head.rev}: some were changed or taken away")
        for row in news:
            if known is not None and row.rev <= known.rev:
                raise StateLost(f"the row {row.place} is another than the one that was read")
        position = Position(head.incarnation, head.rev, head.digest)
        held = {row.place.id for row in rows if row.place.table == "sessions"}
        self._replica.load(entries, held, position, {str(place): mark for place, mark in marks.items()})
        self._read_leases_again()

    def _read_leases_again(self) -> None:
        self._leases_after, self._leases = FIRST, {}

    def _begin_anew(self, head: Head, known: Position | None) -> None:
        what, why = "shared_state_joined", "this daemon has joined the fleet"
        if known is not None:
            what, why = "shared_state_lost", "the shared state was lost and begun anew"
        self._tell(what, f"{why}: incarnation {head.incarnation}")
        self._replica.start_over(why)
        self._read_all(None)

    def _found(self, head: Head | None, known: Position | None, why: str) -> None:
        """There is no shared state, or not the one we know: what it had may be revoked, so all of it ends."""
        seen = max(known.incarnation if known else 0, head.incarnation if head else 0)
        incarnation = max(seen + 1, time.time_ns() // 1000)
        now = self._replica.clock.now().wall
        keys = KeysChanged(self._replica.keys.replaced(now).exported())
        founded = self.store.found(head, incarnation, keys, now)
        if founded:
            self._tell("shared_state_founded", f"incarnation {incarnation}" + (f": {why}" if why else ""))
            if why:
                logger.error("every session of the fleet ends: %s", why)
        self._stopping.wait(AGAIN_SECONDS)  # where nothing stays, a fleet must not begin anew all the time

    # --- chores --------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        replica, now = self._replica, self._replica.clock.now()
        rotates = now.wall - replica.keys.created_at >= self._bounds.key_rotation
        try:
            if replica.database.debt or rotates:
                with replica.writing:
                    self._tell_and_rotate(now)
        except StateError as error:
            if self._outage.noticed(error.message):
                logger.warning("%s %s", error.message, error.hint)
        if time.monotonic() - self._house_at > HOUSE_SECONDS:
            self._house_at = time.monotonic()
            self.store.tidy()
            self._drop_useless()

    def _tell_and_rotate(self, now: Now) -> None:
        replica, bounds = self._replica, self._bounds
        replica.database.tell_owed(now)
        if now.wall - replica.keys.created_at >= bounds.key_rotation:
            keys = replica.keys.rotated(now.wall, bounds.max_age)
            replica.database.publisher.give([KeysChanged(keys.exported())])

    def _drop_useless(self) -> None:
        """Drop the rows of what this daemon, which knows all, has forgotten."""
        rows = self.store.rows
        marks, position, kept = self._replica.kept(rows.place)
        useless = {Place(*place.split("/", 1)): mark for place, mark in marks.items() if place not in kept}
        old = time.monotonic() - self._dropped_at > DROP_SECONDS
        if position is None or not useless or not (old or len(useless) >= DROPPED_AT_ONCE):
            return
        head = self.store.drop(position.incarnation, useless, position.rev)
        if head is None:
            return  # somebody was faster: another time
        self._dropped_at = time.monotonic()
        self._replica.dropped(map(str, useless), Position(head.incarnation, head.rev, head.digest))

    def _watch(self) -> None:
        deaf = self._hearing.stale(self._replica.clock.now()) is not None
        if deaf and not self._deaf:
            self._replica.cut_all()
            self._tell("shared_state_silent", self._hearing.why)
            logger.error("everything is refused until the shared state is heard again")
        elif self._deaf and not deaf:
            self._outage.over()
            self._tell("shared_state_heard", "")
        self._deaf = deaf

    def _tell(self, what: str, detail: str) -> None:
        try:
            self._emit(DaemonEvent(self._replica.clock.now().wall, what, detail))
        except Exception:
            logger.exception("%s could not be recorded", what)


def compare_clocks(now: Now, heard: Heard, asked: float, max_skew: float) -> None:
    """ClockApart when the database's clock is further from ours than `max_skew` and the time since it was
    asked, at `asked` on the monotonic clock, can explain."""
    apart = abs(now.wall - heard.time) - (now.monotonic - asked)
    if not apart <= max_skew:  # also when it is no number
        raise ClockApart(
            f"this host's clock and the database's are {apart:.1f} s apart, more than"
            f" {max_skew:g} s: leases would mean something else here. Set the clock"
        )


def _lost(known: Position | None, head: Head | None) -> str | None:
    """Why the shared state is not the one that was read before; None when it may be."""
    if known is None:
        return None
    if head is None:
        return "it is empty"
    if head.incarnation < known.incarnation:
        return f"it is of incarnation {head.incarnation}, and incarnation {known.incarnation} was seen"
    if head.incarnation == known.incarnation and head.rev < known.rev:
        return f"it ends at revision {head.rev}, and revision {known.rev} was seen"
    return None
