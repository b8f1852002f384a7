"""The daemon's sandboxes: admitted, given a supervisor each, asked about, swept up when one is gone.

Thread-safe, and every call here is short but `choose`, which may measure, and `kill`, which may wait. What a
supervisor is told stands in its spec; afterwards it speaks to the daemon through the control API.
"""

import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from coatcheck.decision.elastic import By, Size
from coatcheck.decision.sandbox import (
    Admitted,
    Backend,
    Choice,
    Ending,
    Sandbox,
    SandboxIdentity,
    SandboxProblem,
    SandboxRefused,
    SandboxState,
    WantedSandbox,
)
from coatcheck.launcher import run_directory
from coatcheck.launcher.admission import check_room, range_for
from coatcheck.launcher.asking import SupervisorSilent, ask_supervisor, supervisor_pid
from coatcheck.launcher.backends import Backends
from coatcheck.launcher.cgroup import remove as remove_cgroup
from coatcheck.launcher.limits import LimitError, LimitName, Limits, ceilings, choose
from coatcheck.launcher.processes import has_ended
from coatcheck.launcher.spawning import spawn, spec_of, volumes
from coatcheck.private_files import open_private_directory
from coatcheck.settings import Settings
from coatcheck.telemetry.events import SandboxChange, SandboxEvent

logger = logging.getLogger("coatcheck.launcher")

MAX_REMEMBERED: Final = 256
"""Sandboxes that ended, so that whoever asks is told why."""
KILL_SECONDS: Final = 45.0
"""A supervisor that has not ended by then is killed: a little more than it gives its machine."""

CLOSE_POLL_SECONDS: Final = 0.02

type Tell = Callable[[SandboxEvent], None]


