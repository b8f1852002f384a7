"""In daemon and supervisor: defines what the supervisor of a sandbox that may outlive its boot is told."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from coatcheck.durable.elastic import Elastic
from coatcheck.launcher.spec import SupervisorSpec, dump, load

READY: Final = b"ready\n"
CLAIMED: Final = b"claimed\n"
"""What the supervisor of a warm machine tells its daemon: it may be claimed; it is claimed, and its commands
may run."""


class IdleAction(StrEnum):
    """What becomes of a sandbox that nobody has been connected to for `idle_seconds`."""

    END = "end"
    SLEEP = "sleep"


@dataclass(frozen=True, slots=True)
class Saving:
    """How a microVM is saved, and from what it goes on."""

    restore: Path | None = None
    """A snapshot's directory: the machine goes on where that was taken, and does not boot."""
    template: int | None = None
    """Descriptor of `restore`'s memory (`snapshots.directory.Snapshot.template`): it is mapped privately, so
    that any number of clones cost what they write to. None: a copy of its own is made."""
    snapshot_key: Path | None = None
    """File of the key that signs snapshots, made when it is missing; for saving and restoring."""
    reserve_mib: int = 64
    """What stays free on the disk that it is saved to, for others."""
    snapshots: Path | None = None
    """Directory of all snapshots of this sandbox: they are part of what is left of it."""


@dataclass(frozen=True, slots=True)
class DurableSpec:
    """One sandbox. Times are seconds."""

    sandbox: SupervisorSpec
    """What it is from its start to its end."""
    saving: Saving = field(default_factory=Saving)
    elastic: Elastic | None = None
    """How far it grows and shrinks; its `limits` are what it starts with."""
    store: Path | None = None
    """Its own place in the state directory, 0700: `snapshots/`, `forks/`, `asleep`. None: it is not saved."""
    ancestors: tuple[str, ...] = ()
    """Sessions whose handles its processes may hold beside those of its own identities."""
    held_seconds: float = 900.0
    """While it sleeps, its open connections are kept for so long: a slow model call, a CI run."""
    idle_action: IdleAction = IdleAction.END
    rebind_seconds: float = 60.0
    """For a copy to get its own identity, or it is ended. On a busy host without KVM it takes three."""
    unbound: bool = False
    """It is nobody's yet: its identities have no session and no handle. Whose it is says a second spec."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Those that its supervisor inherits."""
        template = self.saving.template
        return (self.sandbox.lock,) if template is None else (self.sandbox.lock, template)


_SPECS: Final = TypeAdapter(DurableSpec)


def dumps(spec: DurableSpec) -> bytes:
    """One line of JSON."""
    return dump(_SPECS, spec)


def loads(content: bytes) -> DurableSpec:
    """From our own daemon. ValueError when it is not a spec at all."""
    return load(_SPECS, content)
