"""Everything that Coatcheck tells about itself, as frozen values. No secret and no handle in any field.

A sink (audit, metrics, log, usage) is a function of an event: `sink(event) -> None`.
"""

from dataclasses import dataclass
from enum import StrEnum

from coatcheck.decision.comparison import Comparison
from coatcheck.decision.denial import Reason


class Outcome(StrEnum):
    DENY = "deny"
    PASS = "pass"
    INJECT = "inject"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict on one request. Written to the audit log before the first upstream byte (I8)."""

    at: float
    """Unix time, seconds."""
    request_id: str
    session: str
    tenant: str
    subject: str
    policy: str
    policy_hash: str
    outcome: Outcome
    reason: Reason | None
    detail: str
    rule: str
    credentials: tuple[str, ...]
    method: str
    destination: str
    """`https://host[:port]`."""
    path: str
    """Without query: queries carry credentials (OpenShell #2531). Handles in it are masked."""
    origin: str
    """The origin's class."""
    alarm: bool
    added_seconds: float
    """From the request's head to the verdict, waiting for the store included."""
    original: str = ""
    """`address:port` that the client had dialled, on transparent connections: evidence, never dialled."""
    approved_by: str = ""
    """Who said that it may leave, where a rule wants somebody to be asked."""
    handle_of: str = ""
    """The ancestor session whose string the process still holds, where it showed that (I10)."""


@dataclass(frozen=True, slots=True)
class Completion:
    """How a forwarded request ended."""

    at: float
    request_id: str
    session: str
    status: int
    """0 when no response head came."""
    bytes_up: int
    bytes_down: int
    seconds: float
    scrubbed: int
    """How many verbatim echoes of secrets were taken out."""
    aborted: Reason | None


class SessionChange(StrEnum):
    OPENED = "opened"
    RENEWED = "renewed"
    REVOKED = "revoked"
    LAPSED = "lapsed"
    EXPIRED = "expired"
    ENDED = "ended"
    HANDLE_MINTED = "handle_minted"
    HANDLE_REVOKED = "handle_revoked"
    CREDENTIAL_REVOKED = "credential_revoked"
    """Taken from a session that goes on."""
    REBOUND = "rebound"
    """It goes on in a new generation, for which only new handles count."""


class Revocation(StrEnum):
    """What was revoked at once."""

    HANDLE = "handle"
    SESSION = "session"
    CREDENTIAL = "credential"
    """Of every session that had it."""
    EVERYTHING = "everything"
    """Every session, or every one of a tenant, subject or policy."""


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A session was opened, renewed, rebound or closed, or a handle or credential of it changed."""

    at: float
    change: SessionChange
    session: str
    tenant: str
    subject: str
    policy: str
    caller: str
    detail: str = ""
    state_version: int = 0
    """The state store's version after the change: a state directory that is behind was rolled back."""


class SandboxChange(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    SLEEPING = "sleeping"
    WOKE = "woke"
    SNAPSHOT = "snapshot"
    SNAPSHOT_FAILED = "snapshot_failed"
    """A periodic one; it is tried again when the next is due."""
    SNAPSHOT_REMOVED = "snapshot_removed"
    """The oldest periodic one: a newer one has its place."""
    RECOVERING = "recovering"
    """It died, and is being restored automatically."""
    GIVEN_UP = "given_up"
    """It died too often for that, or cannot be woken after its daemon stopped."""
    IDENTITY_OVER = "identity_over"
    """The session of one of those who share it; the others go on."""
    RESTORED = "restored"
    FORKED = "forked"
    """It began as a copy of another."""
    RESIZED = "resized"
    """It counts for more or less of this machine from now on."""
    REFUSED = "refused"
    """Somebody asked for one, for its next life or for another size, and could not have it."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """A sandbox began, ended, slept, was saved, restored, forked or resized, or one was refused."""

    at: float
    change: SandboxChange
    sandbox: str
    sessions: tuple[str, ...]
    tenant: str
    subject: str
    policy: str
    caller: str
    backend: str
    isolation: str
    """As measured."""
    ending: str = ""
    """Why it ended, of a closed set."""
    detail: str = ""


class ApprovalChange(StrEnum):
    ASKED = "asked"
    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"
    """Nobody answered in time."""
    WITHDRAWN = "withdrawn"
    """The client went away, or its session ended, before there was an answer."""


@dataclass(frozen=True, slots=True)
class ApprovalEvent:
    """A request waits for approval, or got its answer."""

    at: float
    change: ApprovalChange
    approval: str
    request_id: str
    session: str
    tenant: str
    subject: str
    policy: str
    rule: str
    credentials: tuple[str, ...]
    method: str
    destination: str
    path: str
    """With the names of a query's parameters, without their values; handles are masked."""
    approver: str
    """Empty as long as nobody answered."""
    remembered_seconds: float
    """For how long the answer counts for the same request again; 0: for this one."""
    readings: tuple[str, ...] = ()
    """What else the request may be taken for, and the other rules whose terms hold."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session used, when it has ended."""

    at: float
    session: str
    tenant: str
    subject: str
    seconds: float
    requests: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """A handle was stolen, misplaced or found in a body: a security team wants to know at once."""

    at: float
    reason: Reason
    session: str
    tenant: str
    credential: str
    detail: str


@dataclass(frozen=True, slots=True)
class SlowDecision:
    """Judging a request took more than 5 ms, which others wait for. One a second, and the rest are counted"""

    at: float
    request_id: str
    session: str
    tenant: str
    seconds: float
    """The slowest since the last event."""
    count: int
    """Slow decisions since the last event, this one included."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """More refusals or alarms of a session for one reason, counted instead of recorded one by one."""

    at: float
    what: str
    """`decision` or `alarm`: what was counted."""
    session: str
    tenant: str
    reason: Reason
    count: int
    since: float
    """When the first of them was, Unix seconds."""


@dataclass(frozen=True, slots=True)
class PolicyEvent:
    """A policy was loaded, or refused and the old one kept."""

    at: float
    name: str
    sha256: str
    loaded: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """A candidate policy would have judged a request otherwise. Of many alike, some are recorded."""

    at: float
    session: str
    tenant: str
    policy: str
    candidate_hash: str
    """Empty where the candidates have no policy of that name."""
    change: Comparison
    method: str
    destination: str
    path: str
    active: str
    """What was answered, in words: `allowed, rule model calls, with openai`."""
    candidate: str
    unrecorded: int
    """Differences of this kind since the last one that was recorded."""


@dataclass(frozen=True, slots=True)
class DaemonEvent:
    """Started, ready, draining, stopped, recovered: the daemon's own life."""

    at: float
    what: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A sandbox was searched, from the host, for the secrets that we hold for it; or should have been."""

    at: float
    sandbox: str
    sessions: tuple[str, ...]
    tenant: str
    caller: str
    result: str
    """`nothing_found`, `found`, `incomplete`, `failed` or `cancelled`."""
    findings: int
    bytes: int
    """That were searched."""
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    seconds: float
    paused_seconds: float
    statement: str
    """SHA-256 of the signed statement; empty without one."""


type Event = (
    Decision
    | Completion
    | SessionEvent
    | SandboxEvent
    | ApprovalEvent
    | Usage
    | Alarm
    | Repeated
    | SlowDecision
    | PolicyEvent
    | ShadowDifference
    | DaemonEvent
    | Inspected
)
