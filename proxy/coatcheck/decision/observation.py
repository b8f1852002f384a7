"""A policy's `observe` key, as a value. `observing` applies it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observation:
    """What no rule allows passes without credentials and is recorded."""

    reason: str
    until: float
    """Unix seconds."""
