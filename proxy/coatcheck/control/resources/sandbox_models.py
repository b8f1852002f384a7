"""Requests and answers about sandboxes, as `models` has them about sessions."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from coatcheck.control.models import (
    SANDBOX_ID,
    SNAPSHOT,
    Name,
    PolicyName,
    RequestModel,
    ResponseModel,
    SessionId,
)
from coatcheck.decision.session import Isolation
from coatcheck.durable.durability import Lifecycle
from coatcheck.durable.elastic import Initiator, Scaling
from coatcheck.durable.lifecycle import Recover
from coatcheck.durable.states import REPORTS
from coatcheck.sandbox.sandbox import Backend, Ending, SandboxState

type SandboxId = Annotated[str, Field(pattern=f"^{SANDBOX_ID}$")]
type IdentityName = Literal["agent", "tool"]
type GuestPath = Annotated[str, Field(min_length=2, max_length=4096, pattern=r"^/[^\x00]+$")]
type VolumeName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
type SnapshotName = Annotated[str, Field(pattern=f"^{SNAPSHOT}$")]
type ImageName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]


def _whole(value: object) -> object:
    """`1.0` is an integer to JSON Schema (and to JavaScript)."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _reported(state: SandboxState) -> SandboxState:
    if state not in REPORTS:
        raise ValueError("no supervisor reports that")
    return state


type ReportedState = Annotated[
    SandboxState,
    AfterValidator(_reported),
    WithJsonSchema({"type": "string", "enum": [state.value for state in REPORTS]}),
]
type Whole = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
type DiskSize = Annotated[int, Field(ge=16, le=1024 * 1024), BeforeValidator(_whole)]

# --- requests ----------------------------------------------------------------------------------------


class NewIdentity(RequestModel):
    """One user inside, with a session of its own."""

    name: IdentityName
    credentials: list[Name] | None = Field(None, max_length=1000, description="Default: all of the policy.")


class NewVolume(RequestModel):
    """A disk that outlives sandboxes: made when first named, one sandbox has it at a time."""

    name: VolumeName
    at: GuestPath
    size_mib: DiskSize = 1024


class NewAutoscale(RequestModel):
    """Percents are of the memory that it has."""

    up_percent: int = Field(75, ge=55, le=95, description="In use, from which it grows to twice its size.")
    down_percent: int = Field(40, ge=5, le=45, description="In use, up to which it has too much.")
    cooldown_seconds: float = Field(60.0, ge=1, le=86_400, description="Between growing and growing again.")
    down_after_seconds: float = Field(
        900.0, ge=1, le=86_400, description="Of low use without a break, until it shrinks."
    )


class NewSandbox(RequestModel):
    """What a caller asks for. Limits that are left out have the daemon's defaults."""

    tenant: Name
    subject: Name
    policy: PolicyName
    identities: list[NewIdentity] = Field(
        [NewIdentity(name="agent")], min_length=1, max_length=2, description="The first is the default."
    )
    backend: Backend | None = Field(
        None, description="Default: microvm where this machine can, else namespace."
    )
    image: ImageName | None = Field(None, description="Of those built; default: `default`.")
    memory_mib: Whole | None = None
    cpus: Whole | None = None
    disk_mib: Whole | None = None
    processes: Whole | None = None
    output_mib: Whole | None = Field(None, description="Of one command.")
    network_mib_per_second: Whole | None = None
    timeout_seconds: Whole | None = Field(None, description="From its start to its end.")
    lifecycle: Lifecycle | None = Field(
        None, description="Lifecycle: sets the defaults of the next five fields. See docs/sandboxes.md."
    )
    idle_seconds: float | None = Field(
        None,
        ge=1,
        le=31_536_000,
        description="End the sandbox after this many seconds without a connection. Default: never.",
    )
    idle: Literal["end", "sleep"] | None = Field(
        None,
        description="What it does when it was idle for so long, `end` by default; asleep, it wakes when it is"
        " used.",
    )
    recover: Recover | None = Field(
        None,
        description="After an unexpected end, restore the sandbox from its newest snapshot. Default: never.",
    )
    snapshot_every: float | None = Field(
        None, ge=0, le=31_536_000, description="Seconds, from 60, while it runs; 0, the default: never."
    )
    rotate_snapshots: bool | None = Field(
        None,
        description="One too many takes the oldest periodic one's place; named ones stay. Default: no.",
    )
    lease_seconds: float | None = Field(None, ge=1, le=86_400)
    volumes: list[NewVolume] = Field([], max_length=4)
    max_memory_mib: Whole | None = Field(
        None, description="How far its memory may grow while it runs; it starts with memory_mib, its floor."
    )
    max_cpus: Whole | None = Field(None, description="The same of its CPUs.")
    scaling: Scaling = Field(Scaling.INSIDE, description="`outside`: nothing in it may change its size.")
    autoscale: NewAutoscale | None = Field(None, description="Grow and shrink memory with use. Default: off.")


