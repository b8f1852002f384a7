"""Shadow mode: candidate policies judge each request beside those in force, and change nothing.

Only `decision/` is asked, which is pure: no secret is fetched, no limit is spent, no state changes, and a
candidate that fails is counted and logged. Limits are not simulated: they depend on what was let through.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from coatcheck.decision.comparison import Answer, Comparison, Judged, answer_of, compare, session_of
from coatcheck.decision.decide import DecisionContext, decide, decide_connect
from coatcheck.decision.message import Destination, Peer, RequestHead
from coatcheck.decision.policy import Policy
from coatcheck.decision.search import mask
from coatcheck.decision.session import Session
from coatcheck.policy import PolicyError
from coatcheck.policy.bundle.signed import SignedPolicies
from coatcheck.policy.parsing import ParserFailed, PolicyParser
from coatcheck.policy.watch import PolicyWatch
from coatcheck.telemetry.events import DaemonEvent, Event, ShadowDifference

BURST: Final = 100
"""Differences of one kind (policy, comparison, both rules or reasons) that are recorded one by one."""
EVERY_SECONDS: Final = 5.0
"""After those, one so often, with the number of those in between."""
MAX_KINDS: Final = 256
"""Kinds that are told apart; beyond, they share one. At one record in five seconds each: some 30 KB/s."""

logger = logging.getLogger(__name__)

type Kind = tuple[str, Comparison, str, str]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Policies that might be in force one day."""

    policies: Mapping[str, Policy]
    whole: bool
    """They would replace all policies, so that one which is missing is gone. False: a file, which would
    replace the policy of its name, and says nothing of the others."""


@dataclass(slots=True)
class _Budget:
    full_at: float
    unrecorded: int = 0


class Shadow:
    """`look` may run in any thread; all else belongs to the plane's loop."""

    def __init__(
        self,
        path: Path,
        trust_root: Path | None,
        tell: Callable[[Event], None],
        count: Callable[[Comparison], None],
    ) -> None:
        """`path`: a directory of policies, one `*.yaml`, or a signed bundle, whatever its version is."""
        self._path = path
        bundle = trust_root is not None and path.suffix != ".yaml" and not path.is_dir()
        signed = SignedPolicies(trust_root) if bundle and trust_root is not None else None
        self._watch = PolicyWatch(path, signed=signed, parse=PolicyParser())
        self._tell = tell
        self._count = count
        self.budgets: dict[Kind, _Budget] = {}
        self.candidates: Candidates | None = None
        """None: nothing that could be read was there yet."""
        self.refused = ""
        """Why the files that lie there now are not what requests are compared with."""
        self._absent = False
        self.results = dict.fromkeys(Comparison, 0)
        """Requests and tunnels since these candidates are compared."""

    def look(self) -> None:
        """Read the candidates if they changed. Bad ones are told once; those from before go on. Where none
        are, none are compared: taking them away ends the comparison."""
        if not self._path.exists():
            self._forget()
            return
        self._absent = False
        if self.candidates is not None or self.refused:
            if not self._watch.due():
                return
        try:
            policies = self._watch.read()
        except (PolicyError, ParserFailed, OSError) as error:
            if str(error) != self.refused:
                self._tell(DaemonEvent(time.time(), "shadow_refused", f"{self._path}: {error}"))
            self.refused = str(error)
            return
        self.refused = ""
        self.candidates = Candidates(policies, self._path.suffix != ".yaml")
        self.results = dict.fromkeys(Comparison, 0)
        named = ", ".join(f"{each.name} {each.sha256[:16]}" for each in list(policies.values())[:10])
        self._tell(DaemonEvent(time.time(), "shadow", f"{len(policies)} candidates: {named}"))

    def _forget(self) -> None:
        if self._absent:
            return
        self._absent, self.candidates, self.refused = True, None, ""
        self.results = dict.fromkeys(Comparison, 0)
        self._tell(DaemonEvent(time.time(), "shadow", f"no candidates at {self._path}"))

    def request(
        self,
        peer: Peer,
        destination: Destination,
        head: RequestHead,
        context: DecisionContext,
        active: Judged,
    ) -> None:
        """Compare with `active`, the verdict of the policy in force on this head. Never raises."""
        self._compare(
            destination, head, context, active, lambda other: decide(peer, destination, head, other)
        )

    def connect(self, peer: Peer, destination: Destination, context: DecisionContext, active: Judged) -> None:
        """The same for a CONNECT: what is allowed inside is compared request by request."""
        host, port, head = destination.host, destination.port, RequestHead("CONNECT", "", ())
        self._compare(
            destination, head, context, active, lambda other: decide_connect(peer, host, port, other)
        )

    def _compare(
        self,
        destination: Destination,
        head: RequestHead,
        context: DecisionContext,
        active: Judged,
        judge: Callable[[DecisionContext], Judged],
    ) -> None:
        try:
            result = self._result(destination, head, context, active, judge)
        except Exception as error:  # noqa: BLE001 - nothing of a candidate may touch a request
            result = Comparison.FAILED
            if not self.results[result]:  # the first; the rest are counted
                logger.error("a candidate policy came to no verdict (%s)", type(error).__name__)
        if result is not None:
            self.results[result] += 1
            self._count(result)

    def _result(
        self,
        destination: Destination,
        head: RequestHead,
        context: DecisionContext,
        active: Judged,
        judge: Callable[[DecisionContext], Judged],
    ) -> Comparison | None:
        """None: there is nothing to compare with."""
        candidates, session = self.candidates, session_of(active)
        if candidates is None or session is None:
            return None
        ours, other = context.policies.get(session.policy), candidates.policies.get(session.policy)
        if other is None and not candidates.whole:
            return None
        if ours is not None and other is not None and ours.sha256 == other.sha256:
            return Comparison.SAME
        judged = judge(replace(context, policies=candidates.policies))
        result = compare(active, judged)
        if result is not Comparison.SAME:
            answers = answer_of(active), answer_of(judged)
            self._record(session, destination, head, context, other, result, answers)
        return result

    def _record(
        self,
        session: Session,
        destination: Destination,
        head: RequestHead,
        context: DecisionContext,
        candidate: Policy | None,
        result: Comparison,
        answers: tuple[Answer, Answer],
    ) -> None:
        at = context.now.wall
        budget = self.budget((session.policy, result, str(answers[0]), str(answers[1])), at)
        full_at = max(budget.full_at, at)
        if full_at - at > (BURST - 1) * EVERY_SECONDS:
            budget.unrecorded += 1
            return
        budget.full_at, unrecorded, budget.unrecorded = full_at + EVERY_SECONDS, budget.unrecorded, 0
        self._tell(
            ShadowDifference(
                at=at,
                session=session.id,
                tenant=session.tenant,
                policy=session.policy,
                candidate_hash=candidate.sha256 if candidate is not None else "",
                change=result,
                method=mask(head.method, context.references),
                destination=destination.url,
                path=mask(head.path, context.references),
                active=str(answers[0]),
                candidate=str(answers[1]),
                unrecorded=unrecorded,
            )
        )

    def budget(self, kind: Kind, at: float) -> _Budget:
        """How much more may be recorded of one kind of difference."""
        found = self.budgets.get(kind)
        if found is None:
            if len(self.budgets) >= MAX_KINDS:
                kind = ("", Comparison.SAME, "", "")
            found = self.budgets.setdefault(kind, _Budget(at))
        return found
