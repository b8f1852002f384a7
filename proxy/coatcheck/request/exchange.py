"""One request from its head to its end: session, rule, handles, limits, secret, record, inject, redact.

    receive -> decide -> limits -> (await secrets) -> audit -> commit -> ... -> respond -> ... -> complete

Every plane calls this and nothing else of ours; it knows no proxy's types. Whatever goes wrong in here
becomes a Deny: the absence of a verdict is Deny (I3).
"""

import asyncio
import logging
import secrets as random
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

from coatcheck.decision.decide import (
    DecisionContext,
    Identified,
    NeedBody,
    decide,
    decide_body,
    decide_connect,
)
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import check_head
from coatcheck.decision.message import Destination, Peer, RequestHead
from coatcheck.decision.search import find
from coatcheck.decision.session import Session, alive
from coatcheck.decision.verdict import Inject, Injection, Pass
from coatcheck.policy.shadow import Shadow
from coatcheck.request import audit_records
from coatcheck.request.call import Call
from coatcheck.request.capacity import Capacity, Places
from coatcheck.request.handle_use import counts
from coatcheck.request.known_secrets import TooManySecrets
from coatcheck.request.revalidate import denial_of
from coatcheck.request.shared import Shared
from coatcheck.request.slow_decisions import SlowDecisions
from coatcheck.secrets import SecretMissing, SecretUnavailable
from coatcheck.secrets.cache import CachedStore
from coatcheck.state.buckets import ShareAwaited
from coatcheck.state.state import State
from coatcheck.telemetry.audit.log import AuditUnavailable
from coatcheck.telemetry.events import Event

logger = logging.getLogger(__name__)

