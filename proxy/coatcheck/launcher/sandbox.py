"""A sandbox as those see it who run it: what was asked for, how far it is, and why it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.session import Isolation
from coatcheck.durable.durability import Durability
from coatcheck.durable.elastic import Elastic, Growth

AGENT = "agent"
"""The identity that every sandbox has: the harness, or whatever is run without another being named."""
IDENTITIES = (AGENT, "tool")
"""What an image has users for (uid 1000 and up, in this order). Each has its own session."""


def trust_inside(identity: str) -> tuple[PurePosixPath, PurePosixPath, PurePosixPath]:
    """Where an identity's CA, bundle and Java trust store are in the guest: on a tmpfs, so that no disk, and
    no snapshot of one, holds them."""
    place = PurePosixPath("/run/coatcheck/trust", identity)
    return place / "coatcheck-ca.pem", place / "ca-bundle.pem", place / "truststore.p12"


class Backend(StrEnum):
    """What a sandbox is made of."""

    MICROVM = "microvm"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class Choice:
    """What a sandbox will be made of on this machine."""

    backend: Backend
    isolation: Isolation
    why: str
    """For a person: why this and nothing stronger."""
    image: str | None
    """Directory of the image; None: the host's own files (namespace)."""
    agent: str | None = None
    """The guest's agent on the host, where it is not in the image."""
    identities: tuple[str, ...] = IDENTITIES
    """Who can be told apart in it."""


@dataclass(frozen=True, slots=True)
class WantedVolume:
    """A disk that outlives sandboxes, by its name in the tenant."""

    name: str
    at: str
    size_mib: int


@dataclass(frozen=True, slots=True)
class WantedSandbox:
    """What a caller asks for, once its grant has been found to cover it."""

    tenant: str
    subject: str
    policy: str
    opened_by: str
    choice: Choice
    limits: Mapping[str, int]
    """By `limits.LimitName`, in the options' units; what is not asked for has its default."""
    volumes: tuple[WantedVolume, ...] = ()
    idle_seconds: float | None = None
    """After so long without anybody connected it ends, or sleeps."""
    filesystem: Filesystem | None = None
    """Of the policy: layers around each command inside."""
    keeping: Durability = field(default_factory=Durability)
    savable: bool = True
    """False: policy lets no handle that it holds be in a snapshot."""
    growth: Growth | None = None
    """How far it may grow while it runs; None: it has one size."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sandbox that there is room for: an id, and every limit decided."""

    id: str
    wanted: WantedSandbox
    limits: Mapping[str, int]
    """By field of `launcher.limits.Limits`."""
    elastic: Elastic | None = None

    @property
    def run_seconds(self) -> int:
        return self.limits["run_seconds"]


@dataclass(frozen=True, slots=True)
class SandboxIdentity:
    """One user inside, and the session that was opened for it."""

    name: str
    session: str
    socket: str
    """Of its proxy."""
    lease_seconds: float
    environment: Mapping[str, str] = field(repr=False)
    """Handles, proxy and trust, as paths inside."""
    ca: str
    bundle: str
    java_truststore: str
    """Files on the host."""
    credentials: tuple[str, ...] = ()
    """That its session was granted."""


class SandboxState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    SLEEPING = "sleeping"
    """Saved to disk: no machine runs, and it takes no memory. It wakes as it was."""
    ENDING = "ending"
    """Its sessions are over; processes and files are being removed."""
    ENDED = "ended"
    """Nothing of it is left."""


