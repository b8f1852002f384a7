"""In daemon and supervisor: defines how far a sandbox may grow and shrink while it runs."""

from dataclasses import dataclass
from enum import StrEnum

from coatcheck.durable.autoscale import Autoscale
from coatcheck.sandbox.resources import Size


class Initiator(StrEnum):
    """What asks for another size."""

    CALLER = "caller"
    """Over the control API."""
    INSIDE = "inside"
    """A program in the sandbox, through the metadata service."""
    AUTOSCALER = "autoscaler"
    RESTORED = "restored"
    """Nobody: it had that when it was saved."""


class Scaling(StrEnum):
    """What may resize it, beside the autoscaler if there is one."""

    INSIDE = "inside"
    """Programs in it and its callers."""
    OUTSIDE = "outside"
    """Its callers only."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What is asked for when a sandbox is created. What is None stays as it starts."""

    max_memory_mib: int | None
    max_cpus: int | None
    scaling: Scaling = Scaling.INSIDE
    autoscale: Autoscale | None = None


@dataclass(frozen=True, slots=True)
class Elastic:
    """The range of one sandbox."""

    min_memory_mib: int
    """It starts with the smaller size, and never has less."""
    max_memory_mib: int
    min_cpus: int
    max_cpus: int
    scaling: Scaling = Scaling.INSIDE
    autoscale: Autoscale | None = None

    @property
    def floor(self) -> Size:
        return Size(self.min_memory_mib, self.min_cpus)

    @property
    def ceiling(self) -> Size:
        return Size(self.max_memory_mib, self.max_cpus)

    def cpus_for(self, memory_mib: int) -> int:
        """CPUs that go with so much memory, where nobody said how many: as far up their own range."""
        span = self.max_memory_mib - self.min_memory_mib
        if span == 0:
            return self.min_cpus
        part = (min(max(memory_mib, self.min_memory_mib), self.max_memory_mib) - self.min_memory_mib) / span
        return self.min_cpus + round(part * (self.max_cpus - self.min_cpus))
