"""What the audit log is told of one verdict."""

import time

from coatcheck.decision.denial import Deny
from coatcheck.decision.search import mask
from coatcheck.decision.steering import describe, read_steering
from coatcheck.decision.verdict import Inject
from coatcheck.request.call import Call
from coatcheck.state.state import State
from coatcheck.telemetry.events import Alarm, Decision, Outcome


def decision(call: Call, state: State) -> Decision:
    """The record of `call`'s verdict, as it is now. No handle and no query is in it."""
    denial, session = call.denial, call.session
    policy = state.policies.get(session.policy) if session is not None else None
    if denial is not None:
        outcome = Outcome.DENY
    else:
        outcome = Outcome.INJECT if isinstance(call.verdict, Inject) else Outcome.PASS
    path = call.head.path
    if denial is not None or "cch" in path or "%" in path or state.genuine.references:
        path = mask(path, state.genuine.references)
    return Decision(
        at=state.clock.now().wall,
        request_id=call.request_id,
        session=session.id if session else "",
        tenant=session.tenant if session else "",
        subject=session.subject if session else "",
        policy=session.policy if session else "",
        policy_hash=policy.sha256 if policy else "",
        outcome=outcome,
        reason=denial.reason if denial else None,
        detail=denial.detail if denial else _also(call, state),
        rule=(denial.rule if denial and denial.rule else call.rule.name if call.rule else ""),
        credentials=call.credentials,
        method=mask(call.head.method, state.genuine.references) if denial else call.head.method,
        destination=call.destination.url,
        path=path,
        origin=session.origin.kind if session else "",
        alarm=denial.alarm if denial else False,
        added_seconds=time.perf_counter() - call.started,
        original=str(call.peer.original) if call.peer.original is not None else "",
        approved_by=call.approved_by,
        handle_of=call.inherited_from(),
    )


def _also(call: Call, state: State) -> str:
    """What else an allowed request may be taken for, and the other rules whose terms hold; nearly always
    nothing."""
    rule = call.rule
    steering = read_steering(call.destination, call.head) if call.head.method != "CONNECT" else None
    if steering is None and (rule is None or not rule.further):
        return ""
    readings = (mask(each, state.genuine.references) for each in describe(steering, call.head.path))
    also = (f"rule {other.name}" for other in (rule.further if rule is not None else ()))
    said = "; ".join((*readings, *also))
    return f"also: {said}" if said else ""


def alarm(call: Call, denial: Deny, state: State) -> Alarm:
    """What somebody wants to be woken for: `denial` says why."""
    session = call.session
    return Alarm(
        at=state.clock.now().wall,
        reason=denial.reason,
        session=session.id if session else "",
        tenant=session.tenant if session else "",
        credential=call.credentials[0] if call.credentials else "",
        detail=denial.detail,
    )
