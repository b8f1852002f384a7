"""What another policy would have said of a request, from what the audit log holds of it.

Where that is not enough, the answer is UNKNOWN and says what is missing: nothing is guessed. Limits are not
simulated; a handle is taken to have stood where the other policy expects it, and a request that was refused
for lack of a rule is taken to have shown none, one with a credential to have shown its handle.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.observing import LACKING
from coatcheck.decision.policy import (
    Credential,
    Policy,
    Rule,
    credential_allows,
    host_allowed,
    match,
    tunnel_rule,
)
from coatcheck.decision.session import Isolation


class Change(StrEnum):
    """What would be different."""

    SAME = "same"
    ALLOWS = "allows"
    """It was refused."""
    REFUSES = "refuses"
    """It was allowed."""
    RULE = "rule"
    """Allowed as before, by another rule."""
    REASON = "reason"
    """Refused as before, for another reason."""
    UNKNOWN = "unknown"
    """It depends on what the log does not hold."""
    UNTOUCHED = "untouched"
    """No policy decides this: who asked, a form, our own state."""


@dataclass(frozen=True, slots=True)
class Replayed:
    change: Change
    then: str
    """The other policy's answer in words, or what is missing."""


BY_MATCH = frozenset(
    {
        Reason.POLICY_MISSING,
        Reason.HOST_NOT_ALLOWED,
        Reason.PORT_NOT_ALLOWED,
        Reason.METHOD_NOT_ALLOWED,
        Reason.PATH_NOT_ALLOWED,
        Reason.PLAIN_HTTP_REFUSED,
        Reason.PATH_FORM_REFUSED,
    }
)
"""Refusals for lack of a rule: method, host and path decide."""
BY_HANDLE = frozenset(
    {
        Reason.HANDLE_WRONG_HOST,
        Reason.HANDLE_OUT_OF_SCOPE,
        Reason.HANDLE_MISPLACED,
        Reason.ORIGIN_CLASS_REFUSED,
        Reason.ISOLATION_REFUSED,
    }
)
AFTERWARDS = frozenset(
    {
        Reason.RATE_LIMITED,
        Reason.CONCURRENCY_LIMITED,
        Reason.BYTES_LIMITED,
        Reason.CAPACITY,
        Reason.SECRET_UNAVAILABLE,
        Reason.SECRET_MISSING,
        Reason.SECRET_UNUSABLE,
        Reason.TOO_MANY_SECRETS,
        Reason.AUDIT_UNAVAILABLE,
        Reason.SHARED_STATE_SILENT,
        Reason.APPROVAL_REFUSED,
        Reason.APPROVAL_TIMEOUT,
    }
)
"""Refusals of what the policy had allowed, when a rule stands in the record."""
BY_HEADERS = frozenset({Reason.HANDLE_MISSING, Reason.PROTOCOL_REFUSED})
"""Refusals that a policy decides by headers of which the log holds only a part."""
NOT_BY_POLICY = frozenset(
    {
        Reason.ORIGIN_UNKNOWN,
        Reason.SESSION_EXPIRED,
        Reason.LEASE_LAPSED,
        Reason.SESSION_REVOKED,
        Reason.HOST_FORM_REFUSED,
        Reason.HEADER_FORM_REFUSED,
        Reason.FRAMING_REFUSED,
        Reason.AUTHORITY_MISMATCH,
        Reason.ADDRESS_REFUSED,
        Reason.OWN_SURFACE,
        Reason.BODY_TOO_LARGE,
        Reason.BODY_UNREADABLE,
        Reason.PLANE_CANNOT,
        Reason.HANDLE_MALFORMED,
        Reason.HANDLE_UNKNOWN,
        Reason.HANDLE_EXPIRED,
        Reason.HANDLE_REVOKED,
        Reason.HANDLE_STOLEN,
        Reason.HANDLE_STALE,
        Reason.SECRET_PROBED,
        Reason.SIGNATURE_REFUSED,
        Reason.UPSTREAM_UNREACHABLE,
        Reason.UPSTREAM_TLS,
        Reason.UPSTREAM_TIMEOUT,
        Reason.UPSTREAM_RESPONSE_REFUSED,
        Reason.CLIENT_GONE,
        Reason.DRAINING,
        Reason.INTERNAL_ERROR,
    }
)
"""Refusals that another policy would repeat, or could only prevent by what is not in the log."""

_CREDENTIAL = re.compile(r"credential ([a-z0-9][a-z0-9_-]*)")


@dataclass(frozen=True, slots=True)
class Question:
    """A recorded request. `reason` None: it was allowed."""

    reason: Reason | None
    detail: str
    rule: str
    credentials: tuple[str, ...]
    method: str
    destination: Destination
    path: str
    origin: str
    whole: bool


