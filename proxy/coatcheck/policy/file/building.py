"""Reviewed models -> decision values. Nothing can go wrong here that `review` did not look at."""

from collections.abc import Iterable
from datetime import UTC, datetime, time
from types import MappingProxyType
from typing import Final

from coatcheck.decision.approval import Asking
from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.observation import Observation
from coatcheck.decision.policy import (
    Credential,
    Limit,
    LimitKind,
    LimitScope,
    Policy,
    Rule,
    Shape,
)
from coatcheck.decision.session import DEFAULT_ORIGIN_CLASSES
from coatcheck.policy.file.models import (
    AskSpec,
    CredentialSpec,
    Document,
    FilesystemSpec,
    LimitsSpec,
    ObserveSpec,
    RuleSpec,
)

DEFAULT_REQUESTS: Final = Limit(LimitKind.REQUESTS, 6000, 60.0, 10_000, LimitScope.SESSION)
"""Of a rule that says nothing of requests: an agent that installs a large project stays below the burst,
and one that loops writes some 70 KB/s into the audit log, not a disk full."""


def build_policy(name: str, sha256: str, document: Document) -> Policy:
    """The policy that `document` describes."""
    return Policy(
        name=name,
        owner=document.owner,
        sha256=sha256,
        credentials=MappingProxyType(
            {key: build_credential(key, spec) for key, spec in document.credentials.items()}
        ),
        rules=tuple(build_rule(spec) for spec in document.rules),
        filesystem=build_filesystem(document.filesystem) if document.filesystem else None,
        observe=build_observation(document.observe) if document.observe else None,
    )


def build_observation(spec: ObserveSpec) -> Observation:
    """Until the end of that day, UTC."""
    end = datetime.combine(spec.until, time.max, UTC)
    return Observation(spec.reason, end.timestamp())


def build_filesystem(spec: FilesystemSpec) -> Filesystem:
    return Filesystem(tuple(spec.allow_write), tuple(spec.deny_read))


def build_credential(name: str, spec: CredentialSpec) -> Credential:
    inject, *others = (place.build() for place in spec.places)
    return Credential(
        name=name,
        secret=spec.secret,
        hosts=tuple(spec.hosts),
        inject=inject,
        other_injectors=tuple(others),
        methods=frozenset(spec.methods),
        paths=tuple(spec.paths),
        env=spec.env,
        shape=Shape(spec.shape.prefix, spec.shape.length or 0) if spec.shape else None,
        handle_required=spec.handle == "required",
        origins=frozenset(spec.origins) or DEFAULT_ORIGIN_CLASSES,
        isolation=spec.isolation,
        plain_http=spec.plain_http is not None,
        keep_set_cookie=spec.keep_set_cookie,
        scrub=spec.scrub is None,
        revoke_on_theft=spec.revoke_on_theft,
        inherit=spec.inherit,
    )


def build_rule(spec: RuleSpec) -> Rule:
    return Rule(
        name=spec.name,
        hosts=tuple(spec.hosts),
        methods=frozenset(spec.methods),
        paths=tuple(spec.paths),
        ports=frozenset(rule_ports(spec)),
        credentials=tuple(spec.credentials),
        limits=build_all_limits(spec.limits),
        plain_http=spec.plain_http,
        websocket=spec.websocket,
        http2=spec.http2,
        tunnel=spec.tunnel,
        handles_in_body=spec.handles_in_body,
        scrub=spec.scrub is None,
        compression=spec.compression,
        max_request_bytes=spec.max_request or 0,
        max_response_bytes=spec.max_response or 0,
        asking=build_asking(spec.ask) if spec.ask is not None else None,
    )


def build_asking(spec: AskSpec) -> Asking:
    defaults = Asking()
    return Asking(spec.wait or defaults.wait, spec.remember or defaults.remember, spec.same, spec.whose)


def rule_ports(spec: RuleSpec) -> list[int]:
    return spec.ports or ([80, 443] if spec.plain_http else [443])


def build_all_limits(specs: Iterable[LimitsSpec]) -> tuple[Limit, ...]:
    """As written; requests are always limited (ADR 25)."""
    limits = tuple(limit for spec in specs for limit in build_limits(spec))
    limited = any(limit.kind is LimitKind.REQUESTS for limit in limits)
    return limits if limited else (*limits, DEFAULT_REQUESTS)


def build_limits(spec: LimitsSpec) -> list[Limit]:
    """One limit a kind. Bytes may come at once: a large answer is one event to its reader."""
    found: list[Limit] = []
    if spec.requests:
        burst = spec.burst or spec.requests.count
        found.append(Limit(LimitKind.REQUESTS, spec.requests.count, spec.requests.period, burst, spec.per))
    if spec.concurrent:
        found.append(Limit(LimitKind.CONCURRENT, spec.concurrent, 1.0, spec.concurrent, spec.per))
    for kind, rate in ((LimitKind.BYTES_UP, spec.bytes_up), (LimitKind.BYTES_DOWN, spec.bytes_down)):
        if rate:
            found.append(Limit(kind, rate.count, rate.period, rate.count, spec.per))
    return found
