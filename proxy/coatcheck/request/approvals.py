"""Requests that wait for approval: bounded in number and time, each answered once.

Belongs to the plane's event loop. Answers come through the control API, over its bridge.
"""

import asyncio
import math
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from coatcheck.decision.approval import Asking, Question, question, shown_target
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.search import mask
from coatcheck.decision.session import Now, Session
from coatcheck.decision.steering import describe, read_steering
from coatcheck.decision.verdict import Inject, Pass
from coatcheck.state.state import State
from coatcheck.telemetry.events import ApprovalChange, ApprovalEvent, Event

MAX_WAITING: Final = 400
"""Requests that may wait at once: more than a person looks at, and each holds a connection. One tenant may
have as many as are still free, which is half of them where it is alone: however many sessions it has, there
is room for others (dynamic thresholds: Choudhury, Hahne 1998)."""
MAX_SESSION_WAITING: Final = 8
"""Of one session: a loop that asks again and again must not bury what others ask."""
MAX_REMEMBERED: Final = 10_000
"""Answers that count for later requests. The oldest goes first, and is then asked for again."""
MAX_ANSWERED: Final = 256
"""How many answers are kept, to tell a person who answers second."""
PATH_CHARACTERS: Final = 2048
"""Of a path that is shown. What is left out is said: nobody may take its beginning for all of it."""

_WENT_AWAY: Final = "its client or its session went away"


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request that waits, as the person who is asked sees it. Nothing in it is a secret or a handle."""

    id: str
    asked_at: float
    """Unix seconds."""
    until: float
    """When silence becomes no; Unix seconds."""
    request_id: str
    session: Session
    rule: str
    credentials: tuple[str, ...]
    method: str
    destination: str
    path: str
    asking: Asking
    readings: tuple[str, ...] = ()
    """What else the request may be taken for, and the other rules whose terms hold."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody said."""

    yes: bool
    approver: str
    remember: float = 0.0
    """Seconds for which it counts for the same request again."""


class PeerApprovals(Protocol):
    """The other daemons of a fleet."""

    def waiting(self) -> tuple[Waiting, ...]: ...

    def allowed(self, asked: Question) -> str | None: ...

    def remember(self, asked: Question, seconds: float, approver: str) -> None: ...

    async def answer(self, waiting: Waiting, answer: Answer) -> None: ...


class NullPeers:
    """`PeerApprovals` of a daemon that is alone: nothing waits there."""

    def waiting(self) -> tuple[Waiting, ...]:
        return ()

    def allowed(self, asked: Question) -> None:
        return None

    def remember(self, asked: Question, seconds: float, approver: str) -> None:
        return None

    async def answer(self, waiting: Waiting, answer: Answer) -> None:
        raise NotWaiting("nothing waits at another daemon")


class NotWaiting(Exception):
    """No request waits under this id: it never did, or it was answered, expired or withdrawn."""


