"""What this machine can make a sandbox of: looked for, measured, and said in one line."""

import shutil
import threading
from pathlib import Path

from coatcheck.decision.sandbox import Backend, Choice, SandboxProblem, SandboxRefused
from coatcheck.decision.session import Isolation
from coatcheck.launcher.guest_programs import CompileError, agent
from coatcheck.launcher.machine import Machine
from coatcheck.launcher.namespace import NamespaceMachine
from coatcheck.launcher.spec import SupervisorSpec
from coatcheck.settings import Settings


class Backends:
    """Thread-safe. What was measured is measured once: no hypervisor comes while we run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._agent: Path | None = None

    def choose(self, backend: Backend | None, image: str | None) -> Choice:
        """SandboxRefused when this machine cannot run what is asked for."""
        with self._lock:  # what several ask for at once is built and measured by the first
            if backend is Backend.NAMESPACE:
                return self._namespace("namespaces were asked for")
            return self._namespace("there is no microVM yet")

    def _namespace(self, why: str) -> Choice:
        if shutil.which("bwrap") is None:
            raise SandboxRefused(
                SandboxProblem.NO_BACKEND,
                "there is no bubblewrap (bwrap) on this machine",
                "Install it: apt-get install bubblewrap.",
            )
        return Choice(Backend.NAMESPACE, Isolation.NAMESPACE, why, None, str(self._program()))

    def _program(self) -> Path:
        if self._agent is None or not self._agent.exists():
            try:
                self._agent = agent(self._settings.cache.absolute() / "guest")
            except CompileError as error:
                raise SandboxRefused(SandboxProblem.NO_BACKEND, str(error), error.hint) from None
        return self._agent


def make_machine(spec: SupervisorSpec) -> Machine:
    """The machine of a spec, not started."""
    return NamespaceMachine(
        spec.machine, spec.directory, agent=spec.agent or Path(), nests=spec.filesystem is not None
    )
