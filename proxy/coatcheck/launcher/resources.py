"""What a sandbox has of its host."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """What a sandbox has at one time."""

    memory_mib: int
    cpus: int
