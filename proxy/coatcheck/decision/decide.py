"""Steps 2 to 4 in one straight line: whose request is it, is it allowed, are its handles genuine.

The first Deny wins. Each step is decided in its own module: `session`, `policy`, `search`, `handle`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from coatcheck.decision.body_search import BodySearch
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims, judge
from coatcheck.decision.injection import Found
from coatcheck.decision.message import Destination, Origin, Peer, RequestHead
from coatcheck.decision.observing import observed, observes
from coatcheck.decision.policy import (
    Credential,
    Policy,
    Rule,
    Shape,
    credential_allows,
    host_allowed,
    match,
    tunnel_rule,
)
from coatcheck.decision.search import find, placed
from coatcheck.decision.session import Now, Session, identify, isolation_at_least
from coatcheck.decision.synthetic import contradiction
from coatcheck.decision.verdict import Inject, Injection, Pass, Verdict


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """What is true at one moment, read once a request."""

    now: Now
    by_origin: Mapping[Origin, Session]
    policies: Mapping[str, Policy]
    claims_of: Callable[[str], Claims | Deny]
    """What a handle's text says, if it is genuine."""
    references: tuple[Shape, ...]
    """Shapes of issued reference handles, of all sessions."""
    known: Callable[[str], bool]
    """Whether a text is an issued reference."""
    by_id: Mapping[str, Session] = field(default_factory=dict)
    """For ancestors' handles; a session that is not in it is nobody's ancestor."""


@dataclass(frozen=True, slots=True)
class NeedBody:
    """Allowed so far; `decide_body` says the rest once the whole body is there."""

    session: Session
    rule: Rule
    credentials: tuple[Credential, ...]
    """Those whose handle may stand in the body."""
    injections: tuple[Injection, ...]
    """What the head already asks for."""
    limit: int
    """Bytes of body that may be buffered."""


@dataclass(frozen=True, slots=True)
class Identified:
    """A Deny after the session was known: the session is recorded with it."""

    session: Session
    denial: Deny


def decide(
    peer: Peer, destination: Destination, head: RequestHead, context: DecisionContext
) -> Deny | Identified | Pass | Inject | NeedBody:
    """The verdict on a request's head."""
    session = identify(peer, context.by_origin, context.now)
    if isinstance(session, Deny):
        return session
    policy = context.policies.get(session.policy)
    if policy is None:
        return Identified(session, Deny(Reason.POLICY_MISSING, f"policy {session.policy}"))
    # Before the policy: a connection that contradicts itself is not judged by one of its readings (I7).
    denied = contradiction(peer.original, destination.host, destination.port)
    rule = denied or match(policy, destination, head)
    found = find(head, context.references, context.known)
    if isinstance(rule, Deny):
        passing = observed(policy, rule, destination, head, context.now.wall)
        if passing is not None and denied is None and not found:
            return Pass(session, passing)
        return Identified(session, _with_handles(rule, found, session, policy, destination, context))
    verdict = _credentials(session, policy, rule, destination, head, found, context)
    for other in rule.further:
        if isinstance(verdict, Deny):
            break
        verdict = _agreed(
            verdict, _credentials(session, policy, other, destination, head, found, context), other
        )
    return Identified(session, _named(verdict, rule)) if isinstance(verdict, Deny) else verdict


def decide_connect(
    peer: Peer, host: str, port: int, context: DecisionContext
) -> Session | Pass | Deny | Identified:
    """Whether a tunnel to `host:port` may be opened at all: before any name is resolved (I6).

    Pass: its TLS is let through unopened, because the rule says `tunnel`. Session: it is opened.
    """
    session = identify(peer, context.by_origin, context.now)
    if isinstance(session, Deny):
        return session
    policy = context.policies.get(session.policy)
    if policy is None:
        return Identified(session, Deny(Reason.POLICY_MISSING, f"policy {session.policy}"))
    # A tunnel may carry plain HTTP or TLS; which one is seen, and judged, with its first request.
    contradicted = contradiction(peer.original, host, port)
    denial = contradicted or host_allowed(policy, host, port, tls=True)
    if denial is not None:
        passing = contradicted is None and observes(policy, denial, "https", port, context.now.wall)
        return session if passing else Identified(session, denial)
    rule = tunnel_rule(policy, host, port)
    return session if rule is None else Pass(session, rule)