def replay(policy: Policy | None, asked: Question) -> Replayed:
    """What `policy` (None: there would be none) would have answered."""
    reason = asked.reason
    allowed = reason is None or (reason in AFTERWARDS and asked.rule != "")
    decides = allowed or reason in BY_MATCH | BY_HANDLE | BY_HEADERS
    if not decides:
        return Replayed(Change.UNTOUCHED, "")
    if policy is None:
        gone = f"refused, {Reason.POLICY_MISSING}"
        if allowed:
            return Replayed(Change.REFUSES, gone)
        return Replayed(Change.SAME if reason is Reason.POLICY_MISSING else Change.REASON, gone)
    if not asked.whole:
        return Replayed(Change.UNKNOWN, "the log holds its path or method masked or cut")
    if asked.method == "CONNECT":
        return _connect(policy, asked, allowed)
    head = RequestHead(asked.method, asked.path, ())
    found = match(policy, asked.destination, head)
    if isinstance(found, Deny) and policy.observe is not None and found.reason in LACKING:
        return Replayed(Change.UNKNOWN, "no rule allows it, and the policy observes until a day")
    if isinstance(found, Deny):
        return _refused(found, asked, allowed)
    return _was_allowed(policy, found, asked, head) if allowed else _was_refused(policy, found, asked, head)


def _connect(policy: Policy, asked: Question, allowed: bool) -> Replayed:
    host, port = asked.destination.host, asked.destination.port
    denied = host_allowed(policy, host, port, tls=True)
    if denied is not None:
        return _refused(denied, asked, allowed)
    rule = tunnel_rule(policy, host, port)
    then = f"allowed unopened, rule {rule.name}" if rule else "opened, and judged request by request"
    if not allowed:
        return Replayed(Change.ALLOWS, then)
    return Replayed(Change.SAME if rule is not None and rule.name == asked.rule else Change.RULE, then)


def _refused(denial: Deny, asked: Question, allowed: bool) -> Replayed:
    then = f"refused, {denial.reason}" + (f", rule {denial.rule}" if denial.rule else "")
    if allowed:
        return Replayed(Change.REFUSES, then)
    # A handle that was refused is refused by any policy that has no rule for the request.
    alike = denial.reason is asked.reason or asked.reason in BY_HANDLE
    return Replayed(Change.SAME if alike else Change.REASON, then)


def _was_allowed(policy: Policy, rule: Rule, asked: Question, head: RequestHead) -> Replayed:
    unknown: list[str] = []
    for name in asked.credentials:
        credential = policy.credentials.get(name)
        if credential is None or name not in rule.credentials:
            return Replayed(Change.REFUSES, f"refused, rule {rule.name} does not give credential {name}")
        refused = credential_allows(credential, asked.destination, head)
        if refused is not None:
            return Replayed(Change.REFUSES, f"refused, {refused.reason}, {refused.detail}")
        if asked.origin not in {origin.value for origin in credential.origins}:
            return Replayed(Change.REFUSES, f"refused, {Reason.ORIGIN_CLASS_REFUSED}, credential {name}")
        if credential.isolation is not Isolation.NONE:
            unknown.append(f"{name} requires isolation {credential.isolation}, and which one it had")
    if not asked.credentials and rule.credentials:
        return _without_handle(policy, rule, was=None)
    if unknown:
        return Replayed(Change.UNKNOWN, f"{', '.join(unknown)} is not in the log")
    return Replayed(Change.SAME if rule.name == asked.rule else Change.RULE, _allowed_by(rule))


def _allowed_by(rule: Rule) -> str:
    return f"allowed{' once approved' if rule.asking is not None else ''}, rule {rule.name}"


def _was_refused(policy: Policy, rule: Rule, asked: Question, head: RequestHead) -> Replayed:
    if asked.reason is Reason.PROTOCOL_REFUSED:
        return Replayed(Change.UNKNOWN, "its Upgrade header is not in the log")
    if asked.reason in BY_HANDLE:
        return _with_handle(policy, rule, asked, head)
    if not rule.credentials:
        return Replayed(Change.ALLOWS, _allowed_by(rule))
    if asked.reason is Reason.HANDLE_MISSING:
        return _without_handle(policy, rule, was=Reason.HANDLE_MISSING)
    names = " or ".join(rule.credentials)
    return Replayed(
        Change.UNKNOWN, f"rule {rule.name}: whether it showed a handle ({names}) is not in the log"
    )


def _with_handle(policy: Policy, rule: Rule, asked: Question, head: RequestHead) -> Replayed:
    named = _CREDENTIAL.search(asked.detail)
    credential = policy.credentials.get(named[1]) if named else None
    came_without = asked.reason in {
        Reason.ORIGIN_CLASS_REFUSED,
        Reason.ISOLATION_REFUSED,
    }  # `handle: optional`
    if (
        named
        and not came_without
        and (
            credential is None
            or credential.name not in rule.credentials
            or credential_allows(credential, asked.destination, head) is not None
        )
    ):
        return Replayed(Change.SAME, f"refused, the handle does not belong to rule {rule.name}")
    return Replayed(Change.UNKNOWN, "where its handle stood and what its session was granted")


def _without_handle(policy: Policy, rule: Rule, was: Reason | None) -> Replayed:
    """Of a request that showed no handle, under a rule that has credentials."""
    credentials = [policy.credentials[name] for name in rule.credentials]
    if any(_may_come_otherwise(credentials)):
        what = "what its session was granted, or its body,"
        return Replayed(Change.UNKNOWN, f"rule {rule.name}: {what} is not in the log")
    then = f"refused, {Reason.HANDLE_MISSING}, rule {rule.name}"
    return Replayed(Change.REFUSES if was is None else Change.SAME, then)


def _may_come_otherwise(credentials: Iterable[Credential]) -> Iterable[bool]:
    for credential in credentials:
        yield not credential.handle_required or credential.inject.handle_in_body
