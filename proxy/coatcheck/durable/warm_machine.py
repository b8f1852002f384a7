"""In the daemon: handles one machine of the warm pool: its supervisor, and the socket by which it is
claimed.

That socket is the supervisor's standard input, and only the daemon has the other end. When it closes, because
the daemon is gone or wants the machine no longer, the supervisor ends and removes all of it.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coatcheck.certificates.trust import TrustFiles
from coatcheck.containers.cgroup import remove as remove_cgroup
from coatcheck.decision.session import Isolation
from coatcheck.durable import run_directory
from coatcheck.durable.backends import Choice
from coatcheck.durable.durability import UNCLAIMED_GENERATION
from coatcheck.durable.sandbox import Admitted
from coatcheck.durable.spawning import (
    FIRST_UID,
    is_gone,
    spawn,
)
from coatcheck.durable.spec import CLAIMED, READY, DurableSpec, dumps
from coatcheck.durable.states import Event
from coatcheck.launcher.spec import Identity, SupervisorSpec
from coatcheck.platform.private_files import open_private_directory
from coatcheck.sandbox.limits import Limits, ceilings
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.resources import Resources
from coatcheck.sandbox.sandbox import AGENT, Backend
from coatcheck.settings.daemon import Settings

CLAIM_SECONDS: Final = 20.0
"""For it to be somebody's; it takes 50 ms, and one that boots instead takes 4 s."""
GIVE_UP_SECONDS: Final = 10.0
"""For a supervisor to end when it is told to, before it is killed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What cannot be changed of a machine that has booted."""

    backend: Backend
    isolation: Isolation
    image: str | None
    agent: str | None
    resources: Resources


def shape_of(choice: Choice, limits: Limits) -> Shape:
    return Shape(choice.backend, choice.isolation, choice.image, choice.agent, limits.resources)


def wanted_shape(admitted: Admitted, names: tuple[str, ...]) -> Shape | None:
    """None: what is wanted needs a machine that is built for it: volumes, a balloon, several users told apart
    from the beginning, or a layout that policy chooses. `names`: of its identities."""
    wanted = admitted.wanted
    laid_out = wanted.filesystem is not None and wanted.choice.backend is Backend.NAMESPACE
    if wanted.volumes or wanted.growth is not None or laid_out or names != (AGENT,):
        return None
    return shape_of(wanted.choice, admitted.limits)


class ClaimError(Exception):
    """It did not become somebody's, and is gone."""


class WarmMachine:
    """Not thread-safe: the pool or its claimer has it alone."""

    def __init__(
        self, sandbox_id: str, shape: Shape, directory: Path, settings: Settings, trust: TrustFiles
    ) -> None:
        """Its supervisor is started. OSError, with nothing left of it, when that cannot be."""
        self.id = sandbox_id
        self.shape = shape
        self.directory = directory
        self.born = time.monotonic()
        self._told_to_end = 0.0
        open_private_directory(directory.parent)
        directory.mkdir(mode=0o700)
        try:
            lock = run_directory.lock(directory)
            try:
                self.lock = lock
                self.line, theirs = socket.socketpair()
                with theirs:
                    spec = _spec(self, settings, trust)
                    self.process: subprocess.Popen[bytes] = spawn(spec, theirs)
            finally:
                os.close(lock)  # the supervisor has its own, of the same number
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        with contextlib.suppress(OSError):  # it is gone already: `poll` finds that
            self.line.sendall(dumps(spec))

    def poll(self) -> Event | None:
        """What it has said since it was last asked; None: nothing. Never waits."""
        try:
            said = self.line.recv(len(READY), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            said = b""
        return Event.BOOTED if said == READY else Event.DISMISSED

    def claim(self, spec: DurableSpec) -> None:
        """It is whose `spec` says, and runs, when this returns. ClaimError; then it was killed."""
        try:
            self.line.settimeout(CLAIM_SECONDS)
            self.line.sendall(dumps(spec))
            said = self.line.recv(len(CLAIMED))
        except OSError as error:
            said = b""
            why = "it took too long" if isinstance(error, TimeoutError) else type(error).__name__
        else:
            why = "its supervisor or its machine ended"
        self.line.close()
        if said != CLAIMED:
            self.process.kill()
            raise ClaimError(f"a machine of the warm pool could not be claimed: {why}")

    def end(self) -> None:
        """It is not needed. It ends now; `is_gone` tells when it has."""
        self.line.close()
        self._told_to_end = time.monotonic()

    def is_gone(self) -> bool:
        """Whether nothing is left of it, once it was told to end: one that does not is killed."""
        if time.monotonic() - self._told_to_end > GIVE_UP_SECONDS:
            self.process.kill()
        if not is_gone(self.process):
            return False
        remove_cgroup(f"coatcheck-{self.directory.name}")
        shutil.rmtree(self.directory, ignore_errors=True)
        return True


def _spec(machine: WarmMachine, settings: Settings, trust: TrustFiles) -> DurableSpec:
    """Of a sandbox that has no session, no handle and no time limit."""
    shape = machine.shape
    nobody = Identity(
        name=AGENT,
        uid=FIRST_UID,
        session="",
        socket=machine.directory / "none",
        environment={},
        ca=trust.ca.absolute(),
        bundle=trust.bundle.absolute(),
        java_truststore=trust.java_truststore.absolute(),
    )
    told = SupervisorSpec(
        id=machine.id,
        directory=machine.directory,
        lock=machine.lock,
        control=settings.control.absolute(),
        backend=shape.backend,
        machine=MachineSpec(
            isolation=shape.isolation,
            image=Path(shape.image) if shape.image is not None else None,
            resources=shape.resources,
            generation=UNCLAIMED_GENERATION,
        ),
        identities=(nobody,),
        lease_seconds=0,
        expires_at=0,
        idle_seconds=None,
        limits=Limits(shape.resources),
        ceiling=ceilings(settings),
        agent=Path(shape.agent) if shape.agent is not None else None,
        filesystem=None,
    )
    return DurableSpec(told, unbound=True)
