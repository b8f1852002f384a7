"""Requests that wait for approval, whichever daemon of the fleet holds them."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Final

from coatcheck.decision.approval import Asking, Question, Same, Whose
from coatcheck.request.approvals import Answer, Approvals, NotWaiting, Waiting
from coatcheck.state.changes import Change
from coatcheck.state.errors import StateError
from coatcheck.state.fleet_approvals import (
    ApprovalAnswered,
    ApprovalGone,
    ApprovalRemembered,
    ApprovalWaiting,
)
from coatcheck.state.replica import Replica
from coatcheck.state.state import State

logger = logging.getLogger(__name__)

TELL_SECONDS: Final = 0.5
"""Between two times that the others are told. What waits for less, they never hear of: a sandbox that asks
and goes away again and again cannot fill the database."""


class SharedApprovals:
    """Belongs to the plane's loop. `approvals.Elsewhere`."""

    def __init__(self, approvals: Approvals, state: State, replica: Replica) -> None:
        self._approvals, self._state, self._replica = approvals, state, replica
        self._told: dict[str, Waiting] = {}
        self._allowed: list[ApprovalRemembered] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def answered(change: ApprovalAnswered) -> None:
            loop.call_soon_threadsafe(self._answered, change)

        self._replica.approvals.on_answered = answered
        self._approvals.elsewhere = self
        self._task = asyncio.create_task(self._tell_for_ever(), name="shared approvals")

    async def stop(self) -> None:
        self._replica.approvals.on_answered = lambda change: None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- for Approvals -------------------------------------------------------------------------------------

    def waiting(self) -> tuple[Waiting, ...]:
        """At other daemons, the longest first."""
        wall, sessions = self._state.clock.now().wall, self._state.sessions.by_id
        here = self._approvals.held
        found: list[Waiting] = []
        for each in tuple(self._replica.approvals.waiting.values()):
            session = sessions.get(each.session)
            if session is None or wall >= each.until or each.id in here:
                continue
            found.append(
                Waiting(
                    each.id,
                    each.asked_at,
                    each.until,
                    each.request_id,
                    session,
                    each.rule,
                    each.credentials,
                    each.method,
                    each.destination,
                    each.path,
                    Asking(each.wait, each.remember, Same(each.same), Whose(each.whose)),
                    each.readings,
                )
            )
        return tuple(sorted(found, key=lambda each: each.asked_at))

    def allowed(self, asked: Question) -> str | None:
        """Who said yes to the same before, at any daemon, if that counts still."""
        found = self._replica.approvals.remembered.get(_digest(asked))
        return found.approver if found is not None and self._state.clock.now().wall < found.until else None

    def remember(self, asked: Question, seconds: float, approver: str) -> None:
        """Tell the others soon; it counts here in any case."""
        until = self._state.clock.now().wall + seconds
        self._allowed.append(ApprovalRemembered(_digest(asked), until, approver))

    async def answer(self, waiting: Waiting, answer: Answer) -> None:
        """To where it waits. StateError when it cannot get there."""
        said = ApprovalAnswered(waiting.id, answer.yes, answer.approver, answer.remember)
        await asyncio.to_thread(self._publish, [said])

    # --- inside -------------------------------------------------------------------------------------

    def _answered(self, change: ApprovalAnswered) -> None:
        if change.id not in self._approvals.held:
            return  # another daemon's, or it went away meanwhile
        try:
            self._approvals.answer(change.id, Answer(change.yes, change.approver, change.remember))
        except NotWaiting:
            logger.info("%s was answered by %s when it no longer waited", change.id, change.approver)
        except Exception:
            logger.exception("%s could not be answered", change.id)  # silence is no (I3)

    async def _tell_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            now = self._approvals.held
            new = [each for name, each in now.items() if name not in self._told]
            over = [name for name in self._told if name not in now]
            allowed = tuple(self._allowed)
            changes: list[Change] = [
                *map(_asked, new), *map(ApprovalGone, over), *allowed
            ]  # fmt: skip
            if not changes:
                continue
            try:
                await asyncio.to_thread(self._publish, changes)
            except StateError as error:
                logger.warning("what waits for an answer could not be told: %s", error.message)
                continue
            self._told = dict(now)
            del self._allowed[: len(allowed)]

    def _publish(self, changes: Sequence[Change]) -> None:
        with self._replica.writing:
            self._replica.database.publisher.give(changes)


def _asked(waiting: Waiting) -> ApprovalWaiting:
    asking = waiting.asking
    return ApprovalWaiting(
        waiting.id,
        waiting.session.id,
        waiting.asked_at,
        waiting.until,
        waiting.request_id,
        waiting.rule,
        waiting.credentials,
        waiting.method,
        waiting.destination,
        waiting.path,
        asking.wait,
        asking.remember,
        asking.same.value,
        asking.whose.value,
        waiting.readings,
    )


def _digest(asked: Question) -> str:
    return hashlib.sha256(repr(asked).encode("utf-8", "surrogateescape")).hexdigest()
