"""Requests and answers of the control API. The OpenAPI document is generated from these.

Times named `*_at` are Unix seconds. Requests are strict: unknown keys, numbers in strings, are errors.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coatcheck.decision.message import OriginClass
from coatcheck.decision.session import Isolation
from coatcheck.state.database import Status

SESSION_ID = "ses_[0-9a-f]{24}"
APPROVAL_ID = "apr_[0-9a-f]{16}"
HANDLE_ID = "[A-Za-z0-9_-]{16}"
SANDBOX_ID = "sbx_[0-9a-f]{16}"
SNAPSHOT = "[a-z0-9][a-z0-9._-]{0,63}"
PORT = "[1-9][0-9]{0,4}"

type Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[ -~]+$")]
"""Printable ASCII: names stand in audit records, in URLs' queries and on terminals."""
type PolicyName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
type HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
type HeaderValue = Annotated[str, Field(max_length=1024, pattern=r"^[ -~]*$")]
type SessionId = Annotated[str, Field(pattern=f"^{SESSION_ID}$")]


class RequestModel(BaseModel):
    """A request's body or query."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ResponseModel(BaseModel):
    """An answer's body. Its `repr` names no value: some hold handles."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    __str__ = __repr__


# --- requests ----------------------------------------------------------------------------------------


class Origin(RequestModel):
    """What will prove that a connection belongs to the session, if not a socket of its own."""

    origin_class: OriginClass = Field(alias="class")
    value: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[!-~]+$")] | None = Field(
        None,
        description="mtls: SHA-256 of the certificate; token: `issuer|pod uid`; address: "
        "`listener|source address`. None for socket and bearer, whose value the daemon makes.",
    )


class NewSession(RequestModel):
    """What a caller asks for."""

    tenant: Name
    subject: Name
    policy: PolicyName
    credentials: list[Name] | None = Field(None, max_length=1000, description="Default: all of the policy.")
    isolation: Isolation = Field(Isolation.NONE, description="Isolation between the agent and the host.")
    lease_seconds: float | None = Field(None, ge=1, le=86_400)
    max_age: float | None = Field(None, ge=1, le=31_536_000, description="Seconds.")
    origin: Origin | None = Field(None, description="Default: class socket.")
    listen: Literal["unix", "tcp", "sandbox", "none"] | None = Field(
        None,
        description="The session's own listener. Default: unix for class socket, else none. sandbox: three "
        "Unix sockets, for the proxy, for redirected connections and for DNS.",
    )
    parent: SessionId | None = Field(
        None,
        description="The session that this one was forked or restored from: the handles that its processes "
        "still hold from there name this session's own grant, where policy lets them.",
    )


class Renewal(RequestModel):
    lease_seconds: float | None = Field(None, ge=1, le=86_400)


class Revocation(RequestModel):
    why: Name | None = Field(None, description="For the audit log. No secret.")


class Revocations(RequestModel):
    """Which sessions of those that the caller sees: those that fit every name given here."""

    tenant: Name | None = None
    subject: Name | None = None
    policy: PolicyName | None = None
    everything: bool = Field(False, description="Instead of a tenant, a subject and a policy: all.")
    credential: Name | None = Field(
        None, description="One of the policy: the sessions go on without it. Default: they are over."
    )
    why: Name | None = Field(None, description="For the audit log. No secret.")


class NewHandle(RequestModel):
    credential: Name
    ttl_seconds: float | None = Field(None, ge=1, le=86_400, description="Default: as long as the session.")


class Question(RequestModel):
    """Either `session` or `policy`."""

    session: SessionId | None = None
    policy: PolicyName | None = None
    method: Annotated[str, Field(pattern=r"^[A-Z]{1,32}$")]
    headers: list[tuple[HeaderName, HeaderValue]] = Field(
        [], max_length=64, description="Those that steer: methods, paths, upgrades. No credential."
    )
    url: Annotated[str, Field(min_length=1, max_length=8192, pattern=r"^https?://[!-~]+$")]


class SessionQuery(RequestModel):
    tenant: Name | None = None
    subject: Name | None = None
    policy: PolicyName | None = None
    opened_by: Name | None = None
    status: Status | None = None
    after: SessionId | None = Field(None, description="The last id of the previous page.")
    limit: int = Field(100, ge=1, le=1000)


class Nothing(RequestModel):
    """No query, or an empty body."""


# --- answers -----------------------------------------------------------------------------------------


