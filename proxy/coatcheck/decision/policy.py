"""What a security team allowed, compiled. `policy.file` builds these values; `match` reads them.

Matching is equality and suffix only: no regular expression meets attacker input.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coatcheck.decision.approval import Asking
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.host_index import HostIndex
from coatcheck.decision.injection import Injector
from coatcheck.decision.message import Destination, OriginClass, RequestHead
from coatcheck.decision.observation import Observation
from coatcheck.decision.path import ambiguous, canonical_path, check_target
from coatcheck.decision.session import DEFAULT_ORIGIN_CLASSES, Isolation
from coatcheck.decision.steering import Steering, names_another_host, read_steering


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Which secret: `store:mount/path#field`, e.g. `vault:secret/openai#api_key`. A name, never a value."""

    store: str
    mount: str
    path: str
    field: str

    def __str__(self) -> str:
        return f"{self.store}:{self.mount}/{self.path}#{self.field}"


@dataclass(frozen=True, slots=True)
class HostPattern:
    """An exact canonical host, or `*.suffix`, which matches one or more labels before the suffix."""

    suffix: str
    wildcard: bool = False

    def matches(self, host: str) -> bool:
        if self.wildcard:
            return host.endswith("." + self.suffix)
        return host == self.suffix

    def __str__(self) -> str:
        return f"*.{self.suffix}" if self.wildcard else self.suffix


@dataclass(frozen=True, slots=True)
class PathPattern:
    """An exact path, a prefix ending in `/**`, or segments in which `*` stands for one whole segment.

    `/repos/*/issues` matches `/repos/x/issues`; `/v1/**` matches `/v1` and everything below it.
    """

    segments: tuple[str, ...]
    prefix: bool = False

    def matches(self, path: str) -> bool:
        return self.matches_segments(path.split("/")[1:])

    def matches_segments(self, parts: list[str]) -> bool:
        """`parts` is a canonical path cut at its slashes, without the empty one before the first."""
        if len(parts) < len(self.segments) or (len(parts) > len(self.segments) and not self.prefix):
            return False
        # A loop, not all(): this runs for every request, and a generator costs more than the comparison.
        for want, have in zip(self.segments, parts, strict=False):
            if want != have and (want != "*" or have == ""):
                return False
        return True

    def __str__(self) -> str:
        return "/" + "/".join((*self.segments, "**") if self.prefix else self.segments)


class HandlesInBody(StrEnum):
    """What happens to a handle found in a body (I4)."""

    REPORT = "report"
    MASK = "mask"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a handle must look like for a client that checks.

    With `length` 0 the handle is `prefix` + a signed handle; otherwise it is a random reference of
    `prefix` + `length` characters [A-Za-z0-9], looked up by its hash.
    """

    prefix: str
    length: int = 0


@dataclass(frozen=True, slots=True)
class Credential:
    """Which secret, where it may go, where in the request it is put, and how."""

    name: str
    secret: SecretRef
    hosts: tuple[HostPattern, ...]
    inject: Injector
    also: tuple[Injector, ...] = ()
    """Further places where the handle may stand instead, because clients of one API differ."""
    methods: frozenset[str] = frozenset()
    """Empty: whatever the rule allows."""
    paths: tuple[PathPattern, ...] = ()
    """Empty: whatever the rule allows."""
    env: str | None = None
    shape: Shape | None = None
    handle_required: bool = True
    """False: a request of the session that matches gets the credential without showing a handle."""
    origins: frozenset[OriginClass] = DEFAULT_ORIGIN_CLASSES
    isolation: Isolation = Isolation.NONE
    """The least isolation that a session must have."""
    plain_http: bool = False
    keep_set_cookie: bool = False
    scrub: bool = True
    revoke_on_theft: bool = False
    """Revoke the victim's session when its handle turns up elsewhere."""
    inherit: bool = True
    """Whether a handle that a fork's, or a restored sandbox's, processes hold from before counts there."""


