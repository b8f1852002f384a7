"""One request's life after the verdict: the last look, the secrets put in, every chunk, the end."""

import logging
import math
import time
from collections.abc import Callable, Container, Iterator
from functools import cached_property

from coatcheck.decision.body_search import MAX_REPORTED, BodySearch
from coatcheck.decision.decide import DecisionContext, NeedBody
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.form_method import FormMethods
from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Destination, Edits, Headers, Peer, RequestHead, ResponseHead
from coatcheck.decision.policy import Credential, HandlesInBody, LimitKind, Rule
from coatcheck.decision.response import ResponsePlan, plan_request_for_scrubbing
from coatcheck.decision.scrub import Patterns
from coatcheck.decision.session import Session, alive
from coatcheck.decision.substitute import body_limit
from coatcheck.decision.verdict import Inject, Pass
from coatcheck.request.capacity import Capacity
from coatcheck.request.handle_use import ancestor_shown, counts_until, foreign, one_revoked
from coatcheck.request.request_edits import (
    credential_edits,
    minted_values,
    texts_to_scrub,
    with_connection_edits,
)
from coatcheck.request.response import Answer
from coatcheck.request.revalidate import denial_of, revalidate, revalidate_as
from coatcheck.request.shared import Shared
from coatcheck.secrets import Secret
from coatcheck.telemetry.events import Alarm, Completion

logger = logging.getLogger(__name__)

_UNCHANGED = Edits()


