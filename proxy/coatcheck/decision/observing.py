"""Observe mode: a request that only lacks a rule passes, without any credential, and is recorded so (ADR 26).

Everything else stays as it is: who asks, forms, addresses, limits, handles. A request that carries a handle
to where no rule allows it is refused and alarms as always, so nothing here can put a secret anywhere.
"""

from typing import Final

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.path import check_target
from coatcheck.decision.policy import HostPattern, Limit, LimitKind, LimitScope, Policy, Rule
from coatcheck.decision.steering import Steering, names_another_host, read_steering

OBSERVED: Final = "(observed)"
"""The rule's name in records. No policy file can hold a rule of this name."""

LACKING: Final = frozenset(
    {Reason.HOST_NOT_ALLOWED, Reason.PORT_NOT_ALLOWED, Reason.METHOD_NOT_ALLOWED, Reason.PATH_NOT_ALLOWED}
)
"""Refusals that a rule more would lift. Plain HTTP and other protocols are not among them."""

METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
MAX_REQUEST_BYTES: Final = 10 * 1_048_576
"""Up, in one request: what is uploaded where nobody said that it may be is bounded at least."""
_LIMITS = (
    Limit(LimitKind.REQUESTS, 600, 60.0, 600, LimitScope.SESSION),
    Limit(LimitKind.BYTES_UP, 100 * 1_048_576, 3600.0, 100 * 1_048_576, LimitScope.SESSION),
)


def observes(policy: Policy, denial: Deny, scheme: str, port: int, wall: float) -> bool:
    """Whether a connection or request that was refused with `denial` may pass to be looked at. `wall`: Unix
    seconds."""
    observation = policy.observe
    return (
        observation is not None
        and wall < observation.until
        and denial.reason in LACKING
        and not denial.alarm
        and scheme == "https"
        and port == 443
    )


def observed(
    policy: Policy, denial: Deny, destination: Destination, head: RequestHead, wall: float
) -> Rule | None:
    """The rule under which a refused request without any handle passes; None when it stays refused."""
    if not observes(policy, denial, destination.scheme, destination.port, wall):
        return None
    if check_target(head.target) is not None:
        return None  # a host that no rule names is refused before its target is looked at
    steering = read_steering(destination, head)
    if steering is not None and _leads_elsewhere(steering, destination.host):
        return None
    methods = steering.methods if steering is not None else (head.method,)
    if not METHODS.issuperset(methods):
        return None
    return Rule(
        name=OBSERVED,
        hosts=(HostPattern(destination.host),),
        methods=frozenset(methods),
        paths=(),
        limits=_LIMITS,
        max_request_bytes=MAX_REQUEST_BYTES,
    )


def _leads_elsewhere(steering: Steering, host: str) -> bool:
    """Whether headers make more of a request than another method: a draft of rules is made of what passes."""
    return bool(
        steering.problem
        or steering.upgrade
        or steering.paths
        or steering.besides
        or names_another_host(steering, host)
    )
