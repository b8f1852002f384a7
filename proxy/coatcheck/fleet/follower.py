"""The thread that keeps this daemon's copy of the fleet's state: listens, applies, notices what is wrong.

It hears of everything that was in the log at a moment, or that moment does not count: when none has counted
for `max_silence`, nothing leaves (`ReplicationHealth`) and what runs is cut.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coatcheck.fleet.connection import LEAVING_SECONDS, SharedStateDown
from coatcheck.fleet.seal import SealBroken
from coatcheck.fleet.shared_log import AT_ONCE, Head, Heard, LogLost, SharedLog
from coatcheck.platform.outage import Outage
from coatcheck.state.changes import KeysChanged
from coatcheck.state.errors import StateError
from coatcheck.state.replica import Replica
from coatcheck.state.replication_health import ReplicationHealth
from coatcheck.state.shared_database import START, Position
from coatcheck.telemetry.events import DaemonEvent, Event

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 0.2
"""Between two attempts on a server that fails: a fleet must not storm one that comes back."""
LONG_LOG: Final = 2_000
"""Entries, beyond one a session, after which a snapshot takes their place: a second's reading at a start."""
FIRST: Final = "0-0"
UNCONFIRMED_SECONDS: Final = 10.0
"""Between two attempts to have confirmed what all know already: each is an entry, and waits for replicas."""


class ClockApart(Exception):
    """Our clock and Redis's differ by more than leases may."""


FAILURES: Final = (SharedStateDown, SealBroken, LogLost, ClockApart, StateError, sqlite3.Error, OSError)
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
    def pause(self) -> float:
        """The longest wait for news before the log is asked whether we have all of it."""
        return min(0.5, self.max_silence / 10)


