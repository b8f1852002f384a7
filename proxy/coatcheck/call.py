"""One request's life after the verdict: the last look, the secrets put in, every chunk, the end."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from coatcheck.decision.body_scrubber import BodyScrubber
from coatcheck.decision.body_search import BodySearch
from coatcheck.decision.content_coding import CodingRefused
from coatcheck.decision.decide import NeedBody, World
from coatcheck.decision.handle import Claims
from coatcheck.decision.head import HOP_BY_HOP
from coatcheck.decision.message import Destination, Edits, Headers, Peer, RequestHead, ResponseHead
from coatcheck.decision.policy import (
    BasicInjection,
    Credential,
    HandlesInBody,
    LimitKind,
    Rule,
    SigV4Injection,
    match,
)
from coatcheck.decision.response import (
    Framing,
    ResponsePlan,
    plan_request_for_scrubbing,
    plan_response,
    plan_trailers,
)
from coatcheck.decision.scrub import Patterns, Scrubber, scrub_bytes
from coatcheck.decision.search import find
from coatcheck.decision.session import Session, alive
from coatcheck.decision.substitute import check_secret, substitute
from coatcheck.decision.verdict import Deny, Inject, Pass, Reason
from coatcheck.sigv4.keys import parse_aws_keys
from coatcheck.sigv4.resign import resign
from coatcheck.stores import Secret
from coatcheck.telemetry.events import Alarm, Completion

if TYPE_CHECKING:
    from coatcheck.exchange import Exchange


class SessionSecrets:
    """The secrets that each session was served, compiled for scrubbing: every answer to a session loses
    every one of them (I1), also those that a rotation has replaced."""

    KEPT = 16
    """Values a session: more than it has credentials, counting a rotation or two of each."""
    COMPILED = 512
    """Compiled sets kept; sessions with the same secrets share one."""

    def __init__(self) -> None:
        self._values: dict[str, OrderedDict[tuple[str, str], None]] = {}
        self._patterns: dict[str, Patterns] = {}
        self._compiled: OrderedDict[frozenset[tuple[str, str]], Patterns] = OrderedDict()

    def add(self, session_id: str, value: str, username: str) -> None:
        values = self._values.setdefault(session_id, OrderedDict())
        if (value, username) in values:
            return
        values[(value, username)] = None
        if len(values) > self.KEPT:
            values.popitem(last=False)
        self._patterns[session_id] = self._compile(frozenset(values))

    def patterns(self, session_id: str) -> Patterns | None:
        return self._patterns.get(session_id)

    def forget(self, session_id: str) -> None:
        self._values.pop(session_id, None)
        self._patterns.pop(session_id, None)

    def _compile(self, values: frozenset[tuple[str, str]]) -> Patterns:
        known = self._compiled.get(values)
        if known is None:
            known = Patterns.of([value for value, _ in values], {name for _, name in values if name})
            self._compiled[values] = known
            if len(self._compiled) > self.COMPILED:
                self._compiled.popitem(last=False)
        return known


class Call:
    """One request. Planes call its methods in the order of the request; each may answer with a Deny."""

    def __init__(
        self, exchange: "Exchange", request_id: str, peer: Peer, destination: Destination, head: RequestHead
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
        self.hashes_body = 0
        """Bytes of body to buffer because its hash is signed (SigV4)."""
        self.entered = False
        """The limits have counted this call in; `complete` counts it out."""
        self.committed = False
        """The head with its secrets was handed to the plane."""
        self.status = 0
        self._exchange = exchange
        self._secrets: dict[str, Secret] = {}
        self._epoch = -1
        self._policy: object = None
        self._sent = 0
        self._received = 0
        self._search: BodySearch | None = None
        self._scrubber: BodyScrubber | None = None
        self._patterns: Patterns | None = None
        self._hits = 0
        self._only_signed = False
        """A SigV4 request without session token: no secret travels, so ranges are harmless (s3transfer)."""
        self._bodiless = False
        self._ended = False
        self._on_end: Callable[[Call], None] | None = None

    def on_end(self, callback: "Callable[[Call], None]") -> None:
        """Call `callback` once the request has ended, however."""
        self._on_end = callback

    # --- before the request leaves ------------------------------------------------------------------

    @property
    def body_limit(self) -> int:
        """Bytes of body to buffer before `receive_body`; 0: stream it."""
        return self.need.limit if self.need is not None else self.hashes_body

    @property
    def injected(self) -> bool:
        """Whether a secret stands in the request, so that an answer could echo it."""
        return isinstance(self.verdict, Inject) and not self._only_signed

    def deny(self, denial: Deny) -> None:
        """Refuse; a refusal that stands is never replaced by a milder one."""
        if self.denial is None:
            self.denial = denial
        self._leave()

    def hold(self, credential: Credential, secret: Secret) -> None:
        self._secrets[credential.name] = secret

    def foreign_claims(self, world: World) -> tuple[Claims, ...]:
        """The genuine handles of other sessions in this head."""
        claims = (world.claims_of(item.text) for item in find(self.head, world.references, world.known))
        mine = self.session.id if self.session else ""
        return tuple(c for c in claims if isinstance(c, Claims) and c.sid != mine)

    def permitted(self) -> Deny | None:
        """Whether the verdict still holds now: the lease, revocations, and the policy as it is (I5).

        Looked at before the first upstream byte and at each chunk (TOCTOU: OpenShell PR 2510; decisions
        frozen for the life of a tunnel: OneCLI #178).
        """
        session, rule = self.session, self.rule
        if session is None or rule is None or self._ended:
            return Deny(Reason.INTERNAL_ERROR, "no verdict")
        state = self._exchange.state
        sessions = state.sessions
        current = sessions.by_id.get(session.id)
        if current is None or current.generation != session.generation:
            return Deny(Reason.SESSION_REVOKED, "the session has ended")
        dead = alive(current, state.clock.now())
        if dead is not None:
            return dead
        if sessions.epoch == self._epoch:
            return None
        if self._handle_revoked(current):
            return Deny(Reason.HANDLE_REVOKED, "while the request ran")
        policy = state.policies.get(session.policy)
        if policy is not self._policy:
            still = match(policy, self.destination, self.head) if policy else Deny(Reason.POLICY_MISSING)
            if isinstance(still, Deny):
                return still
            self._policy = policy
        self._epoch = sessions.epoch
        return None

    def _handle_revoked(self, session: Session) -> bool:
        if not session.revoked_handles or not isinstance(self.verdict, Inject):
            return False
        for injection in self.verdict.injections:
            claims = self._exchange.state.genuine.claims_of(injection.handle) if injection.handle else None
            if isinstance(claims, Claims) and claims.jti in session.revoked_handles:
                return True
        return False

    def commit(self, body: bytes) -> Edits | Deny:
        """The last look and the edits, secrets included. The plane sends them without another await."""
        denial = self.denial or self.permitted()
        if denial is not None:
            return denial
        edits = self._edits(body)
        if isinstance(edits, Deny):
            return edits
        if not self.head.end_stream and not self.need:
            self._search = self._body_search()
        self._patterns = self._exchange.secrets.patterns(self.session.id) if self.session else None
        self.committed = True
        return edits

    def _edits(self, body: bytes) -> Edits | Deny:
        verdict = self.verdict
        if verdict is None:
            return Deny(Reason.INTERNAL_ERROR, "no verdict")
        edits = Edits()
        if isinstance(verdict, Inject):
            substituted = self._substitute(verdict, body)
            if isinstance(substituted, Deny):
                return substituted
            edits = substituted
            for injection in verdict.injections:
                self._remember(injection.credential)
        has_secrets = self._exchange.secrets.patterns(verdict.session.id) is not None
        scrubbing = plan_request_for_scrubbing(self.head, injected=self.injected) if has_secrets else Edits()
        changed = scrubbing.set_headers
        hop = tuple(name for name, _ in self.head.headers if name in HOP_BY_HOP)
        if "upgrade" in {name for name, _ in self.head.headers}:
            # The switch needs its Connection header; extensions would hide frames (planes/websocket).
            hop = (*(n for n in hop if n != "connection"), "sec-websocket-extensions")
            changed = (*changed, ("connection", "Upgrade"))
        return Edits(
            set_headers=(*changed, *edits.set_headers),
            remove_headers=(*hop, *scrubbing.remove_headers, *edits.remove_headers),
            target=edits.target,
            body=edits.body,
        )

    def _substitute(self, verdict: Inject, body: bytes) -> Edits | Deny:
        for injection in verdict.injections:
            kind = injection.credential.inject
            if isinstance(kind, SigV4Injection):
                return self._resign(verdict, injection.credential, kind, injection.handle, body)
        values = {name: secret.reveal() for name, secret in self._secrets.items()}
        return substitute(self.head, body if self.need else None, verdict.injections, values)

    def _resign(
        self, verdict: Inject, credential: Credential, kind: SigV4Injection, handle: str | None, body: bytes
    ) -> Edits | Deny:
        if len(verdict.injections) != 1 or handle is None:
            return Deny(Reason.HANDLE_MISPLACED, "a signed request carries one credential")
        keys = parse_aws_keys(self._secrets[credential.name].reveal())
        if isinstance(keys, Deny):
            return keys
        self._only_signed = keys.session_token is None
        now = self._exchange.state.clock.now().wall
        digest = hashlib.sha256(body).hexdigest() if self.hashes_body else None
        return resign(self.head, self.destination, digest, handle, keys, kind, now)

    def _remember(self, credential: Credential) -> None:
        """From now on every answer to this session loses this secret."""
        if not credential.scrub or self.session is None:
            return
        value = self._secrets[credential.name].reveal()
        if isinstance(credential.inject, SigV4Injection):
            keys = parse_aws_keys(value)
            parts: tuple[str, ...] = () if isinstance(keys, Deny) else keys.to_scrub
        else:
            parts = (value,)
        username = credential.inject.username if isinstance(credential.inject, BasicInjection) else None
        for part in parts:
            if check_secret(credential, part) is None:
                self._exchange.secrets.add(self.session.id, part, username or "")

    # --- the body on its way up ---------------------------------------------------------------------

    def upload(self, chunk: bytes) -> bytes | Deny:
        """One chunk of body, as it may leave."""
        denial = self.permitted() or self._charge(LimitKind.BYTES_UP, len(chunk))
        if denial is not None:
            return denial
        self._sent += len(chunk)
        limit = self.rule.max_request_bytes if self.rule else 0
        if limit and self._sent > limit:
            return Deny(Reason.BODY_TOO_LARGE)
        if self._search is None:
            return chunk
        out = self._search.feed(chunk)
        return self._seen_in_body(self._search) or out

    def upload_end(self) -> bytes | Deny:
        if self._search is None:
            return b""
        rest = self._search.close()
        return self._seen_in_body(self._search) or rest

    def _body_search(self) -> BodySearch:
        state = self._exchange.state
        masking = self.rule is not None and self.rule.handles_in_body is HandlesInBody.MASK
        return BodySearch(state.genuine.references, state.genuine.is_reference, masking=masking)

    def _seen_in_body(self, search: BodySearch) -> Deny | None:
        """A handle in a body is inert: told once a session and credential, refused only where policy says."""
        for text in search.take():
            claims = self._exchange.state.genuine.claims_of(text)
            if not isinstance(claims, Claims) or self.session is None or self.rule is None:
                continue
            if self._exchange.first_report(self.session.id, claims.cred):
                self._exchange.emit(
                    Alarm(
                        at=self._exchange.state.clock.now().wall,
                        reason=Reason.HANDLE_MISPLACED,
                        session=self.session.id,
                        tenant=self.session.tenant,
                        credential=claims.cred,
                        detail=f"handle {claims.jti} in a body to {self.destination.url}",
                    )
                )
            if self.rule.handles_in_body is HandlesInBody.REFUSE:
                return Deny(Reason.HANDLE_MISPLACED, f"credential {claims.cred} in a body", alarm=True)
        return None

    def _charge(self, kind: LimitKind, count: int) -> Deny | None:
        if self.session is None or self.rule is None or not self.rule.limits:
            return None
        now = self._exchange.state.clock.now().monotonic
        return self._exchange.buckets.charge(self.session, self.rule, self.credentials, kind, count, now)

    # --- the answer ---------------------------------------------------------------------------------

    def respond(self, response: ResponseHead, *, end_stream: bool) -> ResponsePlan | Deny:
        """What must happen to the answer."""
        self.status = response.status
        denial = self.permitted()
        if denial is not None:
            return denial
        assert self.rule is not None  # noqa: S101 - permitted() saw it
        if self.session is not None:  # another request may have fetched another secret meanwhile
            self._patterns = self._exchange.secrets.patterns(self.session.id)
        plan = plan_response(
            self.head,
            response,
            injected=self.injected,
            patterns=self._patterns,
            keep_set_cookie=self._keeps_cookies(),
            websocket=self.rule.websocket,
        )
        if isinstance(plan, Deny):
            return plan
        self._hits += plan.hits
        self._bodiless = plan.framing is Framing.NONE and response.status != 101
        if plan.scrub_body and self._patterns is not None and not end_stream:
            self._scrubber = BodyScrubber(self._patterns, plan.codings)
        return plan

    def _keeps_cookies(self) -> bool:
        if not isinstance(self.verdict, Inject):
            return True
        return all(injection.credential.keep_set_cookie for injection in self.verdict.injections)

    def download(self, chunk: bytes) -> list[bytes] | Deny:
        """One chunk of the answer, as the sandbox may see it."""
        denial = self.permitted() or self._charge(LimitKind.BYTES_DOWN, len(chunk))
        if self._bodiless and chunk:
            denial = Deny(Reason.UPSTREAM_RESPONSE_REFUSED, "a body where there is none")
        if denial is not None:
            return denial
        self._received += len(chunk)
        limit = self.rule.max_response_bytes if self.rule else 0
        if limit and self._received > limit:
            return Deny(Reason.BODY_TOO_LARGE, "the answer")
        if self._scrubber is None:
            return [chunk]
        try:
            return self._scrubber.feed(chunk)
        except CodingRefused as refused:
            return Deny(Reason.UPSTREAM_RESPONSE_REFUSED, str(refused))

    def download_end(self) -> list[bytes] | Deny:
        if self._scrubber is None:
            return []
        try:
            return self._scrubber.finish()
        except CodingRefused as refused:
            return Deny(Reason.UPSTREAM_RESPONSE_REFUSED, str(refused))

    def trailers(self, trailers: Headers) -> Headers | Deny:
        """gRPC's status travels in trailers: they lose secrets as headers do."""
        planned = plan_trailers(trailers, self._patterns)
        if isinstance(planned, Deny):
            return planned
        clean, hits = planned
        self._hits += hits
        return clean

    # --- WebSocket ----------------------------------------------------------------------------------

    def websocket_message(self, *, from_client: bool) -> "MessageFilter":
        return MessageFilter(self, from_client=from_client)

    def websocket_control(self, payload: bytes, *, from_client: bool) -> bytes | Deny:
        """A ping's payload or a close reason: at most 125 bytes (RFC 6455 5.5), scrubbed like the rest."""
        denial = self.permitted()
        if denial is not None:
            return denial
        if from_client or self._patterns is None:
            return payload
        clean, hits = scrub_bytes(self._patterns, payload)
        self._hits += hits
        return clean

    # --- the end ------------------------------------------------------------------------------------

    def complete(self, aborted: Reason | None) -> None:
        """Counted once, whatever comes after. Later calls answer Deny."""
        if self._ended:
            return
        self._leave()
        self._ended = True
        self._exchange.calls.discard(self)
        if self._on_end is not None:
            self._on_end(self)
        if not self.committed or self.session is None:
            return
        scrubbed = self._hits + (self._scrubber.hits if self._scrubber else 0)
        self._exchange.tell(
            Completion(
                at=self._exchange.state.clock.now().wall,
                request_id=self.request_id,
                session=self.session.id,
                status=self.status,
                bytes_up=self._sent,
                bytes_down=self._received,
                seconds=time.perf_counter() - self.started,
                scrubbed=scrubbed,
                aborted=aborted,
            )
        )

    def _leave(self) -> None:
        if self.entered and self.session is not None and self.rule is not None:
            self.entered = False
            self._exchange.buckets.leave(self.session, self.rule, self.credentials)

    # used by MessageFilter
    def count_hits(self, hits: int) -> None:
        self._hits += hits

    @property
    def patterns(self) -> Patterns | None:
        return self._patterns


class MessageFilter:
    """One WebSocket message, fragment by fragment."""

    def __init__(self, call: Call, *, from_client: bool) -> None:
        self._call = call
        self._from_client = from_client
        scrubs = not from_client and call.patterns is not None
        self._scrubber = Scrubber(call.patterns) if scrubs and call.patterns is not None else None

    def feed(self, data: bytes) -> bytes | Deny:
        if self._from_client:
            return self._call.upload(data)
        out = self._call.download(data)
        if isinstance(out, Deny):
            return out
        return self._scrubber.feed(data) if self._scrubber else data

    def finish(self) -> bytes | Deny:
        if self._from_client:
            return self._call.upload_end()
        if self._scrubber is None:
            return b""
        rest = self._scrubber.finish()
        self._call.count_hits(self._scrubber.hits)
        return rest