def decide_body(need: NeedBody, body: bytes, context: DecisionContext) -> Verdict:
    """The verdict once the body is there: a declared handle in it is injected, others are inert (I4)."""
    search = BodySearch(context.references, context.known)
    search.feed(body)
    search.close()
    injections = list(need.injections)
    by_name = {credential.name: credential for credential in need.credentials}
    for text in search.take():
        claims = context.claims_of(text)
        if isinstance(claims, Deny) or claims.cred not in by_name:
            continue
        credential = by_name.pop(claims.cred)
        denial = _may_use(claims, need.session, credential, context)
        if denial is not None:
            return _named(denial, need.rule)
        injections.append(Injection(credential, text))
    if not injections:
        return _missing(need.rule, need.credentials)
    return Inject(need.session, need.rule, tuple(injections))


def _credentials(
    session: Session,
    policy: Policy,
    rule: Rule,
    destination: Destination,
    head: RequestHead,
    found: tuple[Found, ...],
    context: DecisionContext,
) -> Verdict | NeedBody:
    credentials = tuple(policy.credentials[name] for name in rule.credentials)
    injections: dict[str, Injection] = {}
    for item in found:
        injection = _judge(item, session, policy, credentials, destination, head, context)
        if isinstance(injection, Deny):
            return injection
        if injection.credential.name in injections:
            return Deny(Reason.HANDLE_MISPLACED, "the same credential twice", alarm=True)
        injections[injection.credential.name] = injection
    in_body = tuple(
        credential
        for credential in credentials
        if credential.inject.handle_in_body and credential.name not in injections
    )
    if in_body and not head.end_stream:
        for credential in in_body:
            denial = credential_allows(credential, destination, head)
            if denial is not None:
                return denial
        limit = min(credential.inject.buffers(head) for credential in in_body)
        return NeedBody(session, rule, in_body, tuple(injections.values()), limit)
    if injections:
        return Inject(session, rule, tuple(injections.values()))
    return _without_handle(session, rule, credentials, destination, head)


def _agreed(verdict: Pass | Inject | NeedBody, under: Verdict | NeedBody, other: Rule) -> Verdict | NeedBody:
    """What holds of `verdict` where the rule `other` has a say: what it refuses is refused, and only
    credentials that it gives as well are put in."""
    if isinstance(under, Deny):
        return _named(under, other)
    session, rule = verdict.session, verdict.rule
    injections = tuple(each for each in _injections(verdict) if each in _injections(under))
    if isinstance(verdict, NeedBody) and isinstance(under, NeedBody):
        credentials = tuple(each for each in verdict.credentials if each in under.credentials)
        if credentials:
            return NeedBody(session, rule, credentials, injections, min(verdict.limit, under.limit))
    if injections:
        return Inject(session, rule, injections)
    if isinstance(verdict, NeedBody) or isinstance(under, NeedBody):
        return Deny(Reason.HANDLE_MISSING, rule=other.name)
    return Pass(session, rule)


def _injections(verdict: Pass | Inject | NeedBody) -> tuple[Injection, ...]:
    return () if isinstance(verdict, Pass) else verdict.injections


def _judge(
    item: Found,
    session: Session,
    policy: Policy,
    credentials: tuple[Credential, ...],
    destination: Destination,
    head: RequestHead,
    context: DecisionContext,
) -> Injection | Deny:
    """Whether one handle in the head counts where it stands."""
    claims = context.claims_of(item.text)
    if isinstance(claims, Deny):
        return claims if claims.alarm else replace(claims, alarm=True)
    credential = policy.credentials.get(claims.cred)
    if not _of_its_line(claims, session) or credential is None:
        return _stolen_or_unknown(claims, session)
    denial = _may_use(claims, session, credential, context) or credential_allows(
        credential, destination, head
    )
    if denial is not None:
        return denial
    if credential not in credentials:
        return Deny(Reason.HANDLE_WRONG_HOST, f"credential {credential.name}: not in this rule", alarm=True)
    there = placed(item, credential)
    if there is None:
        return Deny(Reason.HANDLE_MISPLACED, f"credential {credential.name} in {item.location}", alarm=True)
    return Injection(there, item.text)


