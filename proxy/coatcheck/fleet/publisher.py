"""Writes this daemon's changes to the fleet's tables. Called while `State` writes, with a deadline."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from coatcheck.fleet.connection import SharedStateDown
from coatcheck.fleet.rows import KEYS, Head, Place, Row, closed_in, merged, opened_in
from coatcheck.fleet.seal import SealBroken
from coatcheck.fleet.store import StateLost, Store, Touched
from coatcheck.state.changes import TAKING, Change, Closed, KeysChanged, Minted, Opened, Rebound, Renewed
from coatcheck.state.database import Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.replica import Commit, Replica
from coatcheck.state.replication_health import ReplicationHealth

PAUSE_SECONDS: Final = 1.0
"""After a failure nothing is tried for this long: callers that wait to write wait for one time-out, not
for one each."""


class PostgresPublisher:
    """`state.shared_database.Publisher` on PostgreSQL."""

    def __init__(self, store: Store, replica: Replica, hearing: ReplicationHealth) -> None:
        self._store, self._replica, self._hearing = store, replica, hearing
        self._not_before = float("-inf")

    def give(self, changes: Sequence[Change]) -> None:
        """Committed, and judged by everything that was committed before."""
        self._check_hearing()
        try:
            self._try(lambda: self._change(changes, judged=True))
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
        except (StateLost, SealBroken) as error:
            raise _not_shared(str(error)) from None

    def renew(self, renewals: Sequence[Renewed]) -> None:
        """Known to the others, and not waited for until it is on disk."""
        self._check_hearing()
        try:
            self._try(lambda: self._store.renew(self._incarnation(), renewals))
        except SharedStateDown as error:
            raise _not_shared(str(error)) from None

    def take(self, changes: Sequence[Change]) -> None:
        """Committed, whatever else is."""
        try:
            self._try(lambda: self._change(changes, judged=False))
        except (SharedStateDown, StateLost, SealBroken) as error:
            raise StateError(
                Problem.NOT_DURABLE,
                f"done here, but the other daemons were not told ({error})",
                "It is tried again each second. Repeat it at another daemon if this one may be cut off.",
            ) from None

    # --- inside --------------------------------------------------------------------------------------------

    def _check_hearing(self) -> None:
        deaf = self._hearing.stale(self._replica.clock.now())
        if deaf is not None:
            raise _not_shared(deaf.detail)

    def _incarnation(self) -> int:
        position = self._replica.position
        if position is None:
            raise SharedStateDown("it was never read")
        return position.incarnation

    def _change(self, changes: Sequence[Change], *, judged: bool) -> None:
        rows, incarnation = self._store.rows, self._incarnation()
        places = {place for change in changes if (place := rows.place(change)) is not None}
        origins = set()
        for change in changes:
            match change:
                case Opened(session):
                    places |= {Place("sessions", each) for each in session.ancestors}
                    origins.add(rows.origin(session.origin))
                case Minted(handle):
                    places.add(Place("sessions", handle.claims.sid))

        def decide(
            head: Head, before: Mapping[Place, tuple[Row, Commit]]
        ) -> Mapping[Place, Sequence[Change]]:
            self._check_copy(head, before)
            says = {place: entry.changes for place, (_, entry) in before.items()}
            if judged:
                why = self._conflict(changes, says)
                if why is not None:
                    problem = Problem.ORIGIN_TAKEN if "origin" in why else Problem.NOT_DURABLE
                    raise StateError(
                        problem, why, "Check the current state, then repeat what is still needed."
                    )
            wanted: dict[Place, Sequence[Change]] = {}
            for change in changes:
                place = rows.place(change)
                if place is not None:
                    wanted[place] = merged(wanted.get(place, says.get(place, ())), change)
            return wanted

        at = self._replica.clock.now().wall
        taken = [each for each in changes if isinstance(each, TAKING)]
        self._store.change(incarnation, Touched(places, origins), decide, at, taken)

    def _check_copy(self, head: Head, before: Mapping[Place, tuple[Row, Commit]]) -> None:
        """A row that is no newer than our copy must be the one in our copy, and nothing may be behind it."""
        position, marks = self._replica.position, self._replica.marks
        if position is None or head.incarnation != position.incarnation or head.rev < position.rev:
            raise StateLost("the shared state is behind what was read of it")
        for place, (row, _) in before.items():
            known = marks.get(str(place))
            if row.rev <= position.rev and known != self._store.rows.mark(head.incarnation, row):
                raise StateLost(f"the row {place} is another than the one that was read")

    def _conflict(self, changes: Sequence[Change], says: Mapping[Place, Sequence[Change]]) -> str | None:
        """Why the changes, which were judged by our copy, may not be made to the rows as they are; None: they
        may."""
        rows = self._store.rows
        live = {
            rows.origin(opened.session.origin): opened.session.id
            for each in says.values()
            if (opened := opened_in(each)) is not None and closed_in(each) is None
        }
        new = {change.session.id for change in changes if isinstance(change, Opened)}
        for change in changes:
            match change:
                case Opened(session):
                    if rows.origin(session.origin) in live:
                        return f"its origin proves session {live[rows.origin(session.origin)]} already"
                    for ancestor in sorted(session.ancestors):
                        if self._lost_something(ancestor, says.get(Place("sessions", ancestor), ())):
                            return (
                                f"something was taken from session {ancestor}, which it comes from,"
                                " at the same moment"
                            )
                case Minted(handle) if handle.claims.sid not in new:
                    if self._changed(handle.claims.sid, says, changes):
                        return f"session {handle.claims.sid} was changed by another daemon at the same moment"
                case Rebound(session_id) if self._changed(session_id, says, changes):
                    return f"session {session_id} was changed by another daemon at the same moment"
                case KeysChanged():
                    active = self._replica.keys.exported()["active"]["private"]
                    found = says.get(Place("keys", KEYS), ())
                    if any(
                        isinstance(each, KeysChanged) and each.keys["active"]["private"] != active
                        for each in found
                    ):
                        return "another daemon changed the keys at the same moment"
                case _:
                    pass
        return None

    def _lost_something(self, session_id: str, says: Sequence[Change]) -> bool:
        """Whether its row takes more from a session than we know of."""
        known, closed = self._replica.known(session_id)
        there = closed_in(says)
        if there is not None and there.status is Status.REVOKED and closed is not Status.REVOKED:
            return True
        opened = opened_in(says)
        return (
            known is not None and opened is not None and bool(known.credentials - opened.session.credentials)
        )

    def _changed(
        self, session_id: str, says: Mapping[Place, Sequence[Change]], mine: Sequence[Change]
    ) -> bool:
        """Whether a session is over, has lost something, or began anew without our knowing."""
        row = says.get(Place("sessions", session_id), ())
        opened, (known, _) = opened_in(row), self._replica.known(session_id)
        if opened is None or known is None or closed_in(row) is not None:
            return True
        return opened.session.generation != known.generation or bool(
            known.credentials - opened.session.credentials
        )

    def _try(self, command: Callable[[], object]) -> None:
        if time.monotonic() < self._not_before:
            raise SharedStateDown("it did not answer a moment ago")
        try:
            command()
        except SharedStateDown:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            raise


def _not_shared(why: str) -> StateError:
    return StateError(
        Problem.NOT_DURABLE,
        f"the fleet's shared state cannot take it, so nothing was changed ({why})",
        "See /readyz and docs/fleet.md; ask again when it is back.",
    )