class Approvals:
    """`emit` may raise (an audit log that cannot be written): then nothing is asked, and nothing leaves."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        now: Callable[[], Now],
        max_waiting: int = MAX_WAITING,
        max_session_waiting: int = MAX_SESSION_WAITING,
    ) -> None:
        self._emit = emit
        self._now = now
        self._max_waiting = max_waiting
        self._max_session_waiting = max_session_waiting
        self._waiting: dict[str, tuple[Waiting, asyncio.Future[Answer | Deny]]] = {}
        self._remembered: OrderedDict[Question, tuple[float, str]] = OrderedDict()
        """Question -> until when (monotonic), and who said yes."""
        self._over: OrderedDict[str, str] = OrderedDict()
        self.elsewhere: PeerApprovals = NullPeers()

    def waiting(self) -> tuple[Waiting, ...]:
        """What waits now, the longest first; then what waits at other daemons."""
        return (*self.held.values(), *self.elsewhere.waiting())

    @property
    def held(self) -> dict[str, Waiting]:
        """What waits at this daemon, by id."""
        return {name: waiting for name, (waiting, _) in self._waiting.items()}

    async def ask(
        self,
        request_id: str,
        destination: Destination,
        head: RequestHead,
        verdict: Pass | Inject,
        state: State,
    ) -> str | Deny:
        """Wait until somebody has answered, or as long as the rule says: who said yes, or why not."""
        session, rule, asking = verdict.session, verdict.rule, verdict.rule.asking
        credentials = verdict.credentials
        policy = state.policies.get(session.policy)
        if asking is None or policy is None:
            raise ValueError("the rule no longer asks, or no longer exists")
        readings = describe(read_steering(destination, head), head.path)
        asked = question(
            session,
            policy.sha256,
            rule.names,
            asking,
            credentials,
            head.method,
            destination.url,
            head.target,
            readings,
        )
        if not isinstance(asked, Question):
            raise TypeError("no question was made")  # nobody is to say yes to something else (I3)
        known = self._remembered.get(asked)
        if known is not None and self._now().monotonic < known[0]:
            return known[1]
        if (approver := self.elsewhere.allowed(asked)) is not None:
            return approver
        crowded = self._crowded(session)
        if crowded is not None:
            return crowded
        wall = self._now().wall
        waiting = Waiting(
            id=f"apr_{secrets.token_hex(8)}",
            asked_at=wall,
            until=wall + asking.wait,
            request_id=request_id,
            session=session,
            rule=rule.name,
            credentials=credentials,
            method=head.method,
            destination=destination.url,
            path=_cut(shown_target(mask(head.target, state.genuine.references))),
            asking=asking,
            readings=(
                *(_cut(mask(reading, state.genuine.references)) for reading in readings),
                *(f"rule {other.name}" for other in rule.further),
            ),
        )
        answer = await self._wait(waiting)
        if isinstance(answer, Deny):
            return answer
        if not answer.yes:
            return Deny(Reason.APPROVAL_REFUSED, f"{answer.approver} said no", rule=rule.name)
        if answer.remember:
            self._remember(asked, answer)
        return answer.approver

    async def answer_anywhere(self, approval: str, answer: Answer) -> Waiting:
        """`answer`, or told to the daemon that holds it; there the first word counts. Also StateError."""
        found = next((each for each in self.elsewhere.waiting() if each.id == approval), None)
        if found is None:
            return self.answer(approval, answer)
        answer = replace(answer, remember=min(answer.remember, found.asking.remember if answer.yes else 0.0))
        change = ApprovalChange.APPROVED if answer.yes else ApprovalChange.REFUSED
        self._emit(self._event(found, change, answer))
        await self.elsewhere.answer(found, answer)
        return found

    def answer(self, approval: str, answer: Answer) -> Waiting:
        """Somebody's word on a request that waits; what it was about. It is recorded before it counts.

        No yes is remembered for longer than the rule allows. NotWaiting; whatever `emit` raises.
        """
        found = self._waiting.get(approval)
        # By the wall clock, too: a machine that slept over it must not wake to a late yes.
        if found is None or found[1].done() or self._now().wall >= found[0].until:
            raise NotWaiting(
                self._over.get(approval, "no request with this id is waiting, or it ended long ago")
            )
        waiting, future = found
        longest = waiting.asking.remember if answer.yes else 0.0
        answer = replace(answer, remember=min(answer.remember, longest))
        change = ApprovalChange.APPROVED if answer.yes else ApprovalChange.REFUSED
        self._emit(self._event(waiting, change, answer))
        self._note(approval, f"{answer.approver} said {'yes' if answer.yes else 'no'}")
        future.set_result(answer)
        return waiting

    def forget_session(self, session_id: str) -> None:
        """It is over: what it asked is no longer to be answered."""
        over = Deny(Reason.SESSION_REVOKED, "while the approval was pending")
        self._withdraw(lambda waiting: waiting.session.id == session_id, over)

    def forget_request(self, request_id: str) -> None:
        """Its client went away: nobody is to decide on what nobody waits for."""
        gone = Deny(Reason.CLIENT_GONE, "while the approval was pending")
        self._withdraw(lambda waiting: waiting.request_id == request_id, gone)

    def _withdraw(self, meant: Callable[[Waiting], bool], denial: Deny) -> None:
        for waiting, future in self._waiting.values():
            if meant(waiting) and not future.done():
                future.set_result(denial)

    # --- one that waits ----------------------------------------------------------------------------------

    async def _wait(self, waiting: Waiting) -> Answer | Deny:
        future: asyncio.Future[Answer | Deny] = asyncio.get_running_loop().create_future()
        self._emit(self._event(waiting, ApprovalChange.ASKED))
        self._waiting[waiting.id] = (waiting, future)
        try:
            async with asyncio.timeout(waiting.asking.wait):
                answer = await future
            if isinstance(answer, Deny):
                self._end(waiting, ApprovalChange.WITHDRAWN, _WENT_AWAY)
            return answer
        except TimeoutError:
            self._end(waiting, ApprovalChange.EXPIRED, f"no answer came within {waiting.asking.wait:g} s")
            return Deny(Reason.APPROVAL_TIMEOUT, rule=waiting.rule)
        except asyncio.CancelledError:
            self._end(waiting, ApprovalChange.WITHDRAWN, _WENT_AWAY)
            raise
        finally:
            self._waiting.pop(waiting.id, None)

    def _end(self, waiting: Waiting, change: ApprovalChange, why: str) -> None:
        self._note(waiting.id, why)
        self._emit(self._event(waiting, change))

    def _crowded(self, session: Session) -> Deny | None:
        of_session = sum(waiting.session.id == session.id for waiting, _ in self._waiting.values())
        if of_session >= self._max_session_waiting:
            what = f"{of_session} requests of the session wait for an answer"
            return Deny(Reason.CONCURRENCY_LIMITED, what, retry_after=10.0)
        of_tenant = sum(waiting.session.tenant == session.tenant for waiting, _ in self._waiting.values())
        if of_tenant >= self._max_waiting - len(self._waiting):
            return Deny(Reason.CAPACITY, "too many requests wait for an answer", retry_after=10.0)
        return None

    def _remember(self, asked: Question, answer: Answer) -> None:
        self._remembered[asked] = (self._now().monotonic + answer.remember, answer.approver)
        self._remembered.move_to_end(asked)
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        self.elsewhere.remember(asked, answer.remember, answer.approver)

    def _note(self, approval: str, why: str) -> None:
        self._over[approval] = why
        while len(self._over) > MAX_ANSWERED:
            self._over.popitem(last=False)

    def _event(self, waiting: Waiting, change: ApprovalChange, answer: Answer | None = None) -> ApprovalEvent:
        session = waiting.session
        return ApprovalEvent(
            at=self._now().wall,
            change=change,
            approval=waiting.id,
            request_id=waiting.request_id,
            session=session.id,
            tenant=session.tenant,
            subject=session.subject,
            policy=session.policy,
            rule=waiting.rule,
            credentials=waiting.credentials,
            method=waiting.method,
            destination=waiting.destination,
            path=waiting.path,
            readings=waiting.readings,
            approver=answer.approver if answer else "",
            remembered_seconds=answer.remember if answer and math.isfinite(answer.remember) else 0.0,
        )


def _cut(path: str) -> str:
    more = len(path) - PATH_CHARACTERS
    return path if more <= 0 else f"{path[:PATH_CHARACTERS]} … ({more} more characters)"