class LimitKind(StrEnum):
    REQUESTS = "requests"
    CONCURRENT = "concurrent"
    BYTES_UP = "bytes_up"
    BYTES_DOWN = "bytes_down"


class LimitScope(StrEnum):
    """Who shares a bucket."""

    SESSION = "session"
    SUBJECT = "subject"
    TENANT = "tenant"
    CREDENTIAL = "credential"
    RULE = "rule"


@dataclass(frozen=True, slots=True)
class Limit:
    """`count` units in `period` seconds, with `burst` at once; for CONCURRENT only `count` counts."""

    kind: LimitKind
    count: int
    period: float
    burst: int
    per: LimitScope


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is allowed."""

    name: str
    hosts: tuple[HostPattern, ...]
    methods: frozenset[str]
    paths: tuple[PathPattern, ...]
    """Empty: every path."""
    ports: frozenset[int] = frozenset({443})
    credentials: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    plain_http: bool = False
    websocket: bool = False
    http2: bool = False
    tunnel: bool = False
    handles_in_body: HandlesInBody = HandlesInBody.REPORT
    scrub: bool = True
    """False: answers under this rule are not searched for secrets."""
    compression: bool = False
    """True: the upstream may compress answers that are searched."""
    max_request_bytes: int = 0
    """Streamed bytes a request may have; 0 means no limit beyond `limits`."""
    max_response_bytes: int = 0
    asking: Asking | None = None
    """None: nobody is asked."""

    @property
    def searched(self) -> bool:
        """Whether answers are searched for secrets."""
        return self.scrub and not self.tunnel


@dataclass(frozen=True, slots=True)
class Policy:
    """One file of one owner, compiled. An empty policy denies all."""

    name: str
    owner: str
    sha256: str
    credentials: Mapping[str, Credential] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    filesystem: Filesystem | None = None
    """None: as the sandbox's own permissions have it."""
    observe: Observation | None = None
    index: HostIndex[Rule] = field(init=False, repr=False, compare=False)
    """The rules by host, built from `rules`."""

    def __post_init__(self) -> None:
        entries = ((rule, ((host.suffix, host.wildcard) for host in rule.hosts)) for rule in self.rules)
        object.__setattr__(self, "index", HostIndex.build(entries))


# --- reading a policy --------------------------------------------------------------------------------

_PROGRESS = (
    Reason.HOST_NOT_ALLOWED,
    Reason.PLAIN_HTTP_REFUSED,
    Reason.PORT_NOT_ALLOWED,
    Reason.METHOD_NOT_ALLOWED,
    Reason.PATH_NOT_ALLOWED,
    Reason.PROTOCOL_REFUSED,
)
"""How far a request came with a rule, in the order in which `misfit` looks. The answer names the
reason of the rule that came closest: that is the one which the reader of a refusal must change."""

_AFTER_METHOD = frozenset({Reason.PATH_NOT_ALLOWED, Reason.PROTOCOL_REFUSED})
_SHIFTING = "an empty segment or a path parameter, where a rule looks at paths"


def rules_for_host(policy: Policy, host: str) -> tuple[Rule, ...]:
    """The rules that name the canonical `host`, in file order."""
    return policy.index.find(host)


def match(policy: Policy, destination: Destination, head: RequestHead) -> Rule | Deny:
    """The first rule in file order that allows the request, else the most telling refusal.

    Includes `path.check_target`: a target that is not one thing to every reader matches no rule. A
    path whose segments are ambiguous is refused at the first otherwise fitting rule that looks at
    paths: skipping that rule would let `/v1//models` slip past its limits to a broader one.
    """
    rules = policy.index.find(destination.host)
    if not rules:
        return Deny(Reason.HOST_NOT_ALLOWED)
    malformed = check_target(head.target)
    if malformed is not None:
        return malformed
    path = canonical_path(head.path)
    parts = path.split("/")[1:]
    steering = read_steering(head)
    if steering.other_path:
        return Deny(Reason.HEADER_FORM_REFUSED, "a header names another path than the target")
    if steering.hosts and names_another_host(steering, destination.host):
        return Deny(Reason.HEADER_FORM_REFUSED, "a header names another host than the request's")
    shifting = ambiguous(path)
    closest = Reason.HOST_NOT_ALLOWED
    name = None
    for rule in rules:
        reason = misfit(rule, destination, steering, parts)
        if shifting and rule.paths and (reason is None or reason in _AFTER_METHOD):
            return Deny(Reason.PATH_FORM_REFUSED, _SHIFTING, rule=rule.name)
        if reason is None:
            return rule
        if _PROGRESS.index(reason) > _PROGRESS.index(closest):
            closest, name = reason, rule.name
    return Deny(closest, rule=name)


