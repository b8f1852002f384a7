"""What a sandbox has of its host: one value, from a caller's wish to the machine that is built."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """What of it may change while a sandbox runs."""

    memory_mib: int
    cpus: int


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one sandbox; the defaults are those of one that asks for nothing."""

    memory_mib: int = 512
    """Python, git and node start in half of it; eight sandboxes fit a laptop."""
    cpus: int = 1
    disk_mib: int = 2048
    """What may be written on the root and in the home; thrown away at the sandbox's end."""
    processes: int = 256
    """At once. A build with 16 jobs takes about 60; a fork bomb has these in a moment, and no more."""

    @property
    def size(self) -> Size:
        return Size(self.memory_mib, self.cpus)
