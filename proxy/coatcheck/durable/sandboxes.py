"""In the daemon: keeps one entry for each sandbox, from its admission until its supervisor is gone.

Thread-safe. Calls are short, but `choose` may measure for seconds, and `kill` may wait. A supervisor gets all
that it needs in its spec; afterwards it speaks to the daemon through the control API.
"""

import contextlib
import logging
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from coatcheck.certificates.trust import TrustFiles
from coatcheck.containers.cgroup import remove as remove_cgroup
from coatcheck.durable import run_directory
from coatcheck.durable.admission import decide, too_many
from coatcheck.durable.asking import (
    ANSWER_SECONDS,
    SupervisorSilent,
    ask_supervisor,
    kill_supervisor,
)
from coatcheck.durable.backends import Backends, Choice
from coatcheck.durable.durability import RestorePoint
from coatcheck.durable.elastic import Initiator
from coatcheck.durable.entries import Care, Entries, Entry
from coatcheck.durable.pool import Pool
from coatcheck.durable.sandbox import (
    Admitted,
    ClaimFailed,
    Record,
    Sandbox,
    SandboxIdentity,
    WantedSandbox,
)
from coatcheck.durable.spawning import is_gone
from coatcheck.durable.starting import claim, event_of, first_event, refusal_of, sandbox_of, start
from coatcheck.durable.states import REPORTS, Event, State
from coatcheck.durable.store import SandboxStore
from coatcheck.durable.warm_machine import ClaimError, WarmMachine
from coatcheck.sandbox.limits import ceilings
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import Backend, Ending, SandboxProblem, SandboxRefused, SandboxState
from coatcheck.settings.daemon import Settings
from coatcheck.state.sessions import OWN_SANDBOX
from coatcheck.telemetry.events import SandboxChange, SandboxEvent

logger = logging.getLogger(__name__)

MAX_REMEMBERED: Final = 256
"""Sandboxes that ended, so that callers can see why."""
KILL_SECONDS: Final = 45.0
"""A supervisor that has not ended by then is killed: a little more than it gives its machine."""

CLOSE_POLL_SECONDS: Final = 0.02

type Emit = Callable[[SandboxEvent], None]


