"""In the daemon: defines the states of a sandbox, and the one table of changes between them.

Machines of the warm pool are in it from their boot. A state changes in `Entry.move` only, which looks the
change up here: what is not in the table is a mistake of ours, is logged, and does not happen. The diagram in
docs/sandboxes.md is written from this table.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from coatcheck.sandbox.sandbox import SandboxState


class State(StrEnum):
    """Finer than `SandboxState`, which is what callers see."""

    WARMING = "warming"
    """A machine of the warm pool boots. It belongs to no caller."""
    WARM = "warm"
    """A machine of the warm pool that has booted, and waits for a sandbox of its shape."""
    CLAIMED = "claimed"
    """A sandbox is made of a warm machine. The machine is no longer the pool's."""
    DISMISSED = "dismissed"
    """A machine of the warm pool that nobody gets: too old, dead, or not needed. It is being removed."""
    ADMITTED = "admitted"
    """There is room for it, and its sessions are being opened. Callers do not see it yet."""
    STARTING = "starting"
    """Its supervisor boots it, or restores what was saved of it."""
    RUNNING = "running"
    """Programs run in it."""
    PAUSED = "paused"
    """Nothing in it runs until a caller resumes it."""
    SLEEPING = "sleeping"
    """Saved to disk. Its supervisor is still there, and wakes it."""
    ASLEEP = "asleep"
    """Saved to disk, without a supervisor. The next use gives it one."""
    WAKING = "waking"
    """As `asleep`; a caller or the daemon is waking it."""
    ENDING = "ending"
    """Its sessions are over. Its supervisor is removing processes and files."""
    DISCARDING = "discarding"
    """As `ending`; a caller killed it, also while it was being started, so its snapshots go as well."""
    RESTORABLE = "restorable"
    """It ended, and there is a snapshot of it to restore."""
    RESTORING = "restoring"
    """As `restorable`; a caller or the daemon is restoring it."""
    ENDED = "ended"
    """Nothing of it is left. The daemon remembers for a while why."""

    @property
    def shown(self) -> SandboxState:
        """What callers see, from `starting` on."""
        return _SHOWN.get(self) or SandboxState(self.value)

    @property
    def is_down(self) -> bool:
        """It has no supervisor: nothing of it runs."""
        return self in _DOWN

    @property
    def is_heard(self) -> bool:
        """Its supervisor's reports count. Later ones were under way when it ended."""
        return self in _HEARD

    @property
    def begins(self) -> bool:
        """A start, wake or restore was admitted, and no supervisor runs yet."""
        return self in _BEGINS

    @property
    def is_pooled(self) -> bool:
        """It is of the warm pool, and no caller's."""
        return self in _POOLED

    @property
    def takes_a_place(self) -> bool:
        """It counts for the limits on how many sandboxes may run."""
        return not (self.is_down or self.is_pooled or self is State.SLEEPING) or self in _BEGINS


_SHOWN: Final = {
    State.WARMING: SandboxState.STARTING,
    State.WARM: SandboxState.STARTING,
    State.CLAIMED: SandboxState.STARTING,
    State.DISMISSED: SandboxState.ENDING,
    State.ASLEEP: SandboxState.SLEEPING,
    State.WAKING: SandboxState.SLEEPING,
    State.DISCARDING: SandboxState.ENDING,
    State.RESTORABLE: SandboxState.ENDED,
    State.RESTORING: SandboxState.ENDED,
}
_HEARD: Final = frozenset({State.STARTING, State.RUNNING, State.PAUSED, State.SLEEPING})
_BEGINS: Final = frozenset({State.ADMITTED, State.WAKING, State.RESTORING})
_POOLED: Final = frozenset({State.WARMING, State.WARM, State.CLAIMED, State.DISMISSED})
_DOWN: Final = frozenset({State.ASLEEP, State.WAKING, State.RESTORABLE, State.RESTORING, State.ENDED})


