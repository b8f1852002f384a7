"""Which sandboxes a daemon has, and room for one more: what this machine gives, and how many it may be."""

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from coatcheck.durable.admission import decide, too_many
from coatcheck.durable.sandbox import (
    Admitted,
    Sandbox,
    WantedSandbox,
)
from coatcheck.durable.store import SandboxStore
from coatcheck.launcher.backends import Backends
from coatcheck.launcher.limits import ceilings
from coatcheck.launcher.sandbox import (
    Backend,
    Choice,
    SandboxProblem,
    SandboxRefused,
    SandboxState,
)
from coatcheck.settings.daemon import Settings
from coatcheck.state.sessions import OWN_SANDBOX


class Register:
    """Thread-safe, by one lock."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root = settings.runtime.absolute() / "sandboxes"
        self._backends = Backends(settings)
        self.kept = SandboxStore(settings)
        self._lock = threading.Lock()
        self._known: dict[str, Sandbox] = {}
        self._admitted: dict[str, WantedSandbox] = {}
        """By sandbox id, those that were admitted and have no supervisor yet."""
        self._asleep: set[str] = set()
        """Those that sleep without a supervisor."""
        self._starting = 0
        """How many are being started or claimed just now."""
        self._closing = False

    def get(self, sandbox_id: str) -> Sandbox | None:
        return self._known.get(sandbox_id)

    def all(self) -> tuple[Sandbox, ...]:
        """By id, those that ended a while ago included."""
        return tuple(self._known[each] for each in sorted(self._known.copy()))

    def ownerless(self, listeners: Mapping[str, int]) -> frozenset[str]:
        """Of `State.listeners`, sessions that were opened for a sandbox of ours which is not there."""
        opened = {session for session, port in listeners.items() if port == OWN_SANDBOX}
        return frozenset(opened.difference(*(each.sessions.values() for each in self.all())))

    def directory(self, sandbox_id: str) -> Path:
        """The sandbox's own; its supervisor listens there (`api.sock`)."""
        return self._root / sandbox_id.removeprefix("sbx_")

    # --- from asked for to there -----------------------------------------------------------------------

    def choose(self, backend: Backend | None, image: str | None) -> Choice:
        """What a sandbox would be made of here, measured (the first time: seconds). SandboxRefused."""
        return self._backends.choose(backend, image)

    def admit(self, wanted: WantedSandbox, sandbox_id: str | None = None) -> Admitted:
        """Room for it, or SandboxRefused. `withdraw` it if nothing comes of it. `sandbox_id`: of one that
        sleeps or has ended, and is to come back."""
        limits, elastic = decide(wanted, ceilings(self._settings))
        with self._lock:
            if sandbox_id is not None and (sandbox_id in self._admitted or not self.is_down(sandbox_id)):
                raise SandboxRefused(
                    SandboxProblem.SANDBOX_BUSY,
                    f"{sandbox_id} is running, or somebody brings it back just now",
                    "See `coatcheck sandbox list`.",
                )
            down = (SandboxState.ENDED, SandboxState.SLEEPING)
            live = [each.opened_by for each in self._known.values() if each.state not in down]
            live += [each.opened_by for each in self._admitted.values()]
            most, each_most = self._settings.max_sandboxes, self._settings.max_sandboxes_per_caller
            if len(live) >= most:
                raise too_many(f"this daemon runs {most} sandboxes already", "")
            if live.count(wanted.opened_by) >= each_most:
                raise too_many(f"you run {each_most} sandboxes already", "_PER_CALLER")
            if sandbox_id is None and wanted.choice.backend is Backend.MICROVM:
                # Not when it begins: sessions and a machine of the warm pool would be spent on a refusal.
                self.kept.check_room(
                    name for name, each in self._admitted.items() if each.choice.backend is Backend.MICROVM
                )
            admitted = Admitted(sandbox_id or f"sbx_{secrets.token_hex(8)}", wanted, asdict(limits), elastic)
            self._admitted[admitted.id] = wanted
        return admitted

    def withdraw(self, admitted: Admitted) -> None:
        with self._lock:
            self._admitted.pop(admitted.id, None)

    def start_no_more(self) -> None:
        """The daemon stops."""
        with self._lock:
            self._closing = True

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """A life begins meanwhile: a daemon that stops waits for it, and then ends it. SandboxRefused once it
        stops."""
        with self._lock:
            if self._closing:
                raise SandboxRefused(
                    SandboxProblem.NOT_STARTED,
                    "the daemon is shutting down",
                    "Try again when it is back.",
                )
            self._starting += 1
        try:
            yield
        finally:
            with self._lock:
                self._starting -= 1

    def alive(self) -> tuple[tuple[Sandbox, ...], int]:
        """Those that are not down, and how many are being started."""
        starting = self._starting  # first: who was started since then is among those that are not down
        return tuple(each for each in self.all() if not self.is_down(each.id)), starting

    def is_down(self, sandbox_id: str) -> bool:
        """Whether nothing of it runs: it has ended, or sleeps without a supervisor."""
        sandbox = self._known.get(sandbox_id)
        return sandbox_id in self._asleep or (sandbox is not None and sandbox.state is SandboxState.ENDED)
