"""In the daemon: starts a supervisor as a process: what it is told, and what it does not inherit."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from coatcheck.containers.processes import has_ended
from coatcheck.durable.sandbox import (
    Admitted,
    Sandbox,
    SandboxIdentity,
)
from coatcheck.durable.spec import DurableSpec, dumps
from coatcheck.launcher.spec import Identity, SupervisorSpec
from coatcheck.sandbox.limits import ceilings
from coatcheck.sandbox.machine import MachineSpec, Volume
from coatcheck.sandbox.sandbox import IDENTITIES
from coatcheck.settings.daemon import Settings, process_environment

FIRST_UID: Final = 1000


def spec_of(
    sandbox: Sandbox,
    admitted: Admitted,
    identities: Sequence[SandboxIdentity],
    settings: Settings,
    directory: Path,
    lock: int,
) -> DurableSpec:
    """All that the supervisor is told. `lock`: the descriptor of its directory's."""
    wanted, limits = admitted.wanted, admitted.limits
    image, agent = wanted.choice.image, wanted.choice.agent
    most = admitted.elastic.ceiling if admitted.elastic is not None else None
    machine = MachineSpec(
        isolation=sandbox.isolation,
        image=Path(image) if image is not None else None,
        resources=limits.resources if most is None else replace(limits.resources, **asdict(most)),
        starts_with=admitted.elastic.floor if admitted.elastic is not None else None,
        volumes=tuple(
            Volume(volumes(settings), wanted.tenant, each.name, each.at, each.size_mib)
            for each in wanted.volumes
        ),
        generation=min(each.generation for each in identities),
    )
    told = SupervisorSpec(
        id=sandbox.id,
        directory=directory,
        lock=lock,
        control=settings.control.absolute(),
        backend=sandbox.backend,
        machine=machine,
        identities=tuple(_identity(each) for each in identities),
        lease_seconds=min(each.lease_seconds for each in identities),
        expires_at=sandbox.expires_at,
        idle_seconds=wanted.idle_seconds,
        limits=limits,
        ceiling=ceilings(settings),
        agent=Path(agent) if agent is not None else None,
        filesystem=wanted.filesystem,
    )
    return DurableSpec(told, elastic=admitted.elastic)


def volumes(settings: Settings) -> Path:
    """Where all volumes are: with the state, since they outlive sandboxes and daemons."""
    return settings.state_dir.absolute() / "volumes"


def _identity(given: SandboxIdentity) -> Identity:
    return Identity(
        name=given.name,
        uid=FIRST_UID + IDENTITIES.index(given.name),
        session=given.session,
        socket=Path(given.socket),
        environment=given.environment,
        ca=Path(given.ca),
        bundle=Path(given.bundle),
        java_truststore=Path(given.java_truststore),
    )


def is_gone(supervisor: "subprocess.Popen[bytes]") -> bool:
    """With all that it started: bubblewrap is bound to its supervisor's life only after its first steps, so
    that a SIGKILL in between would leave it behind."""
    return has_ended(supervisor.pid) and supervisor.poll() is not None


def spawn(spec: DurableSpec, line: socket.socket | None = None) -> "subprocess.Popen[bytes]":
    """Nothing of the daemon's environment goes on: it may hold what logs in to Vault. `line`: its standard
    input, where its caller tells it the spec, and more later. None: it is told here, and nothing more."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "coatcheck.durable"],
        stdin=subprocess.PIPE if line is None else line.fileno(),
        stdout=subprocess.DEVNULL,
        env={"PATH": process_environment().get("PATH", os.defpath), "LANG": "C.UTF-8"},
        cwd="/",
        pass_fds=spec.descriptors,
        start_new_session=True,
    )
    if process.stdin is not None:
        with process.stdin as pipe, contextlib.suppress(BrokenPipeError):  # its exit tells more
            pipe.write(dumps(spec))
    return process