class Sandboxes:
    """`end_session(session, why)` must be safe to call for one that is over. `trust`: what all of them are to
    trust; without it there is no warm pool."""

    def __init__(
        self,
        settings: Settings,
        emit: Emit,
        end_session: Callable[[str, str], None],
        trust: TrustFiles | None = None,
    ) -> None:
        self._settings = settings
        self._root = settings.runtime.absolute() / "sandboxes"
        self._backends = Backends(settings)
        self._entries = Entries()
        self._lock = self._entries.lock
        """Of all entries, and of what is below it here."""
        self.kept = SandboxStore(settings, self._entries)
        self._starting = 0
        """How many are being started or claimed just now."""
        self._closing = False
        self._emit = emit
        self._end_session = end_session
        self.pool = Pool(settings, trust, self._root, self.choose, self.all, self._entries)

    def get(self, sandbox_id: str) -> Sandbox | None:
        entry = self._entries.get(sandbox_id)
        return entry.sandbox if entry is not None else None

    def all(self) -> tuple[Sandbox, ...]:
        """By id, those that ended a while ago included."""
        found = (each.sandbox for _, each in sorted(self._entries.copy().items()))
        return tuple(each for each in found if each is not None)

    def supervisor(self, sandbox_id: str) -> "subprocess.Popen[bytes] | None":
        """Its process. None: it has none, or an earlier daemon started it."""
        entry = self._entries.get(sandbox_id)
        return entry.process if entry is not None else None

    def care(self, sandbox_id: str) -> Care | None:
        """What the reconcile loop remembers of it. None: it is not known any more."""
        entry = self._entries.get(sandbox_id)
        return entry.care if entry is not None else None

    def admitted(self) -> frozenset[str]:
        """Those that are to begin, or to begin again, and have no supervisor yet."""
        return frozenset(each.id for each in self._entries.copy().values() if each.state.begins)

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
        try:
            return self._admit(wanted, sandbox_id)
        except SandboxRefused as error:
            if error.problem is not SandboxProblem.SANDBOX_BUSY:  # somebody has it, so nothing was refused
                self._emit(refusal_of(wanted, sandbox_id or "", error))
            raise

    def _admit(self, wanted: WantedSandbox, sandbox_id: str | None) -> Admitted:
        limits, elastic = decide(wanted, ceilings(self._settings))
        with self._lock:
            entry = self._entries.get(sandbox_id) if sandbox_id is not None else None
            if sandbox_id is not None and (entry is None or not entry.may(Event.RETURNS)):
                raise SandboxRefused(
                    SandboxProblem.SANDBOX_BUSY,
                    f"{sandbox_id} is running, or is being restored right now",
                    "See `coatcheck sandbox list`.",
                )
            live = [each.opened_by for each in self._entries.values() if each.state.takes_a_place]
            most, each_most = self._settings.max_sandboxes, self._settings.max_sandboxes_per_caller
            if len(live) >= most:
                raise too_many(f"this daemon runs {most} sandboxes already", "")
            if live.count(wanted.opened_by) >= each_most:
                raise too_many(f"you run {each_most} sandboxes already", "_PER_CALLER")
            if entry is None:
                if wanted.choice.backend is Backend.MICROVM:
                    # Not when it begins: sessions and a machine of the warm pool would be spent on a refusal.
                    self.kept.check_room()
                entry = Entry(f"sbx_{secrets.token_hex(8)}")
                self._entries[entry.id] = entry
            else:
                entry.move(Event.RETURNS)
            entry.wanted = wanted
        return Admitted(entry.id, wanted, limits, elastic)

    def withdraw(self, admitted: Admitted) -> None:
        """Nothing comes of it. One that has begun goes on."""
        with self._lock:
            entry = self._entries.get(admitted.id)
            if entry is None or not entry.may(Event.WITHDRAWN):
                return
            entry.move(Event.WITHDRAWN)
            if entry.sandbox is None:
                del self._entries[admitted.id]

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
        starting = self._starting  # first: one that was started since then is among those that are not down
        return tuple(each for each in self.all() if not self.is_down(each.id)), starting

    def is_down(self, sandbox_id: str) -> bool:
        """Whether nothing of it runs: it has ended, or sleeps without a supervisor."""
        entry = self._entries.get(sandbox_id)
        return entry is not None and entry.state.is_down

    def start(
        self,
        admitted: Admitted,
        identities: Sequence[SandboxIdentity],
        back: RestorePoint | None = None,
        *,
        boots: bool = False,
    ) -> Sandbox:
        """Start its supervisor. SandboxRefused, with nothing left of it, when that cannot be. `back`: what it
        begins from instead of a boot. Unless it `boots`, the warm pool may have it: under the id that it has
        there, and running when this returns, or ClaimFailed."""
        try:
            with self.starting():
                return self._start(admitted, identities, back, boots=boots)
        except SandboxRefused as error:
            self._emit(refusal_of(admitted.wanted, admitted.id, error))
            raise

    def _start(
        self,
        admitted: Admitted,
        identities: Sequence[SandboxIdentity],
        back: RestorePoint | None,
        *,
        boots: bool,
    ) -> Sandbox:
        entry = self._entries.get(admitted.id)
        if entry is None or entry.state is State.ENDED:
            raise _killed_meanwhile()
        unclaimed, word = None, ""
        if back is None and not boots:
            unclaimed, word = self.pool.take(admitted, tuple(each.name for each in identities))
        if unclaimed is not None:
            return self._claim(unclaimed, admitted, identities, word)
        sandbox = sandbox_of(admitted, identities, entry.sandbox, back)
        announced = SandboxChange.RUNNING

        def beginning() -> None:
            nonlocal announced
            first = first_event(sandbox, back, word)
            if first is not None:
                self._emit_change(sandbox, *first)
            elif back is not None:
                woken = Path(back.snapshot) == self.kept.asleep(sandbox.id)
                announced = SandboxChange.WOKE if woken else SandboxChange.RESTORED

        directory = self.directory(sandbox.id)
        process = start(sandbox, admitted, identities, back, self.kept, self._settings, directory, beginning)
        with self._lock:
            entry.sandbox, entry.process, entry.announced = sandbox, process, announced
            entry.move(Event.STARTED)
            self._entries[sandbox.id] = entry
            killed = entry.state is State.DISCARDING
            if killed:
                entry.ending_since = time.monotonic()
        if killed:
            self._record_end(entry)
            process.terminate()
            raise _killed_meanwhile()
        return sandbox

    def _claim(
        self, unclaimed: WarmMachine, admitted: Admitted, identities: Sequence[SandboxIdentity], word: str
    ) -> Sandbox:
        sandbox = sandbox_of(replace(admitted, id=unclaimed.id), identities)

        def beginning() -> None:
            self._emit_change(sandbox, SandboxChange.CREATED, word)
            with self._lock:  # before it reports
                self._entries.pop(admitted.id, None)
                entry = self._entries[sandbox.id]
                entry.wanted, entry.sandbox, entry.process = admitted.wanted, sandbox, unclaimed.process
                entry.machine = None
                entry.move(Event.STARTED)

        try:
            claim(unclaimed, sandbox, admitted, identities, self.kept, self._settings, beginning)
        except ClaimError as error:
            with self._lock:  # one that boots takes its place
                self._entries[admitted.id] = Entry(admitted.id, admitted.wanted)
            self.reported(sandbox.id, SandboxState.ENDING, Ending.REBIND_FAILED, str(error))
            raise ClaimFailed(str(error)) from None
        except BaseException as error:
            self.pool.end(unclaimed)
            if isinstance(error, OSError):  # one that boots is refused in words, if it has to be
                raise ClaimFailed(str(error)) from None
            raise
        return self.reported(sandbox.id, SandboxState.RUNNING) or sandbox

    # --- its life --------------------------------------------------------------------------------------

    def reported(
        self, sandbox_id: str, state: SandboxState, ending: Ending | None = None, detail: str = ""
    ) -> Sandbox | None:
        """What its supervisor says. A sandbox that is over stays over. None: it is not known."""
        with self._lock:
            entry = self._entries.get(sandbox_id)
            if entry is None or entry.sandbox is None:
                return None
            before, event = entry.state, REPORTS.get(state)
            # It starts when we say so, and not after it runs.
            if event is None or not before.is_heard:
                return entry.sandbox
            now = self._moves(entry, event, ending, detail)
        self._moved(entry, before, now)
        return now

    def _moves(self, entry: Entry, event: Event, ending: Ending | None, detail: str) -> Sandbox:
        """With the lock held."""
        if event in (Event.ENDS, Event.KILLED):
            entry.ending_since = time.monotonic()
            entry.move(event, ending=ending or Ending.KILLED, detail=detail)
        else:
            entry.move(event, detail=detail or entry.known.detail)
        return entry.known

    def _moved(self, entry: Entry, before: State, now: Sandbox) -> None:
        """The consequences of a change of one whose supervisor is there."""
        if now.over:
            self._record_end(entry)  # first: the daemon after one that dies here must not bring it back
            self._let_go(now)
            self._emit_change(now, SandboxChange.ENDED, now.detail)
        elif before is State.STARTING and now.state in (SandboxState.RUNNING, SandboxState.PAUSED):
            self.kept.awake(now.id)
            with contextlib.suppress(OSError):  # a daemon that comes after us finds it as it is
                run_directory.describe(self.directory(now.id), now)
            self._emit_change(now, entry.announced, "")
        elif now.state is SandboxState.SLEEPING and before is not State.SLEEPING:
            self._emit_change(now, SandboxChange.SLEEPING, "")
        elif before is State.SLEEPING and now.state is SandboxState.RUNNING:
            self._emit_change(now, SandboxChange.WOKE, "")

    def scale(self, sandbox_id: str, memory_mib: int | None, cpus: int | None) -> Size:
        """Another size for one that runs, as its caller asks; what is None stays. SandboxRefused."""
        try:
            told = self.ask(sandbox_id, "POST", "/scale", {"memory_mib": memory_mib, "cpus": cpus})
        except SupervisorSilent:
            raise SandboxRefused(
                SandboxProblem.NOT_RUNNING,
                "the sandbox's supervisor does not answer",
                "Wait until the sandbox runs; see `coatcheck sandbox show`.",
            ) from None
        return Size(told["memory_mib"], told["cpus"])

    def resized(self, sandbox_id: str, size: Size, by: Initiator) -> Sandbox | None:
        """From its supervisor: it is to count for `size` from now on. SandboxRefused when the host has no
        room for that; then it has not grown. None: it is not known, or over."""
        with self._lock:
            entry = self._entries.get(sandbox_id)
            if entry is None or entry.sandbox is None or entry.sandbox.over:
                return None
            others = (each for each in self.all() if each.id != sandbox_id)
            self.pool.check_room(others, entry.sandbox, size)
            entry.change(resources=replace(entry.sandbox.resources, **asdict(size)))
            now = entry.sandbox
        with contextlib.suppress(FileNotFoundError):  # it ends at this moment
            run_directory.describe(self.directory(sandbox_id), now)  # for a daemon that comes after us
        self._emit_change(now, SandboxChange.RESIZED, f"{size.memory_mib} MiB, {size.cpus} CPUs: {by}")
        return now

    def kill(self, sandbox_id: str, ending: Ending, detail: str) -> None:
        """Its sessions are over when this returns; the rest of it soon after. Idempotent. KILLED: of what was
        saved of it nothing is kept, either."""
        event = Event.KILLED if ending is Ending.KILLED else Event.ENDS
        with self._lock:
            entry = self._entries.get(sandbox_id)
            if entry is None or entry.sandbox is None:
                return
            before, was = entry.state, entry.sandbox
            if before.is_heard:
                self._moves(entry, event, ending, detail)
            elif entry.may(event):
                asleep = was.state is SandboxState.SLEEPING
                entry.move(event, **{"ending": ending, "detail": detail} if asleep else {})
            now = entry.known
        if before.is_heard:
            self._moved(entry, before, now)
        elif before.is_down:
            if event is Event.KILLED:
                self.kept.forget(sandbox_id)
                if not was.past:
                    self._emit_change(now, SandboxChange.ENDED, detail)
            return
        else:
            self._record_end(entry)  # it was ending, and is now to be discarded
        self._tell_to_end(entry, ending, detail)

    def _record_end(self, entry: Entry) -> None:
        self.kept.ended(entry.known, discarded=entry.state is State.DISCARDING)

    def _tell_to_end(self, entry: Entry, ending: Ending, detail: str) -> None:
        """Its supervisor; one that does not listen is killed by `settle`."""
        try:
            self.ask(entry.id, "POST", "/kill", {"ending": ending, "detail": detail})
        except SupervisorSilent:
            if entry.process is not None:
                entry.process.terminate()

    def ask(
        self,
        sandbox_id: str,
        method: str,
        target: str,
        body: Mapping[str, Any] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Any:
        """One request to its supervisor, and the answer. SupervisorSilent, SandboxRefused."""
        return ask_supervisor(self.directory(sandbox_id), method, target, body, seconds)

    def noted(self, sandbox_id: str, change: SandboxChange, detail: str) -> None:
        """Something was done to it that changes no state of it."""
        sandbox = self.get(sandbox_id)
        if sandbox is not None:
            self._emit_change(sandbox, change, detail)

    def give_up(self, sandbox_id: str, detail: str, why: Ending) -> None:
        """It is no longer restored automatically. A caller may restore it."""
        with self._lock:
            entry = self._entries.get(sandbox_id)
            if entry is None or entry.state is not State.RESTORABLE:
                return  # somebody does just now
            entry.change(ending=why, detail=detail)
            now = entry.known
            self._record_end(entry)
        self._emit_change(now, SandboxChange.GIVEN_UP, detail)

    def sessions_over(self, session_ids: AbstractSet[str], is_over: Callable[[str], bool]) -> None:
        """Sessions ended elsewhere: revoked, lapsed, expired. Their sandboxes end with them; one that several
        share does with the last."""
        for entry in tuple(self._entries.copy().values()):
            sandbox = entry.sandbox
            if sandbox is None or entry.clearing or not entry.state.is_heard:
                continue
            theirs = {name: each for name, each in sandbox.sessions.items() if each in session_ids}
            if not theirs:
                continue
            if sandbox.keeping.shares and not all(map(is_over, sandbox.sessions.values())):
                for name, each in theirs.items():
                    self._emit_change(
                        sandbox, SandboxChange.IDENTITY_OVER, f"{name}: its session {each} is over"
                    )
            else:
                over = next(iter(theirs.values()))
                self.kill(sandbox.id, Ending.SESSION_OVER, f"its session {over} is over")

    def close(self) -> None:
        """All that run end, as the daemon does in order: after a crash they may be adopted instead. What was
        saved of them stays. None begins any more."""
        self.start_no_more()
        self.pool.close()
        until = time.monotonic() + KILL_SECONDS
        while any(alive := self.alive()):
            for sandbox in alive[0]:
                if not sandbox.over:  # also one that began just now
                    self.kill(sandbox.id, Ending.DAEMON_GONE, "the daemon was stopped")
                elif time.monotonic() > until:
                    kill_supervisor(self.supervisor(sandbox.id), self.directory(sandbox.id))
                self.settle(sandbox.id)
            time.sleep(CLOSE_POLL_SECONDS)

    # --- what is left ----------------------------------------------------------------------------------

    def adopt(self, listeners: Mapping[str, int]) -> None:
        """At the daemon's start: sandboxes that outlived the last are ours, what is left of others goes, and
        of `listeners`' sessions those that were opened for a sandbox which never came to be."""
        records = {each.sandbox.id: each for each in self.kept.read_all()}
        for directory in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            try:
                sandbox = run_directory.read(directory)
            except (OSError, ValueError, KeyError, TypeError):
                sandbox = None
            if sandbox is not None:
                entry = self._found(sandbox, records.pop(sandbox.id, None))
                if run_directory.is_locked(directory):
                    if entry.known.over:
                        self._end_adopted(entry)
                    continue
                self._gone(entry)
            remove_cgroup(f"coatcheck-{directory.name}")  # of one that was nobody's, too
            shutil.rmtree(directory, ignore_errors=True)
        for record in records.values():  # it had ended, or the host went down with it
            self._gone(self._found(record.sandbox, record))
        for session in self.ownerless(listeners):
            self._end_session(session, "it was opened for a sandbox, and there is none")
        self.pool.begin()

    def _found(self, sandbox: Sandbox, record: Record | None) -> Entry:
        """As the last daemon left it. A record that says it is over was written before anything was done for
        that, so that counts, whatever its directory says and whether or not its supervisor is there."""
        if record is not None and record.sandbox.over:
            sandbox = record.sandbox
        entry = Entry.found(sandbox, record)
        self._entries[entry.id] = entry
        if entry.known.over:
            self._let_go(entry.known)
        return entry

    def _end_adopted(self, entry: Entry) -> None:
        """The last daemon may have died before it told the supervisor. No start of a daemon waits for one
        that does not answer."""
        entry.ending_since = time.monotonic()
        told = (entry, entry.known.ending or Ending.KILLED, entry.known.detail)
        threading.Thread(target=self._tell_to_end, args=told, name="end-adopted", daemon=True).start()

    def settle(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox as it is now, after a look at its supervisor."""
        entry = self._entries.get(sandbox_id)
        if entry is None or entry.sandbox is None or entry.state.is_down:
            return entry.sandbox if entry is not None else None
        process, directory = entry.process, self.directory(sandbox_id)
        gone = is_gone(process) if process else not run_directory.is_locked(directory)
        if gone:
            self._gone(entry)
        elif entry.ending_since is not None and time.monotonic() - entry.ending_since > KILL_SECONDS:
            logger.error("sandbox %s does not end: its supervisor is killed", sandbox_id)
            kill_supervisor(process, directory)
        return entry.sandbox

    def _gone(self, entry: Entry) -> None:
        """Its supervisor is gone. It counts as down only when nothing is left in the way of its next life."""
        with self._lock:
            if entry.state.is_down or entry.clearing:
                return
            entry.clearing = True
        directory = self.directory(entry.id)
        try:
            if entry.state.is_heard:
                self._let_go(entry.known)
            remove_cgroup(f"coatcheck-{directory.name}")  # the kernel ended what was in it; the group stays
            shutil.rmtree(directory, ignore_errors=True)
            with self._lock:
                before = entry.known
                self._leaves(entry)
                now = entry.known
                entry.process = entry.ending_since = None
                if entry.state is State.ENDED:
                    self.kept.forget(entry.id)
                elif entry.state is State.RESTORABLE:
                    self._record_end(entry)
                past = [each.id for each in self._entries.values() if each.state is State.ENDED]
                for forgotten in past[:-MAX_REMEMBERED]:
                    del self._entries[forgotten]
        finally:
            entry.clearing = False
        if now.state is SandboxState.SLEEPING and before.state is not now.state:
            self._emit_change(now, SandboxChange.SLEEPING, now.detail)
        elif now.state is SandboxState.ENDED and not before.over:
            self._emit_change(now, SandboxChange.ENDED, now.detail)

    def _leaves(self, entry: Entry) -> None:
        """What is left when its supervisor is gone: its sleep, a snapshot, or nothing. With the lock held."""
        if entry.state is State.DISCARDING:
            entry.move(Event.LEFT)
        elif self.kept.asleep(entry.id) is not None:
            entry.move(Event.LEFT_ASLEEP, ending=None)
        else:
            how: dict[str, object] = {}
            if entry.state.is_heard:
                detail = "its supervisor was killed or crashed; see the daemon's log"
                how = {"ending": Ending.SUPERVISOR_GONE, "detail": detail}
            entry.move(Event.LEFT_SAVED if self.kept.is_saved(entry.id) else Event.LEFT, **how)

    def _let_go(self, sandbox: Sandbox) -> None:
        for session in sandbox.sessions.values():
            self._end_session(session, f"sandbox {sandbox.ending or sandbox.state}")

    def _emit_change(self, sandbox: Sandbox, change: SandboxChange, detail: str) -> None:
        self._emit(event_of(sandbox, change, detail))


def _killed_meanwhile() -> SandboxRefused:
    return SandboxRefused(
        SandboxProblem.SANDBOX_ENDED,
        "it was killed while it was being brought back, and with it what was saved of it",
        "Create another one.",
    )
