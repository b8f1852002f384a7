"""Sessions as values: what may be asked for, whether it may be had, and the snapshot that planes read."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Credential, Policy
from coatcheck.decision.session import MAX_ANCESTORS, Isolation, Now, Session
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.persistent_map import PersistentMap

MAX_NAME = 200
"""Characters of a tenant or subject. They stand in every audit record."""

SANDBOX_SOCKETS = -1
"""What stands for a port where a session has the Unix sockets of a whole sandbox."""

OWN_SANDBOX = -2
"""The same, of a sandbox that the daemon makes itself: without that, the session is of no use."""


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Limits of the state. Times are seconds."""

    max_age: float = 12 * 3600
    """No session is older, so no handle lives longer: an agent's working day."""
    lease: float = 120
    """What a session gets when it asks for nothing: two missed renewals a minute apart end it."""
    max_lease: float = 600
    """How long a sandbox's handles may outlive it at worst."""
    max_sessions: int = 10_000
    """Live sessions; 2 to 10 KiB of memory each with their handles."""
    max_handles: int = 1_000
    """Unexpired handles a session, so that a client that mints in a loop fills no disk."""
    key_rotation: float = 24 * 3600
    """A signing key signs for a day; then its private half is destroyed."""
    retain_closed: float = 3600
    """How long a closed session is still told why it was refused."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a caller asks for. Whether it may is judged by the control API (the caller's grants)."""

    tenant: str
    subject: str
    policy: str
    origin: Origin | None = None
    """None: the session gets a socket of its own (class `socket`, value = session id)."""
    credentials: frozenset[str] | None = None
    """None: all credentials of the policy."""
    isolation: Isolation = Isolation.NONE
    lease_seconds: float | None = None
    max_age: float | None = None
    parent: str | None = None
    """The session that this one was forked, restored or woken from: what its processes hold counts here."""
    generation: int = 1
    """Of its sandbox's life, where that is counted: the lowest that the session may have. That of a child is
    above its parent's in any case."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """One consistent reading of all sessions, replaced whole: read `state.sessions` once a request.

    Closed sessions stay for a while, so that their refusal has the right reason.
    """

    by_id: PersistentMap[str, Session] = field(default_factory=PersistentMap)
    by_origin: PersistentMap[Origin, Session] = field(default_factory=PersistentMap)
    epoch: int = 0
    """Grows whenever something that was allowed may no longer be: compare before the first upstream
    byte and on every chunk (I5)."""

    def having(self, *changed: Session, without: Sequence[Session] = (), epoch: bool = False) -> "Sessions":
        gone = [session.id for session in without]
        by_origin: dict[Origin, Session | None] = {}  # what differs, until all of it is known
        for session in without:
            held = self.by_origin.get(session.origin)
            if held is not None and held.id == session.id:
                by_origin[session.origin] = None
        for session in changed:
            held = by_origin.get(session.origin, self.by_origin.get(session.origin))
            # A closed session must not take its origin back from the one that has it now.
            if held is None or held.id == session.id or session.id not in self.by_id:
                by_origin[session.origin] = session
        return Sessions(
            self.by_id.changed(((session.id, session) for session in changed), gone),
            self.by_origin.changed(
                ((origin, held) for origin, held in by_origin.items() if held is not None), by_origin
            ),
            self.epoch + epoch,
        )


def new_session(
    wanted: NewSession,
    policies: Mapping[str, Policy],
    settings: StateSettings,
    caller: str,
    now: Now,
    parent: Session | None = None,
) -> Session:
    """The session as asked for, or StateError with what is wrong with it. `parent`: whom `wanted` names."""
    for what, value in (("tenant", wanted.tenant), ("subject", wanted.subject)):
        if not 1 <= len(value) <= MAX_NAME or not value.isprintable():
            raise StateError(
                Problem.BAD_VALUE,
                f"the {what} is not a name",
                f"Use 1 to {MAX_NAME} printable characters.",
            )
    policy = policies.get(wanted.policy)
    if policy is None:
        raise StateError(
            Problem.UNKNOWN_POLICY,
            f"there is no policy named {wanted.policy!r}",
            f"Loaded: {_listed(policies)}. `coatcheck policy check` says why one was not loaded.",
        )
    credentials = frozenset(policy.credentials) if wanted.credentials is None else wanted.credentials
    if unknown := credentials - policy.credentials.keys():
        raise StateError(
            Problem.UNKNOWN_CREDENTIAL,
            f"policy {policy.name} has no credential {_listed(unknown)}",
            f"It has: {_listed(policy.credentials)}.",
        )
    ancestors: frozenset[str] = frozenset()
    if parent is not None:
        ancestors = _line_of(parent, wanted)
        # What was taken from the parent since it was opened does not come back with a fork.
        credentials &= parent.credentials
    lease = lease_seconds(wanted.lease_seconds, settings.lease, settings)
    max_age = settings.max_age if wanted.max_age is None else wanted.max_age
    if not 1 <= max_age <= settings.max_age:
        raise StateError(
            Problem.BAD_VALUE,
            f"a session may live 1 to {settings.max_age:g} seconds, not {max_age:g}",
            "Ask for less, or have the operator raise the maximum age in the settings.",
        )
    session_id = "ses_" + secrets.token_hex(12)
    origin = wanted.origin or Origin(OriginClass.SOCKET, session_id)
    if wanted.origin is not None and (origin.kind is OriginClass.SOCKET or not origin.value):
        raise StateError(
            Problem.BAD_VALUE,
            "a session's socket is made by the proxy and cannot be named",
            "Leave the origin out for a socket, or name one of another class with its value.",
        )
    generation = max(wanted.generation, parent.generation + 1 if parent is not None else 1)
    return Session(
        id=session_id,
        tenant=wanted.tenant,
        subject=wanted.subject,
        policy=policy.name,
        origin=origin,
        credentials=credentials,
        isolation=wanted.isolation,
        generation=generation,
        opened_at=now.wall,
        expires_at=now.wall + max_age,
        lease_seconds=lease,
        lease_deadline=now.monotonic + lease,
        opened_by=caller,
        ancestors=ancestors,
        born=generation,
    )


def _line_of(parent: Session, wanted: NewSession) -> frozenset[str]:
    """The sessions whose strings a child of `parent` may hold. Names of credentials mean something within one
    policy only, and nobody's sandbox becomes somebody else's by a fork."""
    ours = (wanted.tenant, wanted.subject, wanted.policy)
    if ours != (parent.tenant, parent.subject, parent.policy):
        raise StateError(
            Problem.BAD_VALUE,
            f"session {parent.id} belongs to another tenant, subject or policy",
            "A fork has those of what it was forked from.",
        )
    line = parent.ancestors | {parent.id}
    if len(line) > MAX_ANCESTORS:
        raise StateError(
            Problem.BAD_VALUE,
            f"session {parent.id} has {len(parent.ancestors)} lives behind it, which is the limit",
            "Copy what you need out of the sandbox into a new one.",
        )
    return line


def granted(session: Session, name: str, policies: Mapping[str, Policy]) -> Credential:
    """The credential that the session has under that name; StateError(UNKNOWN_CREDENTIAL) if it has none."""
    policy = policies.get(session.policy)
    if policy is None or name not in policy.credentials or name not in session.credentials:
        raise StateError(
            Problem.UNKNOWN_CREDENTIAL,
            f"session {session.id} has no credential {name!r} that policy {session.policy} has as well",
            "Credentials are granted when a session is opened, and policy can take them away.",
        )
    return policy.credentials[name]


def renewed(session: Session, seconds: float | None, settings: StateSettings, now: Now) -> Session:
    """The session with a lease that runs from now; it never gets shorter by that."""
    lease = lease_seconds(seconds, session.lease_seconds, settings)
    deadline = max(session.lease_deadline, now.monotonic + lease)
    return replace(session, lease_seconds=lease, lease_deadline=deadline)


def lease_seconds(asked: float | None, default: float, settings: StateSettings) -> float:
    seconds = default if asked is None else asked
    if not 1 <= seconds <= settings.max_lease:  # false for NaN as well
        raise StateError(
            Problem.BAD_VALUE,
            f"a lease may last 1 to {settings.max_lease:g} seconds, not {seconds:g}",
            "Ask for a shorter lease and renew it while the sandbox lives.",
        )
    return seconds


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