class Sandboxes:
    """`end_session(session, why)` must be safe to call for one that is over."""

    def __init__(self, settings: Settings, tell: Tell, end_session: Callable[[str, str], None]) -> None:
        self._settings = settings
        self._root = settings.runtime.absolute() / "sandboxes"
        self._tell = tell
        self._end_session = end_session
        self._backends = Backends(settings)
        self._lock = threading.Lock()
        self._known: dict[str, Sandbox] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ending_since: dict[str, float] = {}
        self._admitted: dict[str, str] = {}
        """Sandbox id -> caller, of those that were admitted and have no supervisor yet."""

    # --- what is there ---------------------------------------------------------------------------------

    def get(self, sandbox_id: str) -> Sandbox | None:
        return self._known.get(sandbox_id)

    def all(self) -> tuple[Sandbox, ...]:
        """By id, those that ended a while ago included."""
        return tuple(self._known[each] for each in sorted(self._known.copy()))

    def directory(self, sandbox_id: str) -> Path:
        """The sandbox's own; its supervisor listens there (`api.sock`)."""
        return self._root / sandbox_id.removeprefix("sbx_")

    # --- from asked for to there -----------------------------------------------------------------------

    def choose(self, backend: Backend | None, image: str | None) -> Choice:
        """What a sandbox would be made of here, measured (the first time: seconds). SandboxRefused."""
        return self._backends.choose(backend, image)

    def admit(self, wanted: WantedSandbox) -> Admitted:
        """Room for it, or SandboxRefused. `withdraw` it if nothing comes of it."""
        try:
            asked = {LimitName(name): amount for name, amount in wanted.limits.items()}
            limits = choose(asked, ceilings(self._settings))
        except LimitError as error:
            raise SandboxRefused(SandboxProblem.BEYOND_LIMIT, str(error), error.hint) from None
        self._check_volumes(wanted)
        elastic = range_for(wanted, limits, ceilings(self._settings))
        with self._lock:
            live = [each.opened_by for each in self._known.values() if each.state is not SandboxState.ENDED]
            live += self._admitted.values()
            most, each_most = self._settings.max_sandboxes, self._settings.max_sandboxes_per_caller
            if len(live) >= most:
                raise _too_many(f"this daemon runs {most} sandboxes already", "")
            if live.count(wanted.opened_by) >= each_most:
                raise _too_many(f"you run {each_most} sandboxes already", "_PER_CALLER")
            admitted = Admitted(f"sbx_{secrets.token_hex(8)}", wanted, asdict(limits), elastic)
            self._admitted[admitted.id] = wanted.opened_by
        return admitted

    def _check_volumes(self, wanted: WantedSandbox) -> None:
        """They are on the disk that has our own state: what fills it stops the audit log, and so all."""
        most = ceilings(self._settings).disk_mib
        for each in wanted.volumes:
            if each.size_mib > most:
                raise SandboxRefused(
                    SandboxProblem.BEYOND_LIMIT,
                    f"the volume {each.name} would have {each.size_mib} MiB; a disk here has {most} at most",
                    "Ask for less, or have COATCHECK_SANDBOX_MAX_DISK raised.",
                )

    def withdraw(self, admitted: Admitted) -> None:
        with self._lock:
            self._admitted.pop(admitted.id, None)

    def start(self, admitted: Admitted, identities: Sequence[SandboxIdentity]) -> Sandbox:
        """Start its supervisor. SandboxRefused, with nothing left of it, when that cannot be."""
        sandbox_id, wanted, limits = admitted.id, admitted.wanted, Limits(**admitted.limits)
        now = time.time()
        sandbox = Sandbox(
            id=sandbox_id,
            tenant=wanted.tenant,
            subject=wanted.subject,
            policy=wanted.policy,
            opened_by=wanted.opened_by,
            backend=wanted.choice.backend,
            isolation=wanted.choice.isolation,
            why=wanted.choice.why,
            sessions={each.name: each.session for each in identities},
            created_at=now,
            expires_at=now + limits.run_seconds,
            memory_mib=limits.memory_mib,
            cpus=limits.cpus,
            disk_mib=limits.disk_mib,
            processes=limits.processes,
            elastic=admitted.elastic,
        )
        directory = self.directory(sandbox_id)
        try:
            open_private_directory(self._root)
            if wanted.volumes:
                open_private_directory(volumes(self._settings))
            directory.mkdir(mode=0o700)
            run_directory.describe(directory, sandbox)
            lock = run_directory.lock(directory)
            try:
                spec = spec_of(sandbox, admitted, identities, self._settings, directory, lock)
                self._told(sandbox, SandboxChange.CREATED, "")
                process = spawn(spec)
            finally:
                os.close(lock)  # the supervisor has its own copy, and the lock lives as long as that
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise SandboxRefused(
                SandboxProblem.NOT_STARTED,
                f"the sandbox's supervisor could not be started: {error.strerror or error}",
                "See the daemon's log; it may be out of memory, processes or disk.",
            ) from None
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        with self._lock:
            self._processes[sandbox_id] = process
            self._known[sandbox_id] = sandbox
            self._admitted.pop(sandbox_id, None)
        return sandbox

    # --- its life --------------------------------------------------------------------------------------

    def reported(
        self, sandbox_id: str, state: SandboxState, ending: Ending | None = None, detail: str = ""
    ) -> Sandbox | None:
        """What its supervisor says. A sandbox that is over stays over. None: it is not known."""
        with self._lock:
            sandbox = self._known.get(sandbox_id)
            if sandbox is None or sandbox.over:
                return sandbox
            now = replace(sandbox, state=state, detail=detail or sandbox.detail)
            if state is SandboxState.ENDING:
                now = replace(now, ending=ending or Ending.KILLED, detail=detail)
                self._ending_since[sandbox_id] = time.monotonic()
            self._known[sandbox_id] = now
        if now.over:
            self._over(now)
        elif sandbox.state is SandboxState.STARTING and state is SandboxState.RUNNING:
            self._told(now, SandboxChange.RUNNING, "")
        return now

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

    def resized(self, sandbox_id: str, size: Size, by: By) -> Sandbox | None:
        """From its supervisor: it is to count for `size` from now on. SandboxRefused when the host has no
        room for that; then it has not grown. None: it is not known, or over."""
        with self._lock:
            sandbox = self._known.get(sandbox_id)
            if sandbox is None or sandbox.over:
                return None
            others = (each for each in self._known.values() if each.id != sandbox_id)
            check_room(others, sandbox, size, self._settings.sandbox_total_memory)
            now = replace(sandbox, memory_mib=size.memory_mib, cpus=size.cpus)
            self._known[sandbox_id] = now
        run_directory.describe(self.directory(sandbox_id), now)  # for a daemon that comes after us
        self._told(now, SandboxChange.RESIZED, f"{size.memory_mib} MiB, {size.cpus} CPUs: {by}")
        return now

    def kill(self, sandbox_id: str, ending: Ending, detail: str) -> None:
        """Its sessions are over when this returns; the rest of it soon after. Idempotent."""
        if self.reported(sandbox_id, SandboxState.ENDING, ending, detail) is None:
            return
        try:
            self.ask(sandbox_id, "POST", "/kill", {"ending": ending, "detail": detail})
        except SupervisorSilent:
            process = self._processes.get(sandbox_id)
            if process is not None:
                process.terminate()

    def ask(self, sandbox_id: str, method: str, target: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request to its supervisor, and the answer. SupervisorSilent, SandboxRefused."""
        return ask_supervisor(self.directory(sandbox_id), method, target, body)

    def sessions_over(self, session_ids: AbstractSet[str]) -> None:
        """Sessions ended elsewhere: revoked, lapsed, expired. Their sandboxes end with them."""
        for sandbox in self.all():
            session_id = next((each for each in sandbox.sessions.values() if each in session_ids), None)
            if session_id is not None and not sandbox.over:
                self.kill(sandbox.id, Ending.SESSION_OVER, f"its session {session_id} is over")

    def close(self) -> None:
        """All of them end, as the daemon does in order: after a crash they may be adopted instead."""
        for sandbox in self.all():
            if not sandbox.over:
                self.kill(sandbox.id, Ending.DAEMON_GONE, "the daemon was stopped")
        until = time.monotonic() + KILL_SECONDS
        while left := [each.id for each in self.all() if each.state is not SandboxState.ENDED]:
            for sandbox_id in left:
                if time.monotonic() > until:
                    self._kill_supervisor(sandbox_id, self._processes.get(sandbox_id))
                self.settle(sandbox_id)
            time.sleep(CLOSE_POLL_SECONDS)

    # --- what is left ----------------------------------------------------------------------------------

    def adopt(self) -> None:
        """At the daemon's start: sandboxes that outlived the last are ours, what is left of others goes."""
        if not self._root.is_dir():
            return
        for directory in sorted(self._root.iterdir()):
            try:
                sandbox = run_directory.read(directory)
            except (OSError, ValueError, KeyError, TypeError):
                sandbox = None
            if sandbox is not None and run_directory.is_locked(directory):
                self._known[sandbox.id] = sandbox
                continue
            if sandbox is not None:
                self._known[sandbox.id] = sandbox
                self._gone(sandbox)
            shutil.rmtree(directory, ignore_errors=True)

    def sweep(self) -> None:
        """Once a second: whose supervisor is gone is over, and what it left is removed."""
        for sandbox in self.all():
            if sandbox.state is not SandboxState.ENDED:
                self.settle(sandbox.id)

    def settle(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox as it is now, after a look at its supervisor."""
        sandbox = self._known.get(sandbox_id)
        if sandbox is None or sandbox.state is SandboxState.ENDED:
            return sandbox
        process = self._processes.get(sandbox_id)
        gone = _is_gone(process) if process else not run_directory.is_locked(self.directory(sandbox_id))
        if gone:
            self._gone(sandbox)
        elif time.monotonic() - self._ending_since.get(sandbox_id, time.monotonic()) > KILL_SECONDS:
            logger.error("sandbox %s does not end: its supervisor is killed", sandbox_id)
            self._kill_supervisor(sandbox_id, process)
        return self._known.get(sandbox_id)

    def _kill_supervisor(self, sandbox_id: str, process: "subprocess.Popen[bytes] | None") -> None:
        if process is not None:
            process.kill()
        elif (pid := supervisor_pid(self.directory(sandbox_id))) is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)

    def _gone(self, sandbox: Sandbox) -> None:
        with self._lock:
            now = self._known.get(sandbox.id, sandbox)
            if now.state is SandboxState.ENDED:
                return
            over = now.over
            if not over:
                now = replace(
                    now,
                    ending=Ending.SUPERVISOR_GONE,
                    detail="its supervisor was killed or crashed; see the daemon's log",
                )
            self._known[sandbox.id] = now = replace(now, state=SandboxState.ENDED)
            self._processes.pop(sandbox.id, None)
            self._ending_since.pop(sandbox.id, None)
            ended = [each.id for each in self._known.values() if each.state is SandboxState.ENDED]
            for forgotten in ended[:-MAX_REMEMBERED]:
                del self._known[forgotten]
        if not over:
            self._over(now)
        directory = self.directory(sandbox.id)
        remove_cgroup(f"coatcheck-{directory.name}")  # the kernel ended what was in it; the group stays
        shutil.rmtree(directory, ignore_errors=True)

    def _over(self, sandbox: Sandbox) -> None:
        why = f"sandbox {sandbox.ending}"
        for session in sandbox.sessions.values():
            self._end_session(session, why)
        self._told(sandbox, SandboxChange.ENDED, sandbox.detail)

    def _told(self, sandbox: Sandbox, change: SandboxChange, detail: str) -> None:
        self._tell(
            SandboxEvent(
                at=time.time(),
                change=change,
                sandbox=sandbox.id,
                sessions=tuple(sandbox.sessions.values()),
                tenant=sandbox.tenant,
                subject=sandbox.subject,
                policy=sandbox.policy,
                caller=sandbox.opened_by,
                backend=sandbox.backend,
                isolation=sandbox.isolation,
                ending=sandbox.ending or "",
                detail=detail,
            )
        )


def _is_gone(supervisor: "subprocess.Popen[bytes]") -> bool:
    """With all that it started: bubblewrap is bound to its supervisor's life only after its first steps, so
    that a SIGKILL in between would leave it behind."""
    return has_ended(supervisor.pid) and supervisor.poll() is not None


def _too_many(message: str, setting: str) -> SandboxRefused:
    return SandboxRefused(
        SandboxProblem.TOO_MANY_SANDBOXES,
        message,
        f"End one (`coatcheck sandbox rm`), or have COATCHECK_MAX_SANDBOXES{setting} raised.",
    )
