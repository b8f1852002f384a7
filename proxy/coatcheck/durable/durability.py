"""In the daemon: defines what of a sandbox outlives one life: what was asked for, its lives, and where the
next begins."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PERIODIC: Final = "auto-"
"""How the names of snapshots begin that nobody asked for by name: only these are ever replaced."""

UNCLAIMED_GENERATION: Final = 1
"""Of a machine that nobody has claimed. A sandbox's first life is of the next generation, whether its machine
was booted before it or for it."""


class Lifecycle(StrEnum):
    """What a sandbox is for; `lifecycle.settle` says what each word stands for."""

    EPHEMERAL = "ephemeral"
    """For one task: it ends when nobody needs it, and nothing of it is kept."""
    LONG_RUNNING = "long-running"
    """For hours or days: it runs on while nobody is there, and comes back when it dies."""
    HYBRID = "hybrid"
    """Bursts of work: it sleeps in between."""
    SHARED = "shared"
    """Several agents in one, each with a session of its own: the end of one is not the others' end."""


@dataclass(frozen=True, slots=True)
class Durability:
    """What is done with a sandbox when nobody needs it, or when it died."""

    lifecycle: Lifecycle | None = None
    """None: nobody said, and only what was asked for holds."""
    sleeps: bool = False
    """Idle, it sleeps instead of ending."""
    rotates: bool = False
    """A snapshot too many takes the place of the oldest periodic one; otherwise it is refused."""
    recovers: bool = False
    """When it died, its newest snapshot is restored automatically."""
    every_seconds: float | None = None
    """A snapshot is taken so often while it runs; None: only when somebody asks."""

    @property
    def shares(self) -> bool:
        """Whether the end of one identity's session is no end of the sandbox."""
        return self.lifecycle is Lifecycle.SHARED

    @property
    def stays(self) -> bool:
        """Whether it sleeps, and does not end, while there is no daemon."""
        return self.sleeps or self.recovers

    @property
    def saves(self) -> bool:
        """Whether it is of no use where nothing can be saved."""
        return self.sleeps or self.recovers or self.every_seconds is not None


@dataclass(frozen=True, slots=True)
class Incarnation:
    """From a start, a restore or a wake to its end: one generation, with sessions of its own, which have the
    same generation."""

    generation: int
    sessions: Mapping[str, str]
    """Identity -> session id; the first identity is the default."""
    credentials: Mapping[str, tuple[str, ...]]
    """Identity -> what its session was granted."""
    after: int | None = None
    """The generation whose memory it began from; None: it booted."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One snapshot, as callers see it."""

    name: str
    created_at: float | None
    """Unix time. None: it is damaged, and can only be removed."""
    generation: int | None
    bytes_on_disk: int


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """What a life begins from that is not a boot."""

    snapshot: str
    """Its directory."""
    generation: int
    """Of the life that was saved there."""
    lives: tuple[Incarnation, ...]
    """Of that sandbox, as far as it is known here."""
    sandbox: str
    """Whose snapshot it is."""
    template: int | None = None
    """A descriptor of its memory, which several share."""

    @property
    def last(self) -> Incarnation | None:
        """The life that was saved. None: nothing is known of it, as after an import."""
        return next((each for each in self.lives if each.generation == self.generation), None)


def line_of(lives: Iterable[Incarnation], generation: int) -> tuple[Incarnation, ...]:
    """The life of that generation and those that it came after, the youngest first."""
    by_generation = {each.generation: each for each in lives}
    line: list[Incarnation] = []
    life = by_generation.pop(generation, None)
    while life is not None:
        line.append(life)
        life = by_generation.pop(life.after, None) if life.after is not None else None
    return tuple(line)


def still_needed(lives: Iterable[Incarnation], generations: Iterable[int]) -> tuple[Incarnation, ...]:
    """The lives of these generations, and all that they came after; in order, each once."""
    known = tuple(lives)
    kept = {each.generation: each for wanted in generations for each in line_of(known, wanted)}
    return tuple(kept[generation] for generation in sorted(kept))


def sessions_of(lives: Iterable[Incarnation]) -> frozenset[str]:
    """Whose handles processes of these lives may hold."""
    return frozenset(session for life in lives for session in life.sessions.values())


def to_replace(
    saved: Sequence[Saved], limit: int, keeping: Durability, used: Collection[str] = ()
) -> tuple[str, ...]:
    """Which snapshots another one takes the place of, of those that are there, the oldest first: as many as
    are too many with it, be it that the limit was lowered. None of `used`, from which somebody begins just
    now. Empty: there is room, or it is to be refused."""
    if not keeping.rotates:
        return ()
    periodic = [each.name for each in saved if each.name.startswith(PERIODIC) and each.name not in used]
    return tuple(periodic[: max(0, len(saved) + 1 - limit)])


def first_due(saved: Iterable[Saved], generation: int, every: float, soon: float, now: float) -> float:
    """Seconds until the first periodic snapshot of a sandbox that is seen to run, of that generation. `soon`:
    of one that has nothing to come back from. Times are Unix seconds, `every` the period.

    A sandbox that was restored has run for a whole period before it may take an older one's place: one that
    dies again and again would replace, one by one, all those that it was well in.
    """
    times = {each.generation: each.created_at for each in saved if each.created_at is not None}
    if not times:
        return soon
    own = times.get(generation)  # its daemon is another one now
    return min(every, max(soon, own + every - now)) if own is not None else every
