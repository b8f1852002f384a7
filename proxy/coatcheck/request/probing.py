"""Parts of secrets that were masked in the answers of a session: a few, then it loses their credentials (I1).

A mask that stands over a part of a secret tells that what stood there was right. A sandbox that has a few
letters from a cut, and writes guesses of what follows into pages that it can fetch, would learn letter after
letter. So masked parts are counted over all responses to a session and to its ancestors. A part counts from
its first mask on. Whether it continues to a whole secret shows only later, or never if the client leaves.
"""

from collections.abc import Callable, Iterable
from typing import Final

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.policy import Policy
from coatcheck.decision.scrub import Run
from coatcheck.decision.session import Session
from coatcheck.decision.verdict import Inject, Pass
from coatcheck.request.response import Answer
from coatcheck.state.state import State
from coatcheck.telemetry.events import Alarm

PARTS_ALLOWED: Final = 3
"""With so many parts of one secret, the session's grants of it end; a session that has none of them ends. One
more ends every session. A truncated key in a log is one part; a guess that is answered needs one each."""
MAX_COUNTED: Final = 100_000
"""(session, secret) pairs: ten times the sessions a daemon may hold. Of more, the oldest are forgotten."""


class Probing:
    """Belongs to the plane's event loop."""

    def __init__(self, state: State, tell: Callable[[Alarm], None]) -> None:
        self._state = state
        self._tell = tell
        self._counts: dict[tuple[str, str], int] = {}
        self._going_on: dict[Answer, tuple[str, str]] = {}
        """Answers at whose end so far a part of a secret stands, which is not in `_counts` yet."""
        self._over: set[str] = set()
        """Sessions that are to end, until they have."""
        self.end_grant: Callable[[str, str, str], None] = lambda session_id, credential, why: None
        self.end_session: Callable[[str, str], None] = lambda session_id, why: None

    def look_at(self, answer: Answer, session: Session, where: str) -> Deny | None:
        """Count what was masked in it since the last look. A Deny: too much, and it must not go on."""
        self._going_on.pop(answer, None)
        refused = self.masked(session, answer.take_runs(), where)
        part = answer.going_on
        if part is None or not part.secret:
            return refused
        if self._parts(session, part.secret) + 1 < PARTS_ALLOWED:
            self._going_on[answer] = (session.id, part.secret)
            return refused
        answer.break_off()
        return self.masked(session, answer.take_runs(), where) or refused

    def masked(self, session: Session, runs: Iterable[Run], where: str) -> Deny | None:
        """These were masked in an answer from `where`. A Deny: too many, and the answer must not go on."""
        refused = None
        for run in runs:
            if not run.whole and run.secret:
                refused = self._part(session, run, where) or refused
        return refused

    def refuses(self, session: Session, verdict: Pass | Inject | None) -> Deny | None:
        """Why a request may not go on: its session, or what it carries, was taken a moment ago or longer."""
        if not self._counts:
            return None
        if session.id in self._over:
            return Deny(Reason.SECRET_PROBED, "the session ends")
        injections = verdict.injections if isinstance(verdict, Inject) else ()
        for name in {str(injection.credential.secret) for injection in injections}:
            if self._parts(session, name) >= PARTS_ALLOWED:
                return Deny(Reason.SECRET_PROBED, name)
        return None

    def named(self, session: Session, denial: Deny, policy: Policy | None) -> Deny:
        """A handle that counts no more because of this is refused with this reason."""
        credential = policy.credentials.get(denial.ungranted) if policy is not None else None
        if credential is None or self._parts(session, str(credential.secret)) < PARTS_ALLOWED:
            return denial
        return Deny(Reason.SECRET_PROBED, denial.detail, rule=denial.rule)

    def _parts(self, session: Session, name: str) -> int:
        line = (session.id, *session.ancestors)
        going_on = sum(each in line and secret == name for each, secret in self._going_on.values())
        return going_on + sum(self._counts.get((each, name), 0) for each in line)

    def _part(self, session: Session, run: Run, where: str) -> Deny | None:
        key = (session.id, run.secret)
        self._counts[key] = self._counts.pop(key, 0) + 1
        while len(self._counts) > MAX_COUNTED:
            del self._counts[next(iter(self._counts))]
        parts = self._parts(session, run.secret)
        policy = self._state.policies.get(session.policy)
        granted = [
            credential.name
            for credential in (policy.credentials.values() if policy is not None else ())
            if str(credential.secret) == run.secret and credential.name in session.credentials
        ]
        detail = f"part {parts} of {run.secret}, {run.length} characters, masked in an answer from {where}"
        self._tell(
            Alarm(
                at=self._state.clock.now().wall,
                reason=Reason.SECRET_PROBED,
                session=session.id,
                tenant=session.tenant,
                credential=", ".join(granted),
                detail=detail,
            )
        )
        if parts < PARTS_ALLOWED:
            return None
        if parts > PARTS_ALLOWED or not granted:
            self._over.add(session.id)
            self.end_session(session.id, detail)
        for name in granted:
            self.end_grant(session.id, name, detail)
        return Deny(Reason.SECRET_PROBED, run.secret)

    def forget(self, session_id: str) -> None:
        """The session has ended; what was counted for it counts for those after it in its line."""
        self._over.discard(session_id)
