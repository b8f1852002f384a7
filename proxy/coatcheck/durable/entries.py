"""In the daemon: defines the one entry that it has for each sandbox and each machine of the warm pool."""

import logging
import subprocess
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import Any

from coatcheck.durable.sandbox import Record, Sandbox, WantedSandbox
from coatcheck.durable.states import LIVE, TRANSITIONS, Event, State
from coatcheck.durable.warm_machine import WarmMachine
from coatcheck.sandbox.sandbox import Backend
from coatcheck.telemetry.events import SandboxChange

logger = logging.getLogger(__name__)


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
    """What the daemon knows of one sandbox. Changed under `Entries.lock`, unless a field says otherwise."""

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
    machine: WarmMachine | None = None
    """Of the warm pool, until it runs as this sandbox."""
    record: Record | None = None
    """What is on disk of it. None: it is not kept. `SandboxStore` alone changes it."""
    in_use: Counter[Path] = field(default_factory=Counter)
    """Its snapshots that something begins from just now. Changed by `SandboxStore`, with its own lock."""
    going: Counter[Path] = field(default_factory=Counter)
    """Its snapshots that are being removed or replaced. Changed as `in_use` is."""
    care: Care = field(default_factory=Care)
    """The reconcile loop's own, which alone reads and writes it."""

    @classmethod
    def found(cls, sandbox: Sandbox, record: Record | None) -> "Entry":
        """As an earlier daemon left it. One that is over is ending until it is known what is left of it."""
        over = Event.KILLED if record is not None and record.discarded else Event.ENDS
        state = LIVE[over] if sandbox.over else State(sandbox.state)
        entry = cls(sandbox.id, state=state, sandbox=sandbox, record=record)
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


class Entries(dict[str, Entry]):
    """All of them, by id. A single lookup needs no lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = RLock()
