"""How this daemon's changes get into the shared log. Used while `State` writes, with a deadline."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from coatcheck.fleet.connection import SharedStateDown
from coatcheck.fleet.seal import SealBroken
from coatcheck.fleet.shared_log import LogLost, SharedLog
from coatcheck.state.changes import Change, Closed, Opened, Renewed, conflict
from coatcheck.state.database import Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.replica import Entry, Replica
from coatcheck.state.replication_health import ReplicationHealth
from coatcheck.state.shared_database import Position

ATTEMPTS: Final = 50
"""Others may append between our look and our entry; each time one of them got on, so this ends."""
NO_RENEWALS: Final = "18446744073709551614-0"
"""After every renewal that there will ever be."""
PAUSE_SECONDS: Final = 1.0
"""After a failure nothing is tried for so long: whoever waits to write waits for one time-out, not for one a
caller."""


class RedisPublisher:
    """`state.shared_database.Publisher` on Redis."""

    def __init__(
        self, log: SharedLog, replica: Replica, hearing: ReplicationHealth, replicas: int, timeout: float
    ) -> None:
        self._log, self._replica, self._hearing = log, replica, hearing
        self._replicas, self._timeout = replicas, timeout
        self._not_before = float("-inf")

    def give(self, changes: Sequence[Change]) -> None:
        """In the log, behind everything that could speak against it."""
        deaf = self._hearing.stale(self._replica.clock.now())
        if deaf is not None:
            raise _not_shared(deaf.detail)
        try:
            self._append(changes, judged=True)
        except SharedStateDown as error:
            # It may be there all the same, with handles that nobody was given: it must not hold its origin.
            now = self._replica.clock.now()
            opened = [c.session for c in changes if isinstance(c, Opened)]
            self._replica.database.owe([Closed(each.id, Status.ENDED, now.wall) for each in opened])
            raise StateError(
                Problem.NOT_DURABLE,
                f"the fleet's shared state did not confirm it ({error}): nothing was changed here, a session"
                " that was opened is ended again, and a handle or a generation may count all the same",
                "See /readyz and docs/fleet.md; look at the session when it is back, then repeat it.",
            ) from None
        except (LogLost, SealBroken) as error:
            raise _not_shared(str(error)) from None

    def renew(self, renewals: Sequence[Renewed]) -> None:
        """Known to the others, and not flushed to their disks."""
        position = self._replica.position
        deaf = self._hearing.stale(self._replica.clock.now())
        if deaf is not None or position is None:
            raise _not_shared(deaf.detail if deaf is not None else "it was never read")
        try:
            if not self._try(lambda: self._log.renew(position.epoch, renewals)):
                raise _not_shared("it was begun anew a moment ago")
        except SharedStateDown as error:
            raise _not_shared(str(error)) from None

    def take(self, changes: Sequence[Change]) -> None:
        """In the log, whatever else is."""
        try:
            self._append(changes, judged=False)
        except (SharedStateDown, LogLost, SealBroken) as error:
            raise StateError(
                Problem.NOT_DURABLE,
                f"done here, but the other daemons were not told ({error})",
                "It is tried again each second. Repeat it at another daemon if this one may be cut off.",
            ) from None

    def confirm(self) -> None:
        """On as many replicas as was asked for."""
        try:
            if self._replicas and not self._try(
                lambda: self._log.replicated(self._timeout / 2, self._replicas)
            ):
                raise SharedStateDown(f"fewer than {self._replicas} replicas have it")
        except SharedStateDown as error:
            raise StateError(
                Problem.NOT_DURABLE,
                f"done everywhere, but a failover now could undo it ({error})",
                "See to the replicas of the shared state, then repeat it.",
            ) from None

    def _append(self, changes: Sequence[Change], *, judged: bool) -> None:
        position = self._replica.position
        if position is None:
            raise SharedStateDown("it was never read")
        for _ in range(ATTEMPTS):
            after: Position = position
            at = self._replica.clock.now().wall
            if self._try(partial(self._log.append, after, changes, at)) is not None:
                return
            heard = self._try(partial(self._log.listen, after, NO_RENEWALS))
            if heard.head is None or heard.head.position.epoch != position.epoch:
                raise LogLost("the shared state was begun anew a moment ago")
            entries, position = self._log.verified(position, heard.entries)
            if not entries:
                raise LogLost("the shared log is behind what was read of it")
            why = conflict(changes, self._unjudged(entries))
            if judged and why is not None:
                problem = Problem.ORIGIN_TAKEN if "origin" in why else Problem.NOT_DURABLE
                raise StateError(problem, why, "Check the current state, then repeat what is still needed.")
        raise SharedStateDown("too many daemons write at once")

    def _unjudged(self, entries: Sequence[Entry]) -> list[Change]:
        """What nobody here knew of when it was judged: all of the others', and of ours what was undone here
        and not yet there."""
        undone = {each.session for each in self._replica.database.owed() if isinstance(each, Closed)}
        return [
            change
            for entry in entries
            for change in entry.changes
            if entry.by != self._log.member or (isinstance(change, Opened) and change.session.id in undone)
        ]

    def _try[T](self, command: Callable[[], T]) -> T:
        if time.monotonic() < self._not_before:
            raise SharedStateDown("it did not answer a moment ago")
        try:
            return command()
        except SharedStateDown:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            raise


def _not_shared(why: str) -> StateError:
    return StateError(
        Problem.NOT_DURABLE,
        f"the fleet's shared state cannot take it, so nothing was changed ({why})",
        "See /readyz and docs/fleet.md; ask again when it is back.",
    )
