"""What a policy says of observing: a value, read by `observing`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observation:
    """What no rule allows passes without credentials and is recorded."""

    reason: str
    until: float
    """Unix seconds."""