def misfit(rule: Rule, destination: Destination, steering: Steering, parts: list[str]) -> Reason | None:
    """Why `rule`, which names the destination's host, does not allow this request; None when it does.

    `parts` as in `PathPattern.matches_segments`.
    """
    if destination.scheme != "https" and not rule.plain_http:
        return Reason.PLAIN_HTTP_REFUSED
    if destination.port not in rule.ports:
        return Reason.PORT_NOT_ALLOWED
    if rule.tunnel:
        return Reason.PROTOCOL_REFUSED
    if not rule.methods.issuperset(steering.methods):
        return Reason.METHOD_NOT_ALLOWED
    if rule.paths and not _any_path(rule.paths, parts):
        return Reason.PATH_NOT_ALLOWED
    upgrade = steering.upgrade
    # `Upgrade: h2c` would turn the connection into one that nobody reads (h2c smuggling).
    if upgrade and not (rule.websocket and len(upgrade) == 1 and upgrade[0].strip().lower() == "websocket"):
        return Reason.PROTOCOL_REFUSED
    return None


def host_allowed(policy: Policy, host: str, port: int, tls: bool) -> Deny | None:
    """None when some rule could allow a request to the canonical `host` at `port`.

    For CONNECT and ClientHello: before a certificate is minted or a name resolved (I6).
    """
    closest = Reason.HOST_NOT_ALLOWED
    for rule in policy.index.find(host):
        if not (tls or rule.plain_http):
            reason = Reason.PLAIN_HTTP_REFUSED
        elif port not in rule.ports:
            reason = Reason.PORT_NOT_ALLOWED
        else:
            return None
        if _PROGRESS.index(reason) > _PROGRESS.index(closest):
            closest = reason
    return Deny(closest)


def tunnel_rule(policy: Policy, host: str, port: int) -> Rule | None:
    """The rule that lets TLS to `host` and `port` through unopened, or None: then it is intercepted.

    File order decides, as everywhere; `policy.file` refuses files in which a host is in both kinds.
    """
    for rule in policy.index.find(host):
        if port in rule.ports:
            return rule if rule.tunnel else None
    return None


def credential_allows(credential: Credential, destination: Destination, head: RequestHead) -> Deny | None:
    """None when the credential may travel with this request; the rule has allowed the request already."""
    if not any(host.matches(destination.host) for host in credential.hosts):
        return _wrong_place(credential, "host")
    if destination.scheme != "https" and not credential.plain_http:
        return Deny(Reason.PLAIN_HTTP_REFUSED, f"credential {credential.name}")
    if credential.methods and not credential.methods.issuperset(read_steering(head).methods):
        return _wrong_place(credential, "method")
    if credential.paths:
        path = canonical_path(head.path)
        if (
            check_target(head.target)
            or ambiguous(path)
            or not _any_path(credential.paths, path.split("/")[1:])
        ):
            return _wrong_place(credential, "path")
    return None


def _any_path(patterns: tuple[PathPattern, ...], parts: list[str]) -> bool:
    for pattern in patterns:  # noqa: SIM110 (see matches_segments)
        if pattern.matches_segments(parts):
            return True
    return False


def _wrong_place(credential: Credential, what: str) -> Deny:
    return Deny(Reason.HANDLE_WRONG_HOST, f"credential {credential.name} is not for this {what}", alarm=True)
