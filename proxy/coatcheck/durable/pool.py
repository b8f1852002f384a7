"""In the daemon: keeps the warm pool: machines that have booted before a sandbox of their shape is asked
for.

A thread of its own fills it, one machine at a time, and only while no sandbox is starting. A machine is
handed out once. It is replaced when it is too old, dead, or of another shape than the settings want now.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from coatcheck.certificates.trust import TrustFiles
from coatcheck.durable.admission import check_room, has_room
from coatcheck.durable.backends import Choice
from coatcheck.durable.entries import Entries, Entry
from coatcheck.durable.sandbox import Admitted, Sandbox
from coatcheck.durable.states import Event, State
from coatcheck.durable.warm_machine import Shape, WarmMachine, shape_of, wanted_shape
from coatcheck.platform.outage import Outage
from coatcheck.sandbox.limits import LimitError, LimitName, ceilings, choose
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import Backend, SandboxRefused, SandboxState
from coatcheck.settings.daemon import Settings

REFILL_SECONDS: Final = 0.5
"""How often it is refilled; at once when a machine was claimed."""
WORST_WAIT: Final = 300.0
"""Seconds between tries when none comes up; from a second on, twice as long each time."""
GAVE_WAY_SECONDS: Final = 60.0
"""For which it stays empty when its memory was wanted for a sandbox that somebody has."""

FROM_POOL: Final = "from the warm pool"
EMPTY: Final = "the warm pool is empty: it boots"
OTHER_SHAPE: Final = "the warm pool has no machine of this size: booting a new one"

_DOWN: Final = (SandboxState.SLEEPING, SandboxState.ENDED)

logger = logging.getLogger(__name__)


class Pool:
    """Thread-safe. `choose` says what a sandbox is made of here, and may measure for seconds."""

    def __init__(
        self,
        settings: Settings,
        trust: TrustFiles | None,
        root: Path,
        choose: Callable[[Backend | None, str | None], Choice],
        sandboxes: Callable[[], Sequence[Sandbox]],
        entries: Entries,
    ) -> None:
        """`root`: of all sandboxes' directories; `sandboxes`: those that callers have; `entries`: of those
        and of the pool's machines."""
        self._settings = settings
        self._size = settings.warm_pool if trust is not None else 0
        self._trust = trust
        self._root = root
        self._choose = choose
        self._sandboxes = sandboxes
        self._entries = entries
        self._failures = 0
        self._not_before = 0.0
        self._outage = Outage()
        self._closing = False
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warm-pool", daemon=True)

    def begin(self) -> None:
        """From now on it fills. Nothing happens where its size is 0."""
        if self._size:
            self._thread.start()

    def take(self, admitted: Admitted, names: tuple[str, ...]) -> tuple[WarmMachine | None, str]:
        """One that is ready, its receiver's alone; or None. And a word on it, none where there is no pool."""
        if not self._size:
            return None, ""
        shape = wanted_shape(admitted, names)
        with self._entries.lock:
            self._poll()
            for entry, machine in [] if self._closing else self._in(State.WARM):
                if machine.shape == shape and not self._is_old(machine):
                    entry.move(Event.CLAIMED)
                    self._due.set()
                    return machine, FROM_POOL
            same = self._closing or any(each.shape == shape for each in self.machines())
        if same or (shape is not None and shape == self._wanted_shape()):
            return None, EMPTY
        return None, OTHER_SHAPE

    def end(self, unclaimed: WarmMachine) -> None:
        """One that was taken and came to nothing."""
        with self._entries.lock:
            entry = self._entries.get(unclaimed.id)
            if entry is not None and entry.may(Event.DISMISSED):
                entry.move(Event.DISMISSED)
            unclaimed.end()

    def give_way(self) -> None:
        """Somebody's sandbox wants the memory: all end, and none comes for a while."""
        with self._entries.lock:
            self._not_before = time.monotonic() + GAVE_WAY_SECONDS
            self._dismiss(lambda each: True)

    def check_room(self, others: Iterable[Sandbox], sandbox: Sandbox, size: Size) -> None:
        """`admission.check_room`, with what the pool holds. It gives way to a sandbox that is refused: the
        next time there is room."""
        try:
            check_room(others, sandbox, size, self._settings.sandbox_total_memory, self.memory_mib)
        except SandboxRefused:
            self.give_way()
            raise

    def machines(self, *, ready: bool = False) -> tuple[WarmMachine, ...]:
        """Those that can be claimed now or later; those that are `ready`."""
        with self._entries.lock:
            self._poll()
            states = (State.WARM,) if ready else (State.WARMING, State.WARM)
            return tuple(machine for _, machine in self._in(*states))

    def _in(self, *states: State) -> list[tuple[Entry, WarmMachine]]:
        found = ((each, each.machine) for each in self._entries.copy().values() if each.state in states)
        return [(each, machine) for each, machine in found if machine is not None]

    @property
    def memory_mib(self) -> int:
        """What all of them hold, or are about to."""
        held = self._in(*(state for state in State if state.is_pooled))
        return sum(machine.shape.resources.memory_mib for _, machine in held)

    def counts(self) -> dict[str, float]:
        """How many there are, by `starting` and `ready`; nothing where there is no pool."""
        if not self._size:
            return {}
        with self._entries.lock:
            self._poll()
            return {
                "starting": float(len(self._in(State.WARMING))),
                "ready": float(len(self._in(State.WARM))),
            }

    def close(self) -> None:
        """All of them are gone when this returns."""
        with self._entries.lock:
            self._closing = True
            self._dismiss(lambda each: True)
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join()

    # --- its thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing or self._in(State.DISMISSED):
            try:
                self._refill()
            except Exception:
                logger.exception("the warm pool could not be refilled; it will be tried again")
            self._due.wait(REFILL_SECONDS / 10 if self._in(State.DISMISSED) else REFILL_SECONDS)
            self._due.clear()

    def _refill(self) -> None:
        shape = None if self._closing else self._wanted_shape()
        with self._entries.lock:
            self._poll()
            self._dismiss(lambda each: each.shape != shape or self._is_old(each))
            leaving = self._in(State.DISMISSED)
            full = bool(self._in(State.WARMING)) or len(self.machines()) >= self._size
        gone = [entry for entry, machine in leaving if machine.is_gone()]
        with self._entries.lock:
            for entry in gone:
                entry.move(Event.LEFT)
                del self._entries[entry.id]
        if shape is not None and not full and time.monotonic() >= self._not_before:
            self._add(shape)

    def _poll(self) -> None:
        """What they have said meanwhile. With the lock held."""
        for entry, machine in self._in(State.WARMING, State.WARM):
            event = machine.poll()
            if event is None or not entry.may(event):
                continue
            if entry.state is State.WARMING:
                self._came_up(event is Event.BOOTED)
            if event is Event.DISMISSED:
                machine.end()
            entry.move(event)

    def _add(self, shape: Shape) -> None:
        if self._trust is None or not self._is_room(shape.resources.memory_mib):
            return
        sandbox_id = f"sbx_{secrets.token_hex(8)}"
        directory = self._root / sandbox_id.removeprefix("sbx_")
        try:
            made = WarmMachine(sandbox_id, shape, directory, self._settings, self._trust)
        except OSError as error:
            self._complain(f"no supervisor can be started: {error}")
            self._came_up(False)
            return
        with self._entries.lock:
            self._entries[sandbox_id] = Entry(sandbox_id, state=State.WARMING, machine=made)
            if self._closing:
                self._dismiss(lambda each: True)

    def _is_room(self, more: int) -> bool:
        """For one that nobody asked for: sandboxes that callers asked for go first."""
        alive = [each for each in self._sandboxes() if each.state not in _DOWN]
        if any(each.state is SandboxState.STARTING for each in alive):
            return False
        if len(alive) + len(self.machines()) >= self._settings.max_sandboxes:
            return False
        return has_room(alive, self.memory_mib, more, self._settings.sandbox_total_memory)

    def _wanted_shape(self) -> Shape | None:
        """None: this machine cannot make one."""
        settings = self._settings
        asked = {
            LimitName.MEMORY: settings.warm_pool_memory,
            LimitName.CPUS: settings.warm_pool_cpus,
            LimitName.DISK: settings.warm_pool_disk,
        }
        try:
            limits = choose({name: n for name, n in asked.items() if n is not None}, ceilings(settings))
            backend = Backend(settings.warm_pool_backend) if settings.warm_pool_backend else None
            return shape_of(self._choose(backend, settings.warm_pool_image), limits)
        except (LimitError, SandboxRefused) as error:
            self._complain(f"{error} ({error.hint})")
            return None

    def _came_up(self, ready: bool) -> None:
        self._failures = 0 if ready else self._failures + 1
        if self._failures:
            self._not_before = time.monotonic() + min(WORST_WAIT, 2.0 ** (self._failures - 1))
            self._complain("a machine ended before it was ready; see above")

    def _dismiss(self, which: Callable[[WarmMachine], bool]) -> None:
        """With the lock held."""
        for entry, machine in self._in(State.WARMING, State.WARM):
            if which(machine):
                entry.move(Event.DISMISSED)
                machine.end()

    def _is_old(self, each: WarmMachine) -> bool:
        return time.monotonic() - each.born > self._settings.warm_pool_age

    def _complain(self, why: str) -> None:
        if self._outage.noticed(why):
            logger.warning("the warm pool cannot be filled: %s", why)
