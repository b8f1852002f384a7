"""What a page shows of a fleet's other daemons: handles in wrong places, and limits near their ceiling.

Each daemon writes its own into one sealed row, which it replaces. Only what a person sees depends on them.
The rows of the other daemons are read only while somebody has a page open.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Final

from coatcheck.decision.denial import Reason
from coatcheck.decision.policy import Limit, LimitKind, LimitScope
from coatcheck.decision.session import Now
from coatcheck.fleet.connection import LEAVING_SECONDS, SharedStateDown
from coatcheck.fleet.store import Store
from coatcheck.platform.outage import Outage
from coatcheck.state.levels import Level
from coatcheck.telemetry.recent import AlarmGroup

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""As often as a page looks."""
LOOKED_AT_SECONDS: Final = 10.0
"""How long the others are read after a page last asked."""
REFRESH_SECONDS: Final = 20.0
"""A board that has not changed is written again after this long: others believe one for BELIEVED_SECONDS."""
BELIEVED_SECONDS: Final = 60.0
MOST: Final = 50
"""Of each kind, from each daemon: with texts of 500 characters some 60 kB at the very worst."""


@dataclass(frozen=True, slots=True)
class Board:
    alarms: tuple[AlarmGroup, ...] = ()
    levels: tuple[Level, ...] = ()


class SharedBoards:
    """A thread of its own. `alarms` and `levels` are called in any."""

    def __init__(self, store: Store, now: Callable[[], Now], own: Callable[[], Board]) -> None:
        self._store, self._now, self._own = store, now, own
        self._others: tuple[Board, ...] = ()
        self._looked_at = float("-inf")
        self._told: Board | None = None
        self._told_at = float("-inf")
        self._outage = Outage()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="shared-boards", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Within LEAVING_SECONDS. Also one that was never started."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(LEAVING_SECONDS)

    def alarms(self) -> Sequence[AlarmGroup]:
        """Of the other daemons."""
        return [each for board in self._seen() for each in board.alarms]

    def levels(self) -> Sequence[Level]:
        """Of the other daemons."""
        return [each for board in self._seen() for each in board.levels]

    def _seen(self) -> tuple[Board, ...]:
        self._looked_at = self._now().monotonic
        return self._others

    # --- in the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self._exchange()
                self._outage.over()
            except SharedStateDown as error:
                self._failed(str(error))
            except Exception:
                logger.exception("the pages of a fleet could not be shared")
        self._store.disconnect()

    def _failed(self, why: str) -> None:
        self._others, self._told = (), None
        if self._outage.noticed(why):
            logger.warning("other daemons' alarms and limits are not on the page: %s", why)

    def _exchange(self) -> None:
        now, own = self._now(), self._own()
        told = b""
        if own != self._told or now.monotonic - self._told_at > REFRESH_SECONDS:
            told = write(own, now.wall)
        wanted = now.monotonic - self._looked_at < LOOKED_AT_SECONDS
        if not told and not wanted:
            return
        found = self._store.boards(told, wanted=wanted)
        if told:
            self._told, self._told_at = own, now.monotonic
        self._others = tuple(read(content, now.wall) for content in found)


def write(board: Board, at: float) -> bytes:
    alarms = [
        [a.tenant, a.session, a.reason.value, a.credential, a.first, a.last, a.count, a.detail, a.where]
        for a in board.alarms[:MOST]
    ]
    levels = [
        [each.policy, each.rule, _of_limit(each.limit), list(each.who), each.used]
        for each in board.levels[:MOST]
    ]
    return json.dumps({"at": at, "alarms": alarms, "levels": levels}).encode()


def _of_limit(limit: Limit) -> list[Any]:
    return [limit.kind.value, limit.count, limit.period, limit.burst, limit.per.value]


def read(content: bytes, now: float) -> Board:
    """Empty when it is old, or from a release that writes something else."""
    try:
        written: Mapping[str, Any] = json.loads(content)
        if abs(now - written["at"]) > BELIEVED_SECONDS:
            return Board()
        alarms = [
            AlarmGroup(tenant, session, Reason(reason), *rest)
            for tenant, session, reason, *rest in written["alarms"][:MOST]
        ]
        levels = [
            Level(policy, rule, _limit(*limit), tuple(who), used)
            for policy, rule, limit, who, used in written["levels"][:MOST]
        ]
    except (ValueError, KeyError, TypeError):
        return Board()
    return Board(tuple(alarms), tuple(levels))


def _limit(kind: str, count: int, period: float, burst: int, per: str) -> Limit:
    return Limit(LimitKind(kind), count, period, burst, LimitScope(per))