def _of_its_line(claims: Claims, session: Session) -> bool:
    """Its own handle, or one that its processes may hold from a life before this one."""
    return claims.sid == session.id or claims.sid in session.ancestors


def _stolen_or_unknown(claims: Claims, session: Session) -> Deny:
    if not _of_its_line(claims, session):
        detail = f"handle {claims.jti} of session {claims.sid}, used by session {session.id}"
        return Deny(Reason.HANDLE_STOLEN, detail, alarm=True)
    return Deny(Reason.HANDLE_OUT_OF_SCOPE, f"credential {claims.cred} is no longer in the policy")


def _may_use(
    claims: Claims, session: Session, credential: Credential, context: DecisionContext
) -> Deny | None:
    refused = judge(claims, session, credential, context.now, context.by_id)
    return refused or _origin_suffices(session, credential)


def _origin_suffices(session: Session, credential: Credential) -> Deny | None:
    if session.origin.kind not in credential.origins:
        detail = f"credential {credential.name} over {session.origin.kind}"
        return Deny(Reason.ORIGIN_CLASS_REFUSED, detail)
    if not isolation_at_least(session.isolation, credential.isolation):
        detail = f"credential {credential.name} wants {credential.isolation}, not {session.isolation}"
        return Deny(Reason.ISOLATION_REFUSED, detail)
    return None


def _without_handle(
    session: Session,
    rule: Rule,
    credentials: tuple[Credential, ...],
    destination: Destination,
    head: RequestHead,
) -> Verdict:
    """No handle in the head: free rules pass, `handle: optional` injects, the rest is told what lacks."""
    if not credentials:
        return Pass(session, rule)
    for credential in credentials:
        if credential.handle_required or credential.name not in session.credentials:
            continue
        if credential_allows(credential, destination, head) is not None:
            continue  # another credential of the rule may be for this path; nobody showed a handle
        denial = _origin_suffices(session, credential)
        return denial if denial is not None else Inject(session, rule, (Injection(credential, None),))
    return _missing(rule, credentials)


def _missing(rule: Rule, credentials: Iterable[Credential]) -> Deny:
    """Git and Java send what they hold only after a challenge (nono #890, #1025)."""
    asked = (credential.inject.challenge() for credential in credentials)
    challenge = next((each for each in asked if each is not None), None)
    return Deny(Reason.HANDLE_MISSING, rule=rule.name, challenge=challenge)


def _with_handles(
    denial: Deny,
    found: tuple[Found, ...],
    session: Session,
    policy: Policy,
    destination: Destination,
    context: DecisionContext,
) -> Deny:
    """A refused request that carries a handle to where it never belongs is an attempt to take it there:
    an alarm (I4). To its own host it is a client that policy restricts, which is no news."""
    if not found:
        return denial
    claims = context.claims_of(found[0].text)
    if isinstance(claims, Deny):
        return replace(denial, detail=denial.detail or claims.detail, alarm=True)
    if not _of_its_line(claims, session):
        return _stolen_or_unknown(claims, session)
    credential = policy.credentials.get(claims.cred)
    if credential is not None and any(host.matches(destination.host) for host in credential.hosts):
        return denial
    detail = f"credential {claims.cred}: {denial.reason}"
    return Deny(Reason.HANDLE_WRONG_HOST, detail, rule=denial.rule, alarm=True)


def _named(denial: Deny, rule: Rule) -> Deny:
    return denial if denial.rule is not None else replace(denial, rule=rule.name)
