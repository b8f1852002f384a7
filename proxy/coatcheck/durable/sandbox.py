"""In the daemon: defines a sandbox as its daemon and callers see it: what was asked for, what was
admitted, its state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from pydantic import BeforeValidator

from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.session import Isolation
from coatcheck.durable.backends import Choice
from coatcheck.durable.durability import Durability, Incarnation
from coatcheck.durable.elastic import Elastic, Growth
from coatcheck.sandbox.limits import Limits
from coatcheck.sandbox.resources import Resources
from coatcheck.sandbox.sandbox import Backend, Ending, SandboxState


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
    limits: Limits
    elastic: Elastic | None = None

    @property
    def run_seconds(self) -> int:
        return self.limits.run_seconds


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
    generation: int = 1
    """Of its session."""


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
    resources: Resources
    """As they are now: an elastic one's size changes while it runs."""
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


class ClaimFailed(Exception):
    """What came from the warm pool did not become somebody's sandbox, and is gone with the sessions that were
    opened for it. One that boots can be had in its place."""


def _nested(said: Any) -> Any:
    """Older versions wrote the fields of `resources` beside the others."""
    names = {each.name for each in fields(Resources)}
    if not isinstance(said, Mapping) or "resources" in said or not names <= said.keys():
        return said
    rest = {name: value for name, value in said.items() if name not in names}
    return {**rest, "resources": {name: said[name] for name in names}}


StoredSandbox = Annotated[Sandbox, BeforeValidator(_nested)]
"""For a `TypeAdapter` that reads files, also those of older versions."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is on disk of a sandbox beside its snapshots, so that the next daemon knows it too."""

    sandbox: StoredSandbox
    """As it was when its last life began; or as it ended, once it did and can be restored."""
    wanted: WantedSandbox
    lives: tuple[Incarnation, ...]
    recoveries: tuple[float, ...] = ()
    """When it was last restored automatically, Unix seconds."""
    interrupted: bool = False
    """It ran when its daemon stopped, and was put to sleep: the next daemon wakes it."""
    discarded: bool = False
    """A caller killed it: what was saved of it is to be removed once its supervisor is gone."""

    @property
    def generation(self) -> int:
        return max(each.generation for each in self.lives)