class Event(StrEnum):
    """What happens to a sandbox."""

    BOOTED = "it has booted"
    CLAIMED = "a sandbox of its shape is wanted"
    DISMISSED = "the pool does not need it"
    RETURNS = "its return is admitted"
    """There is room for its next life."""
    WITHDRAWN = "it cannot be started"
    """Nothing was started. Of a new sandbox: it is forgotten."""
    STARTED = "its supervisor is started"
    RUNS = "it runs"
    """Reported by the supervisor, like PAUSES and SLEEPS."""
    PAUSES = "it is paused"
    SLEEPS = "it is saved"
    ENDS = "it ends"
    """For any reason but KILLED: `Ending` has them."""
    KILLED = "a caller kills it"
    LEFT_ASLEEP = "its supervisor is gone, its sleep is saved"
    LEFT_SAVED = "its supervisor is gone, a snapshot is left"
    LEFT = "its supervisor is gone, nothing is left"


REPORTS: Final[Mapping[SandboxState, Event | None]] = {
    SandboxState.STARTING: None,
    SandboxState.RUNNING: Event.RUNS,
    SandboxState.PAUSED: Event.PAUSES,
    SandboxState.SLEEPING: Event.SLEEPS,
    SandboxState.ENDING: Event.ENDS,
}
"""What a supervisor may report, and what it means. No supervisor reports that nothing is left of its sandbox:
that shows when the supervisor is gone."""

LIVE: Final[Mapping[Event, State]] = {
    Event.RUNS: State.RUNNING,
    Event.PAUSES: State.PAUSED,
    Event.SLEEPS: State.SLEEPING,
    Event.ENDS: State.ENDING,
    Event.KILLED: State.DISCARDING,
    Event.LEFT_ASLEEP: State.ASLEEP,
    Event.LEFT_SAVED: State.RESTORABLE,
    Event.LEFT: State.ENDED,
}
"""Of a sandbox whose supervisor is there. A daemon may meet it in any of these after its own restart."""

TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.WARMING: {Event.BOOTED: State.WARM, Event.DISMISSED: State.DISMISSED},
    State.WARM: {Event.CLAIMED: State.CLAIMED, Event.DISMISSED: State.DISMISSED},
    State.CLAIMED: {Event.STARTED: State.STARTING, Event.DISMISSED: State.DISMISSED},
    State.DISMISSED: {Event.LEFT: State.ENDED},
    State.ADMITTED: {Event.STARTED: State.STARTING, Event.WITHDRAWN: State.ENDED},
    State.STARTING: LIVE,
    State.RUNNING: LIVE,
    State.PAUSED: LIVE,
    State.SLEEPING: LIVE,
    State.ASLEEP: {Event.RETURNS: State.WAKING, Event.KILLED: State.ENDED},
    State.WAKING: {
        Event.STARTED: State.STARTING,
        Event.WITHDRAWN: State.ASLEEP,
        Event.KILLED: State.ENDED,
    },
    State.ENDING: {
        Event.KILLED: State.DISCARDING,
        Event.LEFT_ASLEEP: State.ASLEEP,
        Event.LEFT_SAVED: State.RESTORABLE,
        Event.LEFT: State.ENDED,
    },
    State.DISCARDING: {Event.KILLED: State.DISCARDING, Event.LEFT: State.ENDED},
    State.RESTORABLE: {Event.RETURNS: State.RESTORING, Event.KILLED: State.ENDED},
    State.RESTORING: {
        Event.STARTED: State.STARTING,
        Event.WITHDRAWN: State.RESTORABLE,
        Event.KILLED: State.ENDED,
    },
    # Killed while its next supervisor was being started: that one is ended, and what it made removed.
    State.ENDED: {
        Event.STARTED: State.DISCARDING,
        Event.WITHDRAWN: State.ENDED,
        Event.KILLED: State.ENDED,
    },
}
"""What is not here cannot happen."""
