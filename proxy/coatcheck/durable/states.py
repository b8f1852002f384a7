"""In the daemon: defines the states of a sandbox, and the one table of changes between them.

`Sandboxes` keeps one `Entry` for each sandbox. Its state changes in `Entry.move` only, which looks the change
up here: what is not in the table is a mistake of ours, is logged, and does not happen. The diagram in
docs/sandboxes.md is written from this table.
"""

import logging
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from coatcheck.durable.sandbox import Sandbox, WantedSandbox
from coatcheck.sandbox.sandbox import Backend, SandboxState
from coatcheck.telemetry.events import SandboxChange

logger = logging.getLogger(__name__)


class State(StrEnum):
    """Finer than `SandboxState`, which is what callers see."""

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
    def takes_a_place(self) -> bool:
        """It counts for the limits on how many sandboxes may run."""
        return self in _BEGINS or not (self.is_down or self is State.SLEEPING)


_SHOWN: Final = {
    State.ASLEEP: SandboxState.SLEEPING,
    State.WAKING: SandboxState.SLEEPING,
    State.DISCARDING: SandboxState.ENDING,
    State.RESTORABLE: SandboxState.ENDED,
    State.RESTORING: SandboxState.ENDED,
}
_HEARD: Final = frozenset({State.STARTING, State.RUNNING, State.PAUSED, State.SLEEPING})
_BEGINS: Final = frozenset({State.ADMITTED, State.WAKING, State.RESTORING})
_DOWN: Final = frozenset({State.ASLEEP, State.WAKING, State.RESTORABLE, State.RESTORING, State.ENDED})


class Event(StrEnum):
    """What happens to a sandbox."""

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

_LIVE: Final[Mapping[Event, State]] = {
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
    State.ADMITTED: {Event.STARTED: State.STARTING, Event.WITHDRAWN: State.ENDED},
    State.STARTING: _LIVE,
    State.RUNNING: _LIVE,
    State.PAUSED: _LIVE,
    State.SLEEPING: _LIVE,
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


@dataclass(slots=True)
class Care:
    """What the reconcile loop remembers of one sandbox, and a restart of the daemon may forget."""

    wakes: list[float] | None = None
    """When waking it was tried, on the monotonic clock. None: nobody but a caller wakes it."""
    failed: str = ""
    """Why its last recovery came to nothing."""
    snapshot_due: float | None = None
    """When its next periodic snapshot is due, on the monotonic clock. None: that is not known yet."""


@dataclass(slots=True)
class Entry:
    """What the daemon knows of one sandbox beside what is on disk. Changed under the lock of `Sandboxes`."""

    id: str
    wanted: WantedSandbox | None = None
    """As it was last admitted. None: by an earlier daemon."""
    state: State = State.ADMITTED
    sandbox: Sandbox | None = None
    """As callers see it. None: it was admitted, and has not begun."""
    process: "subprocess.Popen[bytes] | None" = None
    """Its supervisor. None: there is none, or an earlier daemon started it."""
    ending_since: float | None = None
    """On the monotonic clock."""
    clearing: bool = False
    """Its supervisor is gone, and one thread removes what is left."""
    announced: SandboxChange = SandboxChange.RUNNING
    """The change that is reported when it first runs."""
    care: Care = field(default_factory=Care)
    """The reconcile loop's own, which alone reads and writes it."""

    @classmethod
    def found(cls, sandbox: Sandbox, *, discarded: bool) -> "Entry":
        """As an earlier daemon left it. One that is over is ending until it is known what is left of it."""
        over = Event.KILLED if discarded else Event.ENDS
        entry = cls(sandbox.id, state=_LIVE[over] if sandbox.over else State(sandbox.state), sandbox=sandbox)
        entry.change()
        return entry

    @property
    def known(self) -> Sandbox:
        """Of one that has begun."""
        if self.sandbox is None:
            raise LookupError(f"{self.id} has not begun")
        return self.sandbox

    @property
    def opened_by(self) -> str:
        """The caller that it counts for."""
        return self.wanted.opened_by if self.wanted is not None else self.known.opened_by

    @property
    def will_be_kept(self) -> bool:
        """It was admitted, and gets a place on disk when it begins."""
        wanted = self.wanted if self.state.begins else None
        return wanted is not None and wanted.choice.backend is Backend.MICROVM

    def may(self, event: Event) -> bool:
        return event in TRANSITIONS[self.state]

    def move(self, event: Event, **changes: Any) -> bool:
        """What happens to it, with the `changes` of its `sandbox` that go with that. False: it cannot happen,
        and nothing has."""
        if not self.may(event):
            logger.error("sandbox %s is %s, so this is refused: %s", self.id, self.state, event)
            return False
        self.state = TRANSITIONS[self.state][event]
        self.change(**changes)
        return True

    def change(self, **changes: Any) -> None:
        """Something of it that is no state."""
        if self.sandbox is not None:
            saved = self.state in (State.RESTORABLE, State.RESTORING)
            self.sandbox = replace(self.sandbox, state=self.state.shown, recoverable=saved, **changes)