class Ending(StrEnum):
    """Why a sandbox ended."""

    KILLED = "killed"
    """A caller ended it."""
    IDLE = "idle"
    """Nobody was connected to it for as long as it was asked to wait."""
    TIME_LIMIT = "time_limit"
    SESSION_OVER = "session_over"
    """A session of it was revoked, lapsed, expired, or its opener's grant no longer covers it."""
    DAEMON_GONE = "daemon_gone"
    """No daemon answered for longer than a lease."""
    MACHINE_ENDED = "machine_ended"
    """The guest powered off, or its machine crashed or was killed."""
    GUEST_BROKE_PROTOCOL = "guest_broke_protocol"
    START_FAILED = "start_failed"
    REBIND_FAILED = "rebind_failed"
    """A copy of a saved sandbox did not become somebody of its own, and never ran."""
    SUPERVISOR_GONE = "supervisor_gone"
    """Its supervisor was killed or crashed; what was left has been swept."""
    RESTORED = "restored"
    """An earlier state of it takes its place."""
    CRASH_LOOP = "crash_loop"
    """It died again and again, and is not brought back by itself any more."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One sandbox. Times are Unix seconds."""

    id: str
    tenant: str
    subject: str
    policy: str
    opened_by: str
    backend: Backend
    isolation: Isolation
    """As measured on this machine, never as claimed."""
    why: str
    """Why it is that isolation, in words for a person."""
    sessions: Mapping[str, str]
    """Identity -> session id."""
    created_at: float
    expires_at: float
    """Its time limit."""
    memory_mib: int
    cpus: int
    """As it is now: an elastic one's change while it runs."""
    disk_mib: int
    processes: int
    elastic: Elastic | None = None
    """How far; None: it has one size."""
    shares_memory: bool = False
    """With other forks, as far as none of them changes it."""
    keeping: Durability = field(default_factory=Durability)
    state: SandboxState = SandboxState.STARTING
    ending: Ending | None = None
    detail: str = ""
    """Of the ending, in words for a person."""
    recoverable: bool = False
    """It has ended, and can be restored from what was saved of it."""

    @property
    def over(self) -> bool:
        """No authority is left in it."""
        return self.state in (SandboxState.ENDING, SandboxState.ENDED)

    @property
    def one_size(self) -> str:
        """Why it is not resized; empty where `elastic` says how far it is."""
        if self.shares_memory:
            return "it is one of several forks, and what it does not use belongs to its siblings as well"
        if self.elastic is not None:
            return ""
        if self.backend is not Backend.MICROVM:
            return f"only a microVM has a balloon, and it is a {self.backend} sandbox"
        return "no ceiling was asked for"

    @property
    def past(self) -> bool:
        """Nothing can bring it back."""
        return self.state is SandboxState.ENDED and not self.recoverable


class SandboxProblem(StrEnum):
    """Why a sandbox cannot be had or used."""

    UNKNOWN_SANDBOX = "unknown_sandbox"
    UNKNOWN_SNAPSHOT = "unknown_snapshot"
    SANDBOX_ENDED = "sandbox_ended"
    UNKNOWN_IMAGE = "unknown_image"
    NO_BACKEND = "no_backend"
    """This machine cannot run what was asked for: no QEMU, no bubblewrap, no image."""
    TOO_MANY_SANDBOXES = "too_many_sandboxes"
    BEYOND_LIMIT = "beyond_limit"
    """More memory, disk, time … than the operator lets a sandbox have."""
    NOT_ELASTIC = "not_elastic"
    """It has one size: it was created so, or what it is made of can have no other."""
    SCALING_LOCKED = "scaling_locked"
    """Whoever created it lets nobody inside change its size."""
    OOM_FLOOR = "oom_floor"
    """Less memory than what is in use: its programs would be ended for it."""
    NO_ROOM = "no_room"
    """The host has promised its memory to others."""
    VOLUME_IN_USE = "volume_in_use"
    NOT_STARTED = "not_started"
    """The sandbox's supervisor could not be started, or does not answer."""
    # From inside, while it runs.
    NOT_RUNNING = "not_running"
    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    NO_SPACE = "no_space"
    IS_DIRECTORY = "is_directory"
    INVALID_PATH = "invalid_path"
    COMMAND_NOT_FOUND = "command_not_found"
    PORT_REFUSED = "port_refused"
    SANDBOX_BUSY = "sandbox_busy"
    FROZEN = "frozen"
    UNKNOWN_IDENTITY = "unknown_identity"
    INCOMPLETE = "incomplete"
    BAD_REQUEST = "bad_request"
    NETWORK_OPEN = "network_open"
    GUEST_FAILED = "guest_failed"
    UNSAVABLE = "unsavable"
    """This one cannot be saved: it is no microVM, or its operator keeps no snapshots."""
    NOT_SAVED = "not_saved"
    """Saving it failed; it goes on as it was."""
    NOT_WOKEN = "not_woken"
    """It sleeps on, and can be woken later."""


class ClaimFailed(Exception):
    """What came from the warm pool did not become somebody's sandbox, and is gone with the sessions that were
    opened for it. One that boots can be had in its place."""


class SandboxRefused(Exception):
    """A sandbox cannot be had or used. `hint` says what to do next."""

    def __init__(self, problem: SandboxProblem, message: str, hint: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message
        self.hint = hint