type Waiting = Callable[[], Coroutine[Any, Any, None]] | None
"""What must be called and awaited before it is known whether a request may go on, if anything. The coroutine
is made where it is awaited: one that is made earlier is lost when something fails in between."""


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Bounds of the request path; seconds and bytes."""

    secret_timeout: float = 10.0
    """How long a request waits for the store before it is refused."""
    share_timeout: float = 1.0
    """How long a request waits to hear what the fleet has used of a limit before it is refused."""
    max_waiting: int = 1000
    """Requests that may wait for the store at once; each holds its head and up to 256 KiB of body. One tenant
    may have as many as are still free."""


class Exchange:
    """The request path of one plane. Belongs to the plane's event loop."""

    def __init__(
        self,
        state: State,
        store: CachedStore,
        emit: Callable[[Event], None],
        settings: ExchangeSettings | None = None,
    ) -> None:
        self.shared = shared = Shared(state, store, emit)
        self.state, self.buckets, self.secrets = state, shared.buckets, shared.secrets
        self.approvals, self.tell = shared.approvals, shared.tell
        self.capacity: Capacity[Call] = Capacity()
        self._slow = SlowDecisions(self.tell)
        self.draining = False
        self.shadow: Shadow | None = None
        self.revoke_for_theft: Callable[[str, str], None] = lambda session_id, why: None
        self.store = store
        self._settings = settings or ExchangeSettings()
        self.waiting = Places(self._settings.max_waiting)
        """For the store, by tenant."""
        self._boot = random.token_hex(4)
        self._count = 0

    # --- the way in ---------------------------------------------------------------------------------

    def receive(
        self, peer: Peer, destination: Destination, head: RequestHead, *, http2: bool
    ) -> tuple[Call, Waiting]:
        """Judge a request's head. The Call says `denial` or may go on; what is returned beside it must be
        awaited first (the store has to be asked)."""
        call = self._call(peer, destination, head)
        with self._slow.judging(call):
            return call, self._judge(call, peer, destination, head, http2)

    def _judge(
        self, call: Call, peer: Peer, destination: Destination, head: RequestHead, http2: bool
    ) -> Waiting:
        try:
            context = self.context()
            refused = self._shut(peer, context) or self._identified(peer, check_head(head, http2=http2))
            if refused is not None:
                return self._proceed(call, refused)
            verdict = decide(peer, destination, head, context)
            if self.shadow is not None:
                self.shadow.request(peer, destination, head, context, verdict)
            return self._proceed(call, verdict)
        except Exception:
            logger.exception("request %s: no verdict", call.request_id)
            self._failed(call)
            return None

    def receive_body(self, call: Call, body: bytes) -> Waiting:
        """The second half of the verdict, for a call whose `need` asked for the body."""
        assert call.need is not None  # noqa: S101 - a plane's bug, not the context's
        with self._slow.judging(call):
            return self._judge_body(call, call.need, body)

    def _judge_body(self, call: Call, need: NeedBody, body: bytes) -> Waiting:
        try:
            verdict = decide_body(need, body, self.context())
            return self._proceed(
                call, Identified(need.session, verdict) if isinstance(verdict, Deny) else verdict
            )
        except Exception:
            logger.exception("request %s: no verdict on its body", call.request_id)
            self._failed(call)
            return None

    def connect(self, peer: Peer, host: str, port: int) -> Session | Call:
        """Whether a tunnel may be opened. A Call with a `denial`: no, and that is recorded. What is allowed
        is recorded with the requests inside. A Call without: its TLS passes unopened, and the Call counts
        and may end it."""
        destination = Destination("https", host, port)
        call = self._call(peer, destination, RequestHead("CONNECT", "", ()))
        try:
            context = self.context()
            shut = self._shut(peer, context)
            verdict = shut or decide_connect(peer, host, port, context)
            if self.shadow is not None and shut is None:
                self.shadow.connect(peer, destination, context, verdict)
            if isinstance(verdict, Session):
                return verdict
            if self._proceed(call, verdict) is not None:  # nothing of a tunnel waits
                call.deny(Deny(Reason.RATE_LIMITED, "the fleet's share is used up", retry_after=1.0))
                self._tell(call)
        except Exception:
            logger.exception("tunnel %s: no verdict", call.request_id)
            self._failed(call)
        if call.denial is not None:
            call.complete(call.denial.reason)
        return call

    def refused(self, peer: Peer, destination: Destination, head: RequestHead, denial: Deny) -> Call:
        """Record a refusal that a plane made before there was a call (say, SNI differs from CONNECT)."""
        call = self._call(peer, destination, head)
        call.session = self.session_of(peer)
        call.deny(denial)
        self._tell(call)
        return call

    def shows_handle(self, head: RequestHead) -> bool:
        """Whether a handle stands anywhere in the head."""
        context = self.context()
        return bool(find(head, context.references, context.known))

    def refused_with_handle(self, refusal: Call, head: RequestHead) -> Call:
        """A handle was shown to a host whose tunnel is refused, and so is this request: judged, so that the
        attempt is an alarm (I4), and refused whatever the policy has become since."""
        call, _ = self.receive(refusal.peer, refusal.destination, head, http2=False)
        if call.denial is None:
            self.late_refusal(call, Deny(Reason.HOST_NOT_ALLOWED))
        return call

    def late_refusal(self, call: Call, denial: Deny) -> None:
        """A request that was allowed, and recorded so, was refused before its first upstream byte."""
        call.deny(denial)
        self._tell(call)

    # --- the straight line --------------------------------------------------------------------------

    def _proceed(self, call: Call, verdict: Deny | Identified | Pass | Inject | NeedBody) -> Waiting:
        if isinstance(verdict, Deny | Identified):
            if isinstance(verdict, Identified):
                call.session, denial = verdict.session, verdict.denial
                policy = self.state.policies.get(call.session.policy)
                verdict = self.shared.probing.named(call.session, denial, policy)
            call.deny(verdict)
            self._tell(call)
            return None
        if isinstance(verdict, NeedBody):
            call.session, call.rule, call.need = verdict.session, verdict.rule, verdict
            crowded = self.capacity.enter(call, verdict.session.id)
            if crowded is not None:
                call.deny(crowded)
                self._tell(call)
            return None
        refused = call.allow(verdict)
        if refused is None and call not in self.calls:
            refused = self.capacity.enter(call, verdict.session.id)
        if refused is not None:
            call.deny(refused)
            self._tell(call)
            return None
        taken = self._take(call, verdict)
        if isinstance(taken, ShareAwaited):
            return partial(self._await_share, call, verdict, taken)
        return self._admitted(call, verdict, taken)

    def _take(self, call: Call, verdict: Pass | Inject) -> Deny | ShareAwaited | None:
        now = self.state.clock.now().monotonic
        taken = self.buckets.take(verdict.session, verdict.rule, call.credentials, now)
        call.entered = taken is None
        return taken

    def _admitted(self, call: Call, verdict: Pass | Inject, refused: Deny | ShareAwaited | None) -> Waiting:
        if refused is not None:
            call.deny(denial_of(refused))
            self._tell(call)
            return None
        if verdict.rule.asking is not None:
            return partial(self._ask, call, verdict)
        return self._secrets(call, verdict)

    async def _await_share(self, call: Call, verdict: Pass | Inject, awaited: ShareAwaited) -> None:
        """This daemon ran ahead of what its fleet knows of a limit: it asks, and goes on if it may."""
        taken: Deny | ShareAwaited | None = awaited
        try:
            async with asyncio.timeout(self._settings.share_timeout):
                while isinstance(taken, ShareAwaited):
                    await asyncio.shield(taken.future)
                    taken = self._take(call, verdict)
        except TimeoutError:
            taken = Deny(Reason.RATE_LIMITED, "no word of the fleet's limit in time", retry_after=1.0)
        except Exception:
            logger.exception("request %s: the fleet could not be asked", call.request_id)
            taken = Deny(Reason.INTERNAL_ERROR, "the fleet could not be asked")
        if call not in self.calls:
            taken = Deny(Reason.CLIENT_GONE, "while the fleet was asked")
        waiting = self._admitted(call, verdict, taken)
        if waiting is not None:
            await waiting()

    async def _ask(self, call: Call, verdict: Pass | Inject) -> None:
        """A rule wants somebody to say yes first. The secret is fetched after that, not held meanwhile."""
        try:
            answer = await self.approvals.ask(
                call.request_id, call.destination, call.head, verdict, self.state
            )
        except AuditUnavailable as unavailable:
            answer = Deny(Reason.AUDIT_UNAVAILABLE, str(unavailable))
        except Exception:
            logger.exception("request %s: no approval could be requested", call.request_id)
            answer = Deny(Reason.INTERNAL_ERROR, "no approval could be requested")
        if not isinstance(answer, str):
            call.deny(answer)
            self._tell(call)
            return
        call.approved_by = answer
        fetching = self._secrets(call, verdict)
        if fetching is not None:
            await fetching()

    def _secrets(self, call: Call, verdict: Pass | Inject) -> Waiting:
        if verdict.rule.searched and self.secrets.ready(verdict.session) is not True:
            return partial(self._fetch, call, verdict)
        for injection in _injections(verdict):
            secret = self.store.peek(injection.credential.secret)
            if secret is None:
                return partial(self._fetch, call, verdict)
            call.hold(injection.credential, secret)
        self._tell(call)
        return None

    async def _fetch(self, call: Call, verdict: Pass | Inject) -> None:
        """Ask the store for what is not known yet: secrets to inject, and those that the answer is searched
        for. Until these are known, nothing that could show one leaves."""
        tenant = verdict.session.tenant
        if not self.waiting.take(tenant):
            call.deny(
                Deny(Reason.SECRET_UNAVAILABLE, "too many requests wait for the store", retry_after=1.0)
            )
            self._tell(call)
            return
        try:
            async with asyncio.timeout(self._settings.secret_timeout):
                if verdict.rule.searched:
                    await self.secrets.learn(verdict.session)
                for injection in _injections(verdict):
                    call.hold(injection.credential, await self.store.fetch(injection.credential.secret))
        except TooManySecrets as too_many:
            logger.error("%s", too_many)
            call.deny(Deny(Reason.TOO_MANY_SECRETS, "the tenant has more than answers are searched for"))
        except SecretMissing as missing:
            call.deny(Deny(Reason.SECRET_MISSING, str(missing)))
        except TimeoutError:
            call.deny(Deny(Reason.SECRET_UNAVAILABLE, "the store took too long", retry_after=2.0))
        except SecretUnavailable as unavailable:
            call.deny(Deny(Reason.SECRET_UNAVAILABLE, str(unavailable), retry_after=2.0))
        except Exception:
            logger.exception("request %s: the store failed", call.request_id)
            call.deny(Deny(Reason.INTERNAL_ERROR, "the secret store failed"))
        finally:
            self.waiting.leave(tenant)
        self._tell(call)

    def _tell(self, call: Call) -> None:
        """The audit record, before the first upstream byte; what cannot be recorded does not leave (I8)."""
        if call.over and call.told:
            return  # its connection was refused while it waited, and that is in the log
        try:
            self.shared.emit(audit_records.decision(call, self.state))
            call.told = True
        except AuditUnavailable as unavailable:
            call.deny(Deny(Reason.AUDIT_UNAVAILABLE, str(unavailable)))
        except Exception:
            logger.exception("request %s could not be recorded", call.request_id)
            call.deny(Deny(Reason.AUDIT_UNAVAILABLE, "the record could not be made"))
        if call.denial is not None and call.denial.alarm:
            self._alarm(call, call.denial)

    def _alarm(self, call: Call, denial: Deny) -> None:
        self.tell(audit_records.alarm(call, denial, self.state))
        if denial.reason is Reason.HANDLE_STOLEN:
            self._theft(call)

    def _theft(self, call: Call) -> None:
        """A handle of one sandbox shown by another: the policy may end the victim's session. Only for one
        that would count there: finding an old handle must not be a way to end sessions."""
        context = self.context()
        for claims in call.foreign_claims(context):
            victim = context.by_id.get(claims.sid)
            policy = context.policies.get(victim.policy) if victim else None
            credential = policy.credentials.get(claims.cred) if policy else None
            if victim is None or credential is None or not credential.revoke_on_theft:
                continue
            if alive(victim, context.now) is None and counts(claims, victim, credential, context):
                self.revoke_for_theft(claims.sid, f"handle {claims.jti} was used by another sandbox")

    def is_over(self, session_id: str) -> bool:
        """Whether a session may do nothing any more."""
        session = self.state.sessions.by_id.get(session_id)
        return session is None or alive(session, self.state.clock.now()) is not None

    def session_ended(self, session_id: str) -> None:
        """Forget what was kept for a session."""
        self.secrets.forget(session_id)
        self.approvals.forget_session(session_id)
        self.shared.probing.forget(session_id)

    # --- small things -------------------------------------------------------------------------------

    @property
    def calls(self) -> AbstractSet[Call]:
        """What runs."""
        return self.capacity.calls

    def context(self) -> DecisionContext:
        state = self.state
        sessions = state.sessions
        return DecisionContext(
            now=state.clock.now(),
            by_origin=sessions.by_origin,
            policies=state.policies,
            claims_of=state.genuine.claims_of,
            references=state.genuine.references,
            known=state.genuine.is_reference,
            by_id=sessions.by_id,
        )

    def _call(self, peer: Peer, destination: Destination, head: RequestHead) -> Call:
        self._count += 1
        return Call(self.shared, self.capacity, f"{self._boot}-{self._count:x}", peer, destination, head)

    def session_of(self, peer: Peer) -> Session | None:
        """Whose connection it is, dead or alive: for records and look-ups, never for a verdict."""
        by_origin = self.state.sessions.by_origin
        return next((by_origin[origin] for origin in peer.origins if origin in by_origin), None)

    def _identified(self, peer: Peer, denial: Deny | None) -> Deny | Identified | None:
        session = self.session_of(peer) if denial is not None else None
        return denial if denial is None or session is None else Identified(session, denial)

    def _shut(self, peer: Peer, context: DecisionContext) -> Deny | Identified | None:
        """Why nothing is judged now, for any session: no candidate policy is compared with that."""
        stopping = Deny(Reason.DRAINING, retry_after=5.0) if self.draining else None
        return self._identified(peer, stopping or self.state.stale(context.now))

    def _failed(self, call: Call) -> None:
        call.deny(Deny(Reason.INTERNAL_ERROR, "the decision failed"))
        self._tell(call)


def _injections(verdict: Pass | Inject) -> tuple[Injection, ...]:
    return verdict.injections if isinstance(verdict, Inject) else ()