class Scale(RequestModel):
    """What is left out stays as it is."""

    memory_mib: Whole | None = None
    cpus: Whole | None = None


class Sized(RequestModel):
    """From the sandbox's supervisor."""

    memory_mib: Whole
    cpus: Whole
    by: Initiator


class SandboxQuery(RequestModel):
    tenant: Name | None = None
    opened_by: Name | None = None
    state: SandboxState | None = None


class Waiting(RequestModel):
    wait_seconds: int = Field(
        0, ge=0, le=20, description="Wait this many seconds for the start to finish before answering."
    )


class Killing(RequestModel):
    why: Name | None = Field(None, description="For the audit log. No secret.")


class Report(RequestModel):
    """From the sandbox's supervisor."""

    state: ReportedState
    ending: Ending | None = None
    detail: Annotated[str, Field(max_length=500)] = ""


class NewSnapshot(RequestModel):
    name: SnapshotName


class Fork(RequestModel):
    """Copies of a sandbox, as it is or as it was saved, each with sessions of its own."""

    count: Annotated[int, Field(ge=1, le=16), BeforeValidator(_whole)] = 1
    snapshot: SnapshotName | None = Field(None, description="Default: as it is now, or fell asleep.")


class Restore(RequestModel):
    snapshot: SnapshotName | None = Field(None, description="Default: the newest.")


class FileQuery(RequestModel):
    path: GuestPath
    identity: IdentityName | None = None
    mode: Annotated[str, Field(pattern="^[0-7]{3,4}$")] | None = Field(None, description="PUT: default 0644.")


class PortQuery(RequestModel):
    identity: IdentityName | None = None


# --- answers -----------------------------------------------------------------------------------------


class AutoscaleView(ResponseModel):
    up_percent: int
    down_percent: int
    cooldown_seconds: float
    down_after_seconds: float


class ElasticView(ResponseModel):
    """How far it grows and shrinks while it runs."""

    min_memory_mib: int
    max_memory_mib: int
    min_cpus: int
    max_cpus: int
    scaling: Scaling
    autoscale: AutoscaleView | None


class KeepingView(ResponseModel):
    """What is done with it when nobody needs it, or when it died."""

    lifecycle: Lifecycle | None
    idle: Literal["end", "sleep"]
    recover: Recover
    snapshot_every: float = Field(description="0: never.")
    rotate_snapshots: bool


class SandboxView(ResponseModel):
    id: SandboxId
    state: SandboxState
    tenant: str
    subject: str
    policy: str
    opened_by: str
    backend: Backend
    isolation: Isolation = Field(description="As measured on this machine.")
    why: str = Field(description="Why it is this isolation.")
    sessions: dict[str, SessionId] = Field(description="By identity.")
    created_at: float
    expires_at: float
    memory_mib: int
    cpus: int
    disk_mib: int
    processes: int
    elastic: ElasticView | None = Field(description="How far its size changes. null: it has one.")
    one_size: str = Field(description="Why it has one; empty where `elastic` is not null.")
    keeping: KeepingView
    ending: Ending | None
    detail: str
    recoverable: bool = Field(description="It has ended, and can be restored from what was saved of it.")


class SandboxShown(ResponseModel):
    sandbox: SandboxView


class Scaled(ResponseModel):
    """What is given is there at once; what is taken comes back as fast as the guest's kernel gives it, and
    counts for the sandbox until then."""

    sandbox: SandboxView
    memory_mib: int
    cpus: int


class SandboxList(ResponseModel):
    sandboxes: list[SandboxView]


class SnapshotView(ResponseModel):
    name: str
    created_at: float | None = Field(description="None: it is damaged, and can only be removed.")
    generation: int | None
    bytes_on_disk: int


class SnapshotShown(ResponseModel):
    snapshot: SnapshotView


class SnapshotList(ResponseModel):
    snapshots: list[SnapshotView] = Field(description="The oldest first.")