class OriginView(ResponseModel):
    origin_class: OriginClass = Field(serialization_alias="class")
    value: str


class SessionView(ResponseModel):
    id: SessionId
    tenant: str
    subject: str
    policy: str
    status: Status
    origin: OriginView
    credentials: list[str]
    isolation: Isolation
    generation: int
    ancestors: list[SessionId] = Field(description="What it was forked, restored or woken from.")
    opened_at: float
    opened_by: str
    expires_at: float
    lease_seconds: float
    lease_expires_at: float | None = Field(description="None once the session is closed.")


class HandleView(ResponseModel):
    """A handle without its value, which is given out once."""

    jti: str
    credential: str
    generation: int
    issued_at: float
    expires_at: float
    revoked: bool


class MintedHandle(ResponseModel):
    """A handle with its value, once."""

    credential: str
    value: str
    env: str | None
    expires_at: float
    jti: str
    environment: dict[str, str] = Field(description="The variables in which clients look for it.")


class ProxyView(ResponseModel):
    url: str | None = Field(description="`http://…`, or `unix://…` of a socket; None without a listener.")
    transparent: str | None = Field(
        description="listen `sandbox`: `unix://…` where redirected connections go, each behind a PROXY v2 "
        "header with its original destination."
    )
    dns: str | None = Field(
        description="listen `sandbox`: `unix://…` of its resolver; questions and answers as over TCP."
    )
    ca: str = Field(description="PEM file: Coatcheck's CA alone.")
    ca_bundle: str = Field(description="PEM file: public roots and Coatcheck's CA.")


class SessionOpened(ResponseModel):
    session: SessionView
    lease_expires_at: float
    handles: dict[str, MintedHandle] = Field(description="By credential.")
    environment: dict[str, str] = Field(description="All that the sandbox's clients need.")
    proxy: ProxyView


class SessionRenewed(ResponseModel):
    session: SessionView
    lease_expires_at: float


class SessionRebound(ResponseModel):
    """A session whose sandbox has begun a new life: only these handles count from now on."""

    session: SessionView
    handles: dict[str, MintedHandle] = Field(description="By credential.")
    environment: dict[str, str] = Field(description="The variables in which clients look for the handles.")


class SessionShown(ResponseModel):
    session: SessionView
    handles: list[HandleView]
    proxy: ProxyView
    aws: list[str] = Field(description="Those of its credentials that sign AWS requests.")


class SessionClosed(ResponseModel):
    session: SessionView


class Revoked(ResponseModel):
    sessions: int = Field(
        description="Number of sessions that lost something. Repeating the call is not an error."
    )


class SessionList(ResponseModel):
    sessions: list[SessionView]
    next: str | None = Field(description="`after` for the next page; None on the last page.")


class HandleRevoked(ResponseModel):
    jti: str


class PolicyView(ResponseModel):
    name: str
    owner: str
    sha256: str
    credentials: list[str]
    rules: list[str]


class PolicyHash(ResponseModel):
    name: str
    sha256: str


class BundleView(ResponseModel):
    version: int
    owner: str
    created: str
    digest: str
    key: str
    """The trusted key that vouched for it."""


class ShadowView(ResponseModel):
    policies: list[PolicyHash]
    refused: str | None
    """Why the newest candidates are not what requests are compared with."""
    results: dict[str, int]
    """Requests and tunnels by what the candidates make of them, since they are compared."""


class PolicyList(ResponseModel):
    policies: list[PolicyView]
    refused: str | None
    """Why the newest files are not in force; for callers who may see every policy."""
    bundle: BundleView | None
    """The signed bundle that the policies came from."""
    shadow: ShadowView | None
    """Candidates that are compared; for callers who may see every policy."""


class RuleExplained(ResponseModel):
    name: str
    chosen: bool
    reason: str | None
    why: str


class CredentialExplained(ResponseModel):
    name: str
    usable: bool
    why: str


class Explanation(ResponseModel):
    policy: str
    request: str
    allowed: bool
    reason: str | None
    rules: list[RuleExplained]
    credentials: list[CredentialExplained]
    text: str = Field(description="The same for people.")


class Health(ResponseModel):
    status: str = Field(description="`ok`, or `stalled` when the plane's loop does not answer.")
    plane_age_seconds: float = Field(description="Seconds since the plane's loop last answered.")


class Readiness(ResponseModel):
    ready: bool
    missing: list[str]


class Error(ResponseModel):
    reason: str
    message: str
    hint: str


class ErrorAnswer(ResponseModel):
    error: Error