class Call:
    """One request. Planes call its methods in the order of the request; each may answer with a Deny."""

    def __init__(
        self,
        shared: Shared,
        capacity: "Capacity[Call]",
        request_id: str,
        peer: Peer,
        destination: Destination,
        head: RequestHead,
    ) -> None:
        self.request_id = request_id
        self.peer = peer
        self.destination = destination
        self.head = head
        self.started = time.perf_counter()
        self.session: Session | None = None
        self.rule: Rule | None = None
        self.verdict: Pass | Inject | None = None
        self.need: NeedBody | None = None
        self.denial: Deny | None = None
        self.credentials: tuple[str, ...] = ()
        self.approved_by = ""
        """Who said that it may leave, where the rule asks."""
        self.signs_body = 0
        """Bytes of body to buffer because a signature covers it."""
        self.entered = False
        """The limits have counted this call in; `complete` counts it out."""
        self.told = False
        """The verdict is in the audit log, without which nothing leaves (I8)."""
        self.left = False
        """Something was written to the upstream: the call can only be broken off (I3)."""
        self.committed = False
        """The head with its secrets was handed to the plane."""
        self.status = 0
        self._shared = shared
        self._capacity = capacity
        self._secrets: dict[str, Secret] = {}
        self._epoch = -1
        self._policy: object = None
        self._sent = 0
        self.bytes_down = 0
        self.buffered = 0
        """Bytes kept until the body is whole."""
        self._search: BodySearch | None = None
        self._answer: Answer | None = None
        self._handle_until = math.inf
        """When the first of the handles expires."""
        self._minted: Patterns | None = None
        """Of signatures that were made for this request: its answer is searched for them to its end."""
        self._ended = False
        self._on_end: Callable[[Call], None] | None = None

    def on_end(self, callback: "Callable[[Call], None]") -> None:
        """Call `callback` once the request has ended, however."""
        self._on_end = callback

    # --- before the request leaves ------------------------------------------------------------------

    @property
    def body_limit(self) -> int:
        """Bytes of body to buffer before `receive_body`; 0: stream it."""
        return self.need.limit if self.need is not None else self.signs_body

    @property
    def authenticated(self) -> bool:
        """Whether the request leaves under a credential, whose secret is in it or has signed it."""
        return isinstance(self.verdict, Inject)

    def deny(self, denial: Deny) -> None:
        """Refuse; a refusal that stands is never replaced by a milder one."""
        self.denial = self.denial or denial_of(denial)
        self._leave()

    def client_left(self) -> None:
        """The client has gone: an approval of this request is no longer needed."""
        self._shared.approvals.forget_request(self.request_id)

    def allow(self, verdict: Pass | Inject) -> Deny | None:
        """The verdict, from which on its handles' expiry counts. A request may still wait for a body, an
        approval or the store: `commit` must see that a handle has expired meanwhile (TOCTOU)."""
        self.session, self.rule, self.verdict = verdict.session, verdict.rule, verdict
        until = counts_until(verdict.session, verdict, self._shared.state.genuine)
        if until is None:
            return Deny(Reason.INTERNAL_ERROR, "a handle that was judged can no longer be read")
        self._handle_until = until
        self.credentials = verdict.credentials
        if isinstance(verdict, Inject):
            self.signs_body = body_limit(self.head, verdict.injections)
        return None

    def hold(self, credential: Credential, secret: Secret) -> None:
        self._secrets[credential.name] = secret

    def foreign_claims(self, context: DecisionContext) -> tuple[Claims, ...]:
        """The genuine handles in this head of sessions that are neither this one nor its ancestors."""
        return foreign(self.session, self.head, context)

    def inherited_from(self) -> str:
        """The ancestor whose string was shown and counted; empty for a session's own, and for none."""
        return ancestor_shown(self.session, self.verdict, self._shared.state.genuine)

    def permitted(self) -> Deny | None:
        """Whether the verdict still holds now: the lease, revocations, and the policy as it is (I5).

        Looked at before the first upstream byte and at each chunk (TOCTOU: OpenShell PR 2510; decisions
        frozen for the life of a tunnel: OneCLI #178).
        """
        session, rule = self.session, self.rule
        if session is None or rule is None or self._ended:
            return Deny(Reason.INTERNAL_ERROR, "no verdict")
        state = self._shared.state
        sessions = state.sessions
        current = sessions.by_id.get(session.id)
        if current is None:
            return Deny(Reason.SESSION_REVOKED, "the session has ended")
        now = state.clock.now()
        dead = alive(current, now) or state.stale(now)
        if dead is not None:
            return dead
        if current.generation != session.generation:
            return Deny(Reason.HANDLE_STALE, "the session was rebound while the request ran")
        if now.wall >= self._handle_until:
            return Deny(Reason.HANDLE_EXPIRED, "while the request ran")
        probed = self._shared.probing.refuses(current, self.verdict)
        if probed is not None:
            return probed
        if sessions.epoch == self._epoch:
            return None
        if self._handle_revoked(current):
            return Deny(Reason.HANDLE_REVOKED, "while the request ran")
        policy = state.policies.get(session.policy)
        if policy is not self._policy:
            still = revalidate(policy, self.destination, self.head, self.verdict, now.wall)
            if not isinstance(still, Rule):
                return denial_of(still)
            self._policy = policy
        self._epoch = sessions.epoch
        return None

    def commit_tunnel(self) -> Deny | None:
        """The last look before a tunnel's first byte leaves."""
        denial = self.denial or self.permitted() or self._untold()
        self.committed = denial is None
        return denial

    @property
    def refusal(self) -> Deny | None:
        """Why it may not go on, once judged; None, too, while the verdict waits for the body."""
        waits = self.need is not None and self.verdict is None
        return self.denial or (None if waits else self._untold())

    def _untold(self) -> Deny | None:
        return None if self.told else Deny(Reason.INTERNAL_ERROR, "the verdict was not recorded")

    def _handle_revoked(self, session: Session) -> bool:
        """Revoked alone, or because its credential was taken from the session."""
        state = self._shared.state
        if not session.credentials.issuperset(self.credentials):
            return True
        return one_revoked(session, self.verdict, state.genuine, state.sessions.by_id)

    def commit(self, body: bytes) -> Edits | Deny:
        """The last look and the edits, secrets included. The plane sends them without another await."""
        denial = self.denial or self.permitted() or self._untold()
        if denial is not None:
            return denial
        refused = self._judge_whole(body) if body else None
        if refused is not None:
            return refused
        edits = self._edits(body)
        if isinstance(edits, Deny):
            return edits
        if not body and (not self.head.end_stream or self.head.get("upgrade") is not None):
            self._search = self._body_search()  # what a WebSocket's client says is a body, too (I4)
        if self.session is not None:
            known = self._shared.secrets if self._searched else None
            self._answer = Answer(self.head, self.session, known, self._minted)
        self.committed = True
        return edits

    @property
    def _searched(self) -> bool:
        """Whether the answer is searched for secrets: unless the rule says otherwise."""
        return self.rule is None or self.rule.searched

    def _edits(self, body: bytes) -> Edits | Deny:
        verdict = self.verdict
        if verdict is None:
            return Deny(Reason.INTERNAL_ERROR, "no verdict")
        credentials = _UNCHANGED
        if isinstance(verdict, Inject):
            whole = body if self.body_limit else None
            now = self._shared.state.clock.now().wall
            put_in = credential_edits(self.head, self.destination, verdict, self._secrets, whole, now)
            if isinstance(put_in, Deny):
                return put_in
            credentials = put_in
            minted = [
                self._shared.secrets.add_minted(verdict.session.id, value)
                for value in minted_values(verdict, credentials)
            ]
            self._minted = Patterns.together(tuple(minted)) if minted else None
            if self._searched and not self._are_known(verdict):
                return Deny(Reason.TOO_MANY_SECRETS, "a secret of more than answers are searched for")
        scrubbing = _UNCHANGED
        if self._searched:
            secrets = self._minted is not None or self._shared.secrets.patterns(verdict.session) is not None
            compression = verdict.rule.compression
            scrubbing = plan_request_for_scrubbing(self.head, secrets=secrets, compression=compression)
        return with_connection_edits(self.head, credentials, scrubbing)

    def _are_known(self, verdict: Inject) -> bool:
        """Whether the answer is searched for what this request carries."""
        known = self._shared.secrets
        for secret in self._secrets.values():
            known.heard(secret)
        return known.covers(verdict.session, texts_to_scrub(verdict, self._secrets))

    def buffer(self, count: int) -> Deny | None:
        """So many more bytes of a body are to be kept until it is whole."""
        self.buffered += count
        crowded = self._capacity.keep(self, count)
        return Deny(Reason.BODY_TOO_LARGE) if self.buffered > self.body_limit else crowded

    # --- the body on its way up ---------------------------------------------------------------------

    def upload(self, chunk: bytes) -> bytes | Deny:
        """One chunk of body, as it may leave."""
        denial = self.sent(len(chunk))
        if denial is not None:
            return denial
        overridden = self._overridden(chunk)
        if overridden is not None:
            return overridden
        if self._search is None:
            return chunk
        out = self._search.feed(chunk)
        return self._seen_in_body(self._search) or out

    def sent(self, count: int) -> Deny | None:
        """So many bytes of the request are to leave: whether they may."""
        denial = self.permitted() or self._charge(LimitKind.BYTES_UP, count)
        if denial is not None:
            return denial
        self._sent += count
        limit = self.rule.max_request_bytes if self.rule else 0
        return Deny(Reason.BODY_TOO_LARGE) if limit and self._sent > limit else None

    def upload_end(self) -> bytes | Deny:
        denial = self.permitted()
        if denial is not None or self._search is None:
            return denial or b""
        rest = self._search.close()
        return self._seen_in_body(self._search) or rest

    def _judge_whole(self, body: bytes) -> Deny | None:
        """A buffered body is counted and searched like one that streams. What is signed, or gets a
        credential, cannot be masked beside: there `mask` refuses."""
        denial = self.sent(len(body)) or self._overridden(body)
        if denial is not None:
            return denial
        state = self._shared.state
        search = BodySearch(state.genuine.references, state.genuine.is_reference)
        search.feed(body)
        search.close()
        injections = self.verdict.injections if isinstance(self.verdict, Inject) else ()
        return self._seen_in_body(search, declared={injection.handle for injection in injections})

    @cached_property
    def _form(self) -> FormMethods | None:
        """Where a form may override the method."""
        return FormMethods.of(self.head)

    def _overridden(self, chunk: bytes) -> Deny | None:
        """A method that a form names is allowed by the very rules that allowed the request, or breaks it
        off."""
        methods = self._form.feed(chunk) if self._form is not None else frozenset[str]()
        policy = self._shared.state.policies.get(self.session.policy) if self.session is not None else None
        for method in methods - {self.head.method}:
            denial = revalidate_as(policy, self.destination, self.head, self.verdict, method)
            if denial is not None:
                return denial
        return None

    def _body_search(self) -> BodySearch:
        state = self._shared.state
        masking = self.rule is not None and self.rule.handles_in_body is HandlesInBody.MASK
        return BodySearch(state.genuine.references, state.genuine.is_reference, masking=masking)

    def _seen_in_body(self, search: BodySearch, declared: Container[str | None] = ()) -> Deny | None:
        """A handle in a body is inert: told once a session and credential, refused only where policy says."""
        if self.session is None or self.rule is None:
            return None
        for credential, what in self._handles_in(search, declared):
            if self._shared.first_report(self.session.id, credential):
                self._shared.emit(
                    Alarm(
                        at=self._shared.state.clock.now().wall,
                        reason=Reason.HANDLE_MISPLACED,
                        session=self.session.id,
                        tenant=self.session.tenant,
                        credential=credential,
                        detail=f"{what} in a body to {self.destination.url}",
                    )
                )
            unmasked = self._search is None and self.rule.handles_in_body is HandlesInBody.MASK
            if unmasked or self.rule.handles_in_body is HandlesInBody.REFUSE:
                detail = f"credential {credential}" if credential else what
                return Deny(Reason.HANDLE_MISPLACED, f"{detail} in a body", alarm=True)
        return None

    def _handles_in(self, search: BodySearch, declared: Container[str | None]) -> Iterator[tuple[str, str]]:
        """The credential and the name of each genuine handle that is not declared there.

        A crowded body counts as one with a handle of an unknown credential: decoys in front of a handle once
        hid it from `refuse`.
        """
        for text in search.take():
            claims = self._shared.state.genuine.claims_of(text)
            if isinstance(claims, Claims) and text not in declared:
                yield claims.cred, f"handle {claims.jti}"
        if search.crowded:
            yield "", f"more than {MAX_REPORTED} different texts that look like handles"

    def _charge(self, kind: LimitKind, count: int) -> Deny | None:
        if self.session is None or self.rule is None or not self.rule.limits:
            return None
        now = self._shared.state.clock.now().monotonic
        return self._shared.buckets.charge(self.session, self.rule, self.credentials, kind, count, now)

    # --- the answer ---------------------------------------------------------------------------------

    @property
    def answer(self) -> Answer:
        """What comes back. There is one once the request was committed."""
        if self._answer is None:
            raise RuntimeError("an answer to a request that never left")
        return self._answer

    def respond(self, response: ResponseHead, *, end_stream: bool) -> ResponsePlan | Deny:
        """What must happen to the answer."""
        self.status = response.status
        denial = self.permitted()
        if denial is not None:
            return denial
        assert self.rule is not None  # noqa: S101 - permitted() saw it
        plan = self.answer.begin(
            response,
            authenticated=self.authenticated,
            keep_set_cookie=self._keeps_cookies(),
            websocket=self.rule.websocket,
            end_stream=end_stream,
        )
        if not isinstance(plan, Deny):
            self.status = plan.status or response.status
        return self._probed() or plan

    def _keeps_cookies(self) -> bool:
        if not isinstance(self.verdict, Inject):
            return True
        return all(injection.credential.keep_set_cookie for injection in self.verdict.injections)

    def download(self, chunk: bytes) -> list[bytes] | Deny:
        """One chunk of the answer, as the sandbox may see it. Its bytes are counted once they are decoded."""
        denial = self.permitted()
        if denial is not None:
            return denial
        out = self.answer.feed(chunk, self.received)
        return self._probed() or out

    def _probed(self) -> Deny | None:
        """A Deny when what was just masked is one part of a secret too many: then it is not shown, either."""
        if self._answer is None or self.session is None:
            return None
        return self._shared.probing.look_at(self._answer, self.session, self.destination.url)

    def received(self, count: int) -> Deny | None:
        """So many bytes of the answer came in, decoded: whether they, and more, may go on."""
        denial = self.permitted() or self._charge(LimitKind.BYTES_DOWN, count)
        if denial is not None:
            return denial
        self.bytes_down += count
        limit = self.rule.max_response_bytes if self.rule else 0
        return Deny(Reason.BODY_TOO_LARGE, "the answer") if limit and self.bytes_down > limit else None

    def download_end(self) -> list[bytes] | Deny:
        denial = self.permitted()
        if denial is not None:
            return denial
        out = self.answer.finish()
        return self._probed() or out

    def trailers(self, trailers: Headers) -> Headers | Deny:
        """The answer's trailers, as the sandbox may see them."""
        clean = self.answer.trailers(trailers)
        return self._probed() or clean

    def websocket_control(self, payload: bytes, *, from_client: bool) -> bytes | Deny:
        """A ping's payload or a close reason: at most 125 bytes (RFC 6455 5.5), scrubbed like the rest."""
        denial = self.sent(len(payload)) if from_client else self.received(len(payload))
        if denial is not None:
            return denial
        if from_client:
            return payload
        clean = self.answer.whole(payload)
        return self._probed() or clean

    def message(self, clean: bytes) -> bytes | Deny:
        """What of a WebSocket's message goes to the sandbox, once what was masked in it was counted."""
        return self._probed() or clean

    # --- the end ------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether it was completed: nothing of it may happen any more."""
        return self._ended

    def complete(self, aborted: Reason | None) -> None:
        """Counted once, whatever comes after. Later calls answer Deny. Never raises."""
        if self._ended:
            return
        self._ended = True
        for step in (self._settle, self._leave, self._vacate, lambda: self._tell(aborted)):
            try:
                step()
            except Exception:
                logger.exception("request %s did not end in order", self.request_id)

    def _settle(self) -> None:
        """However the answer ended: a client that leaves as soon as it has seen a mask has seen it."""
        if self._answer is not None:
            self._answer.break_off()
            self._probed()

    def _vacate(self) -> None:
        if self._on_end is not None:
            self._on_end(self)
        self._capacity.leave(self)

    def _tell(self, aborted: Reason | None) -> None:
        if not self.committed or self.session is None:
            return
        self._shared.tell(
            Completion(
                at=self._shared.state.clock.now().wall,
                request_id=self.request_id,
                session=self.session.id,
                status=self.status,
                bytes_up=self._sent,
                bytes_down=self.bytes_down,
                seconds=time.perf_counter() - self.started,
                scrubbed=self._answer.hits if self._answer is not None else 0,
                aborted=aborted,
            )
        )

    def _leave(self) -> None:
        if self.entered and self.session is not None and self.rule is not None:
            self.entered = False
            self._shared.buckets.leave(self.session, self.rule, self.credentials)
