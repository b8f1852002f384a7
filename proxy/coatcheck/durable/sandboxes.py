"""The daemon's sandboxes: admitted, given a supervisor each, asked about, swept up when one is gone.

Thread-safe, and every call here is short but `choose`, which may measure, and `kill`, which may wait. What a
supervisor is told stands in its spec; afterwards it speaks to the daemon through the control API.
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
from coatcheck.durable import run_directory
from coatcheck.durable.admission import decide, too_many
from coatcheck.durable.durability import RestorePoint
from coatcheck.durable.elastic import Initiator
from coatcheck.durable.pool import Pool
from coatcheck.durable.sandbox import Admitted, ClaimFailed, Sandbox, SandboxIdentity, WantedSandbox
from coatcheck.durable.spawning import is_gone
from coatcheck.durable.starting import claim, event_of, first_event, sandbox_of, start
from coatcheck.durable.store import SandboxStore
from coatcheck.durable.unclaimed import ClaimError, Unclaimed
from coatcheck.launcher.asking import (
    ANSWER_SECONDS,
    SupervisorSilent,
    ask_supervisor,
    kill_supervisor,
    scale_supervisor,
)
from coatcheck.launcher.backends import Backends
from coatcheck.launcher.cgroup import remove as remove_cgroup
from coatcheck.launcher.limits import ceilings
from coatcheck.launcher.resources import Size
from coatcheck.launcher.sandbox import (
    Backend,
    Choice,
    Ending,
    SandboxProblem,
    SandboxRefused,
    SandboxState,
)
from coatcheck.settings.daemon import Settings
from coatcheck.state.sessions import OWN_SANDBOX
from coatcheck.telemetry.events import SandboxChange, SandboxEvent

logger = logging.getLogger("coatcheck.launcher")

MAX_REMEMBERED: Final = 256
"""Sandboxes that ended, so that whoever asks is told why."""
KILL_SECONDS: Final = 45.0
"""A supervisor that has not ended by then is killed: a little more than it gives its machine."""

CLOSE_POLL_SECONDS: Final = 0.02

type Tell = Callable[[SandboxEvent], None]


class Sandboxes:
    """`end_session(session, why)` must be safe to call for one that is over. `trust`: what all of them are to
    trust; without it there is no warm pool."""

    def __init__(
        self,
        settings: Settings,
        tell: Tell,
        end_session: Callable[[str, str], None],
        trust: TrustFiles | None = None,
    ) -> None:
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
        self._tell = tell
        self._end_session = end_session
        self.pool = Pool(settings, trust, self._root, self.choose, self.all)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ending_since: dict[str, float] = {}
        self._clearing: set[str] = set()
        """Those whose supervisor is gone, and whose remains are being removed."""
        self._discarded: set[str] = set()
        """Those whose caller wants nothing of them any more."""
        self._returning: dict[str, SandboxChange] = {}
        """What it will have been when one that is coming back runs."""

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
            admitted = Admitted(sandbox_id or f"sbx_{secrets.token_hex(8)}", wanted, limits, elastic)
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
        with self.starting():
            return self._start(admitted, identities, back, boots=boots)

    def _start(
        self,
        admitted: Admitted,
        identities: Sequence[SandboxIdentity],
        back: RestorePoint | None,
        *,
        boots: bool,
    ) -> Sandbox:
        unclaimed, word = None, ""
        if back is None and not boots:
            unclaimed, word = self.pool.take(admitted, tuple(each.name for each in identities))
        if unclaimed is not None:
            return self._claim(unclaimed, admitted, identities, word)
        before = self._known.get(admitted.id)
        sandbox = sandbox_of(admitted, identities, before, back)

        def beginning() -> None:
            first = first_event(sandbox, back, word)
            if first is not None:
                self._told(sandbox, *first)
            elif back is not None:
                woken = Path(back.snapshot) == self.kept.asleep(sandbox.id)
                self._returning[sandbox.id] = SandboxChange.WOKE if woken else SandboxChange.RESTORED

        directory = self.directory(sandbox.id)
        process = start(sandbox, admitted, identities, back, self.kept, self._settings, directory, beginning)
        with self._lock:
            self._asleep.discard(sandbox.id)
            self._processes[sandbox.id] = process
            self._known[sandbox.id] = sandbox
            self._admitted.pop(sandbox.id, None)
        return sandbox

    def _claim(
        self, unclaimed: Unclaimed, admitted: Admitted, identities: Sequence[SandboxIdentity], word: str
    ) -> Sandbox:
        sandbox = sandbox_of(replace(admitted, id=unclaimed.id), identities)

        def beginning() -> None:
            self._told(sandbox, SandboxChange.CREATED, word)
            with self._lock:  # before it reports
                self._processes[sandbox.id] = unclaimed.process
                self._known[sandbox.id] = sandbox
                self._admitted.pop(admitted.id, None)

        try:
            claim(unclaimed, sandbox, admitted, identities, self.kept, self._settings, beginning)
        except ClaimError as error:
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
            sandbox = self._known.get(sandbox_id)
            late = state is SandboxState.STARTING  # it starts when we say so, and not after it runs
            if sandbox is None or sandbox.over or late:
                return sandbox
            now = replace(sandbox, state=state, detail=detail or sandbox.detail)
            if state is SandboxState.ENDING:
                now = replace(now, ending=ending or Ending.KILLED, detail=detail)
                self._ending_since[sandbox_id] = time.monotonic()
            self._known[sandbox_id] = now
        if now.over:
            self.kept.ended(now)  # before anything of it is: a daemon that dies here must not bring it back
            self._let_go(now)
            self._told(now, SandboxChange.ENDED, now.detail)
        elif sandbox.state is SandboxState.STARTING and state is SandboxState.RUNNING:
            self.kept.awake(sandbox_id)
            with contextlib.suppress(OSError):  # a daemon that comes after us finds it as it is
                run_directory.describe(self.directory(sandbox_id), now)
            self._told(now, self._returning.pop(sandbox_id, SandboxChange.RUNNING), "")
        elif state is SandboxState.SLEEPING and sandbox.state is not state:
            self._told(now, SandboxChange.SLEEPING, "")
        elif sandbox.state is SandboxState.SLEEPING and state is SandboxState.RUNNING:
            self._told(now, SandboxChange.WOKE, "")
        return now

    def scale(self, sandbox_id: str, memory_mib: int | None, cpus: int | None) -> Size:
        """Another size for one that runs, as its caller asks; what is None stays. SandboxRefused."""
        return scale_supervisor(self.directory(sandbox_id), memory_mib, cpus)

    def resized(self, sandbox_id: str, size: Size, by: Initiator) -> Sandbox | None:
        """From its supervisor: it is to count for `size` from now on. SandboxRefused when the host has no
        room for that; then it has not grown. None: it is not known, or over."""
        with self._lock:
            sandbox = self._known.get(sandbox_id)
            if sandbox is None or sandbox.over:
                return None
            others = (each for each in self._known.values() if each.id != sandbox_id)
            self.pool.check_room(others, sandbox, size)
            now = replace(sandbox, resources=replace(sandbox.resources, **asdict(size)))
            self._known[sandbox_id] = now
        with contextlib.suppress(FileNotFoundError):  # it ends at this moment
            run_directory.describe(self.directory(sandbox_id), now)  # for a daemon that comes after us
        self._told(now, SandboxChange.RESIZED, f"{size.memory_mib} MiB, {size.cpus} CPUs: {by}")
        return now

    def kill(self, sandbox_id: str, ending: Ending, detail: str) -> None:
        """Its sessions are over when this returns; the rest of it soon after. Idempotent. KILLED: of what was
        saved of it nothing is kept, either."""
        if ending is Ending.KILLED and sandbox_id in self._known:
            self._discarded.add(sandbox_id)
            if self.is_down(sandbox_id):
                self._discard(sandbox_id, detail)
                return
        if self.reported(sandbox_id, SandboxState.ENDING, ending, detail) is None:
            return
        try:
            self.ask(sandbox_id, "POST", "/kill", {"ending": ending, "detail": detail})
        except SupervisorSilent:
            process = self._processes.get(sandbox_id)
            if process is not None:
                process.terminate()

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
            self._told(sandbox, change, detail)

    def give_up(self, sandbox_id: str, detail: str, why: Ending) -> None:
        """It is not brought back by itself; somebody may restore it."""
        with self._lock:
            sandbox = self._known.get(sandbox_id)
            if sandbox is None or sandbox.state is not SandboxState.ENDED:
                return  # somebody does just now
            self._known[sandbox_id] = now = replace(sandbox, ending=why, detail=detail)
            self.kept.ended(now)
        self._told(now, SandboxChange.GIVEN_UP, detail)

    def sessions_over(self, session_ids: AbstractSet[str], is_over: Callable[[str], bool]) -> None:
        """Sessions ended elsewhere: revoked, lapsed, expired. Their sandboxes end with them; one that several
        share does with the last."""
        for sandbox in self.all():
            theirs = {name: each for name, each in sandbox.sessions.items() if each in session_ids}
            if not theirs or sandbox.over or sandbox.id in self._asleep | self._clearing:
                continue
            if sandbox.keeping.shares and not all(map(is_over, sandbox.sessions.values())):
                for name, each in theirs.items():
                    self._told(sandbox, SandboxChange.IDENTITY_OVER, f"{name}: its session {each} is over")
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
                    kill_supervisor(self._processes.get(sandbox.id), self.directory(sandbox.id))
                self.settle(sandbox.id)
            time.sleep(CLOSE_POLL_SECONDS)

    # --- what is left ----------------------------------------------------------------------------------

    def adopt(self, listeners: Mapping[str, int]) -> None:
        """At the daemon's start: sandboxes that outlived the last are ours, what is left of others goes, and
        of `listeners`' sessions those that were opened for a sandbox which never came to be."""
        kept = self.kept.read_all()
        for directory in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            try:
                sandbox = run_directory.read(directory)
            except (OSError, ValueError, KeyError, TypeError):
                sandbox = None
            if sandbox is not None and run_directory.is_locked(directory):
                self._known[sandbox.id] = sandbox
                continue
            if sandbox is not None:
                record = self.kept.record(sandbox.id)
                if record is not None and record.sandbox.over:  # it was ending, and how is known
                    ending, detail = record.sandbox.ending, record.sandbox.detail
                    sandbox = replace(sandbox, state=SandboxState.ENDING, ending=ending, detail=detail)
                    self._let_go(sandbox)
                self._known[sandbox.id] = sandbox
                self._gone(sandbox)
            remove_cgroup(f"coatcheck-{directory.name}")  # of one that was nobody's, too
            shutil.rmtree(directory, ignore_errors=True)
        for record in kept:
            if record.sandbox.id not in self._known:  # it had ended, or the host went down with it
                state = SandboxState.ENDING if record.sandbox.over else record.sandbox.state
                self._known[record.sandbox.id] = was = replace(record.sandbox, state=state)
                self._gone(was)
        for session in self.ownerless(listeners):
            self._end_session(session, "it was opened for a sandbox, and there is none")
        self.pool.begin()

    def sweep(self) -> None:
        """Once a second: whose supervisor is gone is over, and what it left is removed."""
        for sandbox in self.all():
            if sandbox.state is not SandboxState.ENDED:
                self.settle(sandbox.id)

    def settle(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox as it is now, after a look at its supervisor."""
        sandbox = self._known.get(sandbox_id)
        if sandbox is None or self.is_down(sandbox_id):
            return sandbox
        process = self._processes.get(sandbox_id)
        gone = is_gone(process) if process else not run_directory.is_locked(self.directory(sandbox_id))
        if gone:
            self._gone(sandbox)
        elif time.monotonic() - self._ending_since.get(sandbox_id, time.monotonic()) > KILL_SECONDS:
            logger.error("sandbox %s does not end: its supervisor is killed", sandbox_id)
            kill_supervisor(process, self.directory(sandbox_id))
        return self._known.get(sandbox_id)

    def _gone(self, sandbox: Sandbox) -> None:
        """Its supervisor is. Down it is only when nothing is left in the way of whoever brings it back."""
        with self._lock:
            if self.is_down(sandbox.id) or sandbox.id in self._clearing:
                return
            self._clearing.add(sandbox.id)
        directory = self.directory(sandbox.id)
        try:
            if not sandbox.over:
                self._let_go(sandbox)
            remove_cgroup(f"coatcheck-{directory.name}")  # the kernel ended what was in it; the group stays
            shutil.rmtree(directory, ignore_errors=True)
            with self._lock:
                before = self._known.get(sandbox.id, sandbox)
                self._known[sandbox.id] = now = self._left(before)
                self._processes.pop(sandbox.id, None)
                self._ending_since.pop(sandbox.id, None)
                self._returning.pop(sandbox.id, None)
                if now.past:
                    self._discarded.discard(sandbox.id)
                    self.kept.forget(sandbox.id)
                elif now.over:
                    self.kept.ended(now)
                for forgotten in [each.id for each in self._known.values() if each.past][:-MAX_REMEMBERED]:
                    del self._known[forgotten]
        finally:
            self._clearing.discard(sandbox.id)
        if now.state is SandboxState.SLEEPING and before.state is not now.state:
            self._told(now, SandboxChange.SLEEPING, now.detail)
        elif now.state is SandboxState.ENDED and not before.over:
            self._told(now, SandboxChange.ENDED, now.detail)

    def _left(self, sandbox: Sandbox) -> Sandbox:
        """What is left of one whose supervisor is gone: it sleeps, it can be restored, or nothing."""
        discarded = sandbox.id in self._discarded
        if not discarded and self.kept.asleep(sandbox.id) is not None:
            self._asleep.add(sandbox.id)
            return replace(sandbox, state=SandboxState.SLEEPING, ending=None)
        if not sandbox.over:
            sandbox = replace(
                sandbox,
                ending=Ending.SUPERVISOR_GONE,
                detail="its supervisor was killed or crashed; see the daemon's log",
            )
        saved = not discarded and self.kept.is_saved(sandbox.id)
        return replace(sandbox, state=SandboxState.ENDED, recoverable=saved)

    def _discard(self, sandbox_id: str, detail: str) -> None:
        """Of one that is down: what was saved of it goes."""
        with self._lock:
            before = self._known[sandbox_id]
            self._asleep.discard(sandbox_id)
            self._discarded.discard(sandbox_id)
            now = replace(before, state=SandboxState.ENDED, recoverable=False)
            if before.state is SandboxState.SLEEPING:
                now = replace(now, ending=Ending.KILLED, detail=detail)
            self._known[sandbox_id] = now
        self.kept.forget(sandbox_id)
        if not before.past:
            self._told(now, SandboxChange.ENDED, detail)

    def _let_go(self, sandbox: Sandbox) -> None:
        for session in sandbox.sessions.values():
            self._end_session(session, f"sandbox {sandbox.ending or sandbox.state}")

    def _told(self, sandbox: Sandbox, change: SandboxChange, detail: str) -> None:
        self._tell(event_of(sandbox, change, detail))
