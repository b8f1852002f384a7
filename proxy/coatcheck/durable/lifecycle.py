"""In the daemon: defines what a lifecycle means: when a sandbox ends or sleeps, how long it may run,
whether it recovers.

Each is a set of defaults of one launcher. What is said beside it holds, unless the two contradict each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from coatcheck.durable.durability import Durability, Lifecycle
from coatcheck.platform.errors import CoatcheckError

MIN_SNAPSHOT_SECONDS: Final = 60.0
"""Between two periodic snapshots. Each stands still for as long as its memory takes to be copied."""
HOURLY: Final = 3_600.0


class Recover(StrEnum):
    """What becomes of a sandbox whose machine, supervisor or host died."""

    NEVER = "never"
    LAST_SNAPSHOT = "last-snapshot"


@dataclass(frozen=True, slots=True)
class LifecycleRequest:
    """What a caller said of it; None: nothing. Times are seconds."""

    lifecycle: Lifecycle | None = None
    idle: Literal["end", "sleep"] | None = None
    idle_seconds: float | None = None
    recover: Recover | None = None
    snapshot_every: float | None = None
    """0: never."""
    rotate: bool | None = None
    identities: int = 1


@dataclass(frozen=True, slots=True)
class EffectiveLifecycle:
    """What holds for it."""

    keeping: Durability
    idle_seconds: float | None
    """Until it is idle; None: it never is."""
    runs_long: bool
    """Where no time limit was asked for: as long as the operator lets any sandbox run."""


class Contradiction(CoatcheckError, ValueError):
    """What was asked for excludes itself. `hint` says what to leave out."""


@dataclass(frozen=True, slots=True)
class _Defaults:
    idle: Literal["end", "sleep"] = "end"
    idle_seconds: float | None = None
    recover: Recover = Recover.NEVER
    snapshot_every: float = 0.0
    rotate: bool = False
    runs_long: bool = False


_KEPT: Final = _Defaults(recover=Recover.LAST_SNAPSHOT, snapshot_every=HOURLY, rotate=True, runs_long=True)
DEFAULTS: Final[Mapping[Lifecycle | None, _Defaults]] = {
    None: _Defaults(),
    Lifecycle.EPHEMERAL: _Defaults(idle_seconds=60.0),
    Lifecycle.LONG_RUNNING: _KEPT,
    Lifecycle.HYBRID: _Defaults("sleep", 300.0, Recover.LAST_SNAPSHOT, HOURLY, rotate=True, runs_long=True),
    Lifecycle.SHARED: _KEPT,
}
"""A hybrid's pause is longer than a person thinks before the next question, and shorter than lunch."""


def settle(asked: LifecycleRequest) -> EffectiveLifecycle:
    """What holds for a sandbox of which this was asked. Contradiction."""
    own = DEFAULTS[asked.lifecycle]
    _check(asked)
    idle = asked.idle if asked.idle is not None else own.idle
    every = asked.snapshot_every if asked.snapshot_every is not None else own.snapshot_every
    rotate = asked.rotate if asked.rotate is not None else own.rotate and every > 0
    if rotate and not every:
        raise Contradiction(
            "only periodic snapshots are rotated, and there are none",
            "Say how often one is taken (snapshot_every, --snapshot-every), or leave rotation out.",
        )
    recover = asked.recover if asked.recover is not None else own.recover
    keeping = Durability(
        lifecycle=asked.lifecycle,
        sleeps=idle == "sleep",
        rotates=rotate,
        recovers=recover is Recover.LAST_SNAPSHOT,
        every_seconds=every or None,
    )
    seconds = asked.idle_seconds if asked.idle_seconds is not None else own.idle_seconds
    return EffectiveLifecycle(keeping, seconds, own.runs_long)


def _check(asked: LifecycleRequest) -> None:
    if asked.snapshot_every and asked.snapshot_every < MIN_SNAPSHOT_SECONDS:
        raise Contradiction(
            f"a snapshot every {asked.snapshot_every:g} s would leave it little time to run",
            f"Ask for one every {MIN_SNAPSHOT_SECONDS:g} s at the most often; 0 is never.",
        )
    match asked.lifecycle:
        case Lifecycle.EPHEMERAL:
            kept = asked.idle == "sleep" or asked.snapshot_every or asked.rotate
            if kept or asked.recover is Recover.LAST_SNAPSHOT:
                raise Contradiction(
                    "an ephemeral sandbox is not kept: it neither sleeps, nor is saved, nor comes back",
                    "Leave that out, or ask for long-running or hybrid.",
                )
        case Lifecycle.LONG_RUNNING | Lifecycle.SHARED:
            if asked.idle_seconds is not None:
                raise Contradiction(
                    f"a {asked.lifecycle} sandbox keeps running without a connection",
                    "Leave idle_seconds (--sleep-after) out, or ask for hybrid.",
                )
            if asked.lifecycle is Lifecycle.SHARED and asked.identities < 2:
                raise Contradiction(
                    "a shared sandbox has several identities, and one was asked for",
                    "Name both (--identity agent --identity tool), or ask for long-running.",
                )
        case Lifecycle.HYBRID:
            if asked.idle == "end":
                raise Contradiction(
                    "a hybrid sandbox sleeps when it is idle, and does not end",
                    "Leave idle out, or ask for ephemeral.",
                )
