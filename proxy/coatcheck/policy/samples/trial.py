"""A sample, tried: the core's own `decide` is asked as the daemon would ask it, with a session made for it.

The handles are stand-ins of this module; `DecisionContext.claims_of` says what they mean. No key, no clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from coatcheck.decision.decide import DecisionContext, Identified, NeedBody, decide, decide_body
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Destination, Origin, Peer, RequestHead
from coatcheck.decision.policy import (
    Credential,
    Policy,
    Rule,
    match,
)
from coatcheck.decision.search import MARK
from coatcheck.decision.session import Now, Session
from coatcheck.decision.verdict import Inject
from coatcheck.policy.samples.samples import Sample, SampleSession

NO_HANDLE: Final = "none"
PLACE: Final = "{handle}"
"""In a sample's URL: the handle stands here, whatever the credential says."""
_NOW: Final = Now(wall=1.0, monotonic=1.0)


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that was answered otherwise than expected."""

    sample: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.sample}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a policy answers to a sample."""

    sample: Sample
    rule: str | None
    """The rule that allows the request, or that comes closest to it."""
    reason: Reason | None
    """None: allowed."""
    credentials: frozenset[str] = frozenset()
    asks: bool = False
    """An allowed request waits for somebody's yes."""

    @property
    def failure(self) -> Failure | None:
        """None when the answer is the expected one."""
        expected, got = self._expected(), self._got()
        return None if expected == got else Failure(self.sample.title, expected, got)

    def _expected(self) -> str:
        sample = self.sample
        head = f"deny {sample.reason}" if sample.expect == "deny" else "allow"
        return head + _by(sample.rule) + _with(sample.credentials) + _asks(sample.asks)

    def _got(self) -> str:
        sample = self.sample
        rule = _by(self.rule) if sample.rule else ""
        if self.reason is not None:
            return f"deny {self.reason}{rule}"
        asks = self.asks if sample.asks is not None else None
        return (
            f"allow{rule}" + _with(self.credentials if sample.credentials is not None else None) + _asks(asks)
        )


def run_samples(policy: Policy, samples: Iterable[Sample]) -> list[Failure]:
    """What `policy` answers otherwise than its samples expect; empty when all is well."""
    return [failure for sample in samples if (failure := try_sample(policy, sample).failure)]


def try_sample(policy: Policy, sample: Sample) -> Trial:
    """The answer to one sample. Without `handle`, the request shows whichever handle of the session fits."""
    if policy.observe is not None:
        policy = replace(
            policy, observe=None
        )  # for a time, on some daemons: samples say what is meant to stay
    destination = sample.request.destination
    if destination is None:
        return Trial(sample, None, Reason.HOST_FORM_REFUSED)
    session = _session(policy, sample.session or SampleSession())
    if sample.handle is not None:
        shown = [None if sample.handle == NO_HANDLE else sample.handle]
    else:
        found = match(policy, destination, _head(sample, None))
        shown = [*(found.credentials if isinstance(found, Rule) else ()), None]
    trials = [_try(policy, sample, session, destination, name) for name in shown]
    allowed = [trial for trial in trials if trial.reason is None]
    if not allowed:
        return trials[0]
    together = frozenset[str]().union(*(trial.credentials for trial in allowed))
    return replace(allowed[0], credentials=together)


def _try(
    policy: Policy, sample: Sample, session: Session, destination: Destination, shown: str | None
) -> Trial:
    credential = policy.credentials.get(shown) if shown else None
    if shown and credential is None:
        return Trial(sample, None, Reason.HANDLE_OUT_OF_SCOPE)
    handle = _handle(credential) if credential else ""
    context = DecisionContext(
        now=_NOW,
        by_origin={session.origin: session},
        policies={policy.name: policy},
        claims_of=lambda text: _claims(session, shown) if text == handle else Deny(Reason.HANDLE_UNKNOWN),
        references=(credential.shape,) if credential and credential.shape and credential.shape.length else (),
        known=lambda text: text == handle,
    )
    head = _head(sample, credential)
    verdict = decide(Peer("sample", (session.origin,)), destination, head, context)
    if isinstance(verdict, NeedBody):  # the handle is in the body: `_head` leaves no other open
        final = decide_body(verdict, handle.encode(), context)
        verdict = Identified(session, final) if isinstance(final, Deny) else final
    match verdict:
        case Identified(_, denial):
            return Trial(sample, denial.rule, denial.reason)
        case Deny():
            return Trial(sample, verdict.rule, verdict.reason)
        case Inject():
            names = {found.credential.name for found in verdict.injections}
            return Trial(sample, verdict.rule.name, None, frozenset(names), verdict.rule.asking is not None)
        case _:
            return Trial(sample, verdict.rule.name, None, asks=verdict.rule.asking is not None)


def _session(policy: Policy, spec: SampleSession) -> Session:
    granted = policy.credentials if spec.credentials is None else spec.credentials
    return Session(
        id="sample",
        tenant="sample",
        subject="sample",
        policy=policy.name,
        origin=Origin(spec.origin, "sample"),
        credentials=frozenset(granted),
        isolation=spec.isolation,
        generation=1,
        opened_at=0.0,
        expires_at=3600.0,
        lease_seconds=3600.0,
        lease_deadline=3600.0,
    )


def _claims(session: Session, name: str | None) -> Claims:
    return Claims(session.id, name or "", session.generation, 0, 3600, "sample")


def _handle(credential: Credential) -> str:
    """The bare text by which the core knows it; unlike for two credentials."""
    body = credential.name.encode().hex()
    shape = credential.shape
    if shape is not None and shape.length:
        return shape.prefix + (body * shape.length)[: shape.length]
    return MARK + body


def _head(sample: Sample, credential: Credential | None) -> RequestHead:
    """The request as a client with that credential's handle sends it."""
    request = sample.request
    headers = (("upgrade", "websocket"),) if sample.websocket else ()
    head = RequestHead(request.method, request.target, headers)
    if credential is None:
        return head
    shape = credential.shape
    value = (shape.prefix if shape and not shape.length else "") + _handle(credential)
    if PLACE in request.target:
        return replace(head, target=request.target.replace(PLACE, value))
    return credential.inject.shown(head, value)


def _asks(asks: bool | None) -> str:
    return "" if asks is None else " after an approval" if asks else " without asking"


def _by(rule: str | None) -> str:
    return f" by {rule}" if rule else ""


def _with(credentials: Iterable[str] | None) -> str:
    return "" if credentials is None else f" with {', '.join(sorted(credentials)) or 'no credential'}"
