"""What a security team allowed, compiled. `policyfile` builds these values; `match` reads them.

Matching is equality and suffix only: no regular expression meets attacker input.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coatcheck.decision.message import OriginClass
from coatcheck.decision.session import DEFAULT_ORIGIN_CLASSES, Isolation


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
        parts = tuple(path.split("/")[1:])
        if len(parts) < len(self.segments) or (len(parts) > len(self.segments) and not self.prefix):
            return False
        return all(
            want == "*" and have != "" or want == have
            for want, have in zip(self.segments, parts, strict=False)
        )


# --- how a secret is put into a request: one value a way -------------------------------------------


@dataclass(frozen=True, slots=True)
class HeaderInjection:
    """`name: template` where `{secret}` stands for the value, e.g. `Bearer {secret}`.

    The handle must stand where `{secret}` stands.
    """

    name: str
    template: str = "{secret}"


@dataclass(frozen=True, slots=True)
class BasicInjection:
    """`Authorization: Basic base64(username:secret)`. The handle is the password.

    `username` None keeps the client's own.
    """

    username: str | None = None
    realm: str = "coatcheck"


@dataclass(frozen=True, slots=True)
class QueryInjection:
    """Query parameter `name` carries the handle."""

    name: str


@dataclass(frozen=True, slots=True)
class PathInjection:
    """One path segment is `prefix + handle`, e.g. prefix `bot` for `/bot<handle>/sendMessage`."""

    prefix: str = ""


@dataclass(frozen=True, slots=True)
class BodyInjection:
    """Field `field` of a JSON or form body carries the handle; bodies up to `max_bytes` are buffered."""

    field: str
    media: frozenset[str] = frozenset({"application/json", "application/x-www-form-urlencoded"})
    max_bytes: int = 1_048_576


@dataclass(frozen=True, slots=True)
class SigV4Injection:
    """AWS Signature Version 4. The secret is a JSON object or `id:key[:token]`; the sandbox signs with
    a stand-in key pair whose session token is the handle."""

    services: frozenset[str] = frozenset()
    """Service names from the credential scope that may be signed for; empty means any."""
    regions: frozenset[str] = frozenset()


type InjectionKind = (
    HeaderInjection | BasicInjection | QueryInjection | PathInjection | BodyInjection | SigV4Injection
)


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
    inject: InjectionKind
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
    max_request_bytes: int = 0
    """Streamed bytes a request may have; 0 means no limit beyond `limits`."""
    max_response_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """One file of one owner, compiled. An empty policy denies all."""

    name: str
    owner: str
    sha256: str
    credentials: Mapping[str, Credential] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
