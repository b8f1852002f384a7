"""In the daemon: finds and measures what this host can run sandboxes in, and reports it in one line."""

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coatcheck.containers.container import find_program, identities
from coatcheck.containers.jail import find_qemu
from coatcheck.decision.session import Isolation
from coatcheck.durable import accelerator
from coatcheck.images.cache import find
from coatcheck.images.guest_programs import CompileError, agent
from coatcheck.images.problem import ImageError
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.sandbox import (
    IDENTITIES,
    Backend,
    SandboxProblem,
    SandboxRefused,
)
from coatcheck.settings.daemon import Settings

DEFAULT_IMAGE: Final = "default"
_MEANS: Final = {Isolation.HARDWARE: "KVM", Isolation.EMULATED: "TCG, not a security boundary"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What a sandbox will be made of on this machine."""

    backend: Backend
    isolation: Isolation
    why: str
    """For a person: why this and nothing stronger."""
    image: str | None
    """Directory of the image; None: the host's own files (namespace)."""
    agent: str | None = None
    """The guest's agent on the host, where it is not in the image."""
    identities: tuple[str, ...] = IDENTITIES
    """The users that can be told apart in it."""


class Backends:
    """Thread-safe. What was measured is measured once: no hypervisor comes while we run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._agent: Path | None = None
        self._verdict: accelerator.Verdict | None = None

    def choose(self, backend: Backend | None, image: str | None) -> Choice:
        """SandboxRefused when this machine cannot run what is asked for."""
        with self._lock:  # what several ask for at once is built and measured by the first
            if backend in (Backend.NAMESPACE, Backend.GVISOR):
                if image is not None:
                    raise SandboxRefused(
                        SandboxProblem.UNKNOWN_IMAGE,
                        f"a {backend} sandbox runs this machine's own programs, and no image",
                        "Leave the image out, or ask for a microVM.",
                    )
                if backend is Backend.GVISOR:
                    return self._container(Isolation.GVISOR, "as asked for, gVisor's kernel on the host's")
                return self._container(Isolation.NAMESPACE, "as asked for, the host's kernel is shared")
            try:
                return self._microvm(image)
            except SandboxRefused as refused:
                if backend is Backend.MICROVM or image is not None:
                    raise
                return self._container(
                    Isolation.NAMESPACE, f"no microVM here: {refused.message} ({refused.hint})"
                )

    def _microvm(self, name: str | None) -> Choice:
        try:
            qemu = find_qemu()
        except MachineError as error:
            raise SandboxRefused(SandboxProblem.NO_BACKEND, str(error), error.hint) from None
        try:
            image = find(self._settings.cache.absolute(), name or DEFAULT_IMAGE)
        except ImageError as error:
            raise SandboxRefused(SandboxProblem.UNKNOWN_IMAGE, str(error), error.hint) from None
        if self._verdict is None:
            cache = self._settings.runtime.absolute() / "accelerator.json"
            self._verdict = asyncio.run(accelerator.judge(qemu, image / "vmlinuz", cache))
        found = self._verdict
        why = f"{_MEANS[found.isolation]}: {found.why.removeprefix('emulated, because ')}"
        return Choice(Backend.MICROVM, found.isolation, why, str(image))

    def _container(self, isolation: Isolation, why: str) -> Choice:
        try:
            find_program(isolation)
        except MachineError as error:
            raise SandboxRefused(SandboxProblem.NO_BACKEND, str(error), error.hint) from None
        return Choice(Backend(isolation), isolation, why, None, str(self._program()), identities(isolation))

    def _program(self) -> Path:
        if self._agent is None or not self._agent.exists():
            try:
                self._agent = agent(self._settings.cache.absolute() / "guest")
            except CompileError as error:
                raise SandboxRefused(SandboxProblem.NO_BACKEND, str(error), error.hint) from None
        return self._agent