class Follower:
    """`start` it once, `stop` it last. Everything between happens in its thread."""

    def __init__(
        self,
        log: SharedLog,
        replica: Replica,
        hearing: ReplicationHealth,
        bounds: Bounds,
        emit: Callable[[Event], None],
    ) -> None:
        self._log, self._replica, self._hearing, self._bounds, self._emit = (
            log,
            replica,
            hearing,
            bounds,
            emit,
        )
        self.members = 1
        """Daemons that shared the state a moment ago, this one included."""
        self._renewals = FIRST
        self._leases_read = False
        self._length, self._length_limit = 0, LONG_LOG
        self._deaf = True
        self._told_at = float("-inf")
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
            logger.warning("whoever follows the shared state is stuck in a command, and is left behind")
        else:
            self._log.disconnect()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._listen():
                    self._watch()
                    self._keep_house()
                    position = self._replica.position
                    if position is not None and not self._stopping.is_set():
                        self._log.wait(position, self._renewals, self._bounds.pause)
            except FAILURES as error:
                self._failed(str(error))
            except Exception:
                logger.exception("the shared state could not be followed")
                self._failed("an error of ours, see the log")

    def _failed(self, why: str) -> None:
        self._hearing.why = why
        if self._outage.noticed(why):
            logger.warning("the shared state cannot be followed: %s", why)
        self._log.disconnect()
        self._read_leases_again()
        self._watch()
        self._stopping.wait(AGAIN_SECONDS)

    # --- listening -----------------------------------------------------------------------------------------

    def _listen(self) -> bool:
        """Apply what is new. True: everything is known that was there when we asked."""
        known = self._replica.position
        after = known or Position(0, 0, START)
        asked = self._replica.clock.now().monotonic
        heard = self._log.listen(after, self._renewals)
        self._compare_clocks(heard, asked)
        head = heard.head
        if head is not None:
            self._log.founded(head)
        lost = _lost(known, head)
        if lost is not None or head is None:
            self._found(head, known, lost or "")
            return False
        if known is None or head.position.epoch > known.epoch:
            self._begin_anew(head, known)
            return False
        try:
            if not self._catch_up(known, head, heard):
                return False
        except LogLost as error:
            self._found(head, known, str(error))
            return False
        if not self._leases_read:
            # The stream of renewals has an end; without them a session that lives would lapse here, and then
            # for all. Only now, as the sessions that they are of must be known.
            self._replica.renewed(self._log.leases(known.epoch))
            self._leases_read = True
        if heard.renewals:
            leases = [(session, sealed) for _, session, sealed in heard.renewals]
            self._replica.renewed(self._log.opened(known.epoch, leases))
            self._renewals = heard.renewals[-1][0]
        if len(heard.renewals) == AT_ONCE:
            return False
        self.members, self._length = heard.members, heard.length
        self._hearing.heard(asked)
        self._hearing.why = "it does not answer"
        return True

    def _catch_up(self, known: Position, head: Head, heard: Heard) -> bool:
        """Apply the entries that came; False when there may be more of them."""
        if head.position.number > known.number and (
            not heard.entries or heard.entries[0][0] != known.number + 1
        ):
            if head.base <= known.number:
                raise LogLost(f"entries after {known.number} are missing")
            changes, reached = self._log.snapshot(known.epoch)
            if reached.number <= known.number:
                raise LogLost(f"the snapshot ends at {reached.number}, and entry {known.number} was seen")
            self._replica.load(changes, reached)
            self._read_leases_again()
            return False
        entries, position = self._log.verified(known, heard.entries)
        if entries:
            self._replica.apply(entries, position)
        if position.number == head.position.number and position.digest != head.position.digest:
            raise LogLost("the last entry is another than the one we know")
        return position.number == head.position.number

    def _begin_anew(self, head: Head, known: Position | None) -> None:
        why = (
            "this daemon has joined the fleet"
            if known is None
            else "the shared state was lost and begun anew"
        )
        self._tell(
            "shared_state_joined" if known is None else "shared_state_lost",
            f"{why}: epoch {head.position.epoch}",
        )
        self._replica.start_over(why)
        self._replica.apply([], Position(head.position.epoch, 0, START))
        self._read_leases_again()

    def _read_leases_again(self) -> None:
        self._renewals, self._leases_read = FIRST, False

    def _found(self, head: Head | None, known: Position | None, why: str) -> None:
        """There is no shared state, or not the one we know: what it had may be revoked, so all of it ends."""
        epoch = 1 + max(known.epoch if known else 0, head.position.epoch if head else 0)
        now = self._replica.clock.now().wall
        keys = KeysChanged(self._replica.keys.replaced(now).exported())
        founded = self._log.found(head, epoch, [keys], now)
        self._stopping.wait(AGAIN_SECONDS)  # where nothing stays, a fleet must not begin anew all the time
        if founded:
            self._tell("shared_state_founded", f"epoch {epoch}" + (f": {why}" if why else ""))

    def _compare_clocks(self, heard: Heard, asked: float) -> None:
        now = self._replica.clock.now()
        apart = abs(now.wall - heard.time) - (now.monotonic - asked)
        if not apart <= self._bounds.max_skew:  # also when it is no number
            raise ClockApart(
                f"this host's clock and the shared state's are {apart:.1f} s apart, more than"
                f" {self._bounds.max_skew:g} s: leases would mean something else here. Set the clock"
            )

    # --- chores --------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        replica, bounds = self._replica, self._bounds
        if self._length > self._length_limit:
            changes, position = replica.snapshot()
            if position is not None:
                self._log.install(changes, position)
            self._length_limit = LONG_LOG + len(changes)
        try:
            with replica.writing:
                now = replica.clock.now()
                if not replica.database.unconfirmed or now.monotonic - self._told_at > UNCONFIRMED_SECONDS:
                    self._told_at = now.monotonic
                    replica.database.tell_owed(now)
                if now.wall - replica.keys.created_at >= bounds.key_rotation:
                    keys = replica.keys.rotated(now.wall, bounds.max_age)
                    replica.database.publisher.give([KeysChanged(keys.exported())])
        except StateError as error:
            if self._outage.noticed(error.message):
                logger.warning("%s %s", error.message, error.hint)

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


def _lost(known: Position | None, head: Head | None) -> str | None:
    """Why the shared state is not the one that was read before; None when it may be."""
    if known is None:
        return None
    if head is None:
        return "it is empty"
    if head.position.epoch < known.epoch:
        return f"it is of epoch {head.position.epoch}, and epoch {known.epoch} was seen"
    if head.position.epoch > known.epoch:
        return None
    if head.position.number < known.number:
        return f"it ends at entry {head.position.number}, and entry {known.number} was seen"
    if head.position.number == known.number and head.position.digest != known.digest:
        return f"entry {known.number} is another than the one that was seen"
    return None
