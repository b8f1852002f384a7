"""In the daemon: starts one life of a sandbox: directory, record, supervisor. A failure leaves nothing of
it."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coatcheck.durable import run_directory
from coatcheck.durable.durability import RestorePoint
from coatcheck.durable.sandbox import (
    Admitted,
    Sandbox,
    SandboxIdentity,
    WantedSandbox,
)
from coatcheck.durable.spawning import (
    spawn,
    spec_of,
    volumes,
)
from coatcheck.durable.store import SandboxStore
from coatcheck.durable.warm_machine import WarmMachine
from coatcheck.platform.private_files import open_private_directory
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused
from coatcheck.settings.daemon import Settings
from coatcheck.telemetry.events import SandboxChange, SandboxEvent


def sandbox_of(
    admitted: Admitted,
    identities: Sequence[SandboxIdentity],
    before: Sandbox | None = None,
    back: RestorePoint | None = None,
) -> Sandbox:
    """As it is when it starts. `before`: itself, when it comes back; `back`: what it begins from."""
    shares = back is not None and back.template is not None
    wanted, limits, now = admitted.wanted, admitted.limits, time.time()
    return Sandbox(
        id=admitted.id,
        tenant=wanted.tenant,
        subject=wanted.subject,
        policy=wanted.policy,
        opened_by=wanted.opened_by,
        backend=wanted.choice.backend,
        isolation=wanted.choice.isolation,
        why=wanted.choice.why,
        sessions={each.name: each.session for each in identities},
        created_at=before.created_at if before is not None else now,
        expires_at=now + limits.run_seconds,
        resources=limits.resources,
        elastic=None if shares else admitted.elastic,
        shares_memory=shares,
        keeping=wanted.keeping,
    )


def start(
    sandbox: Sandbox,
    admitted: Admitted,
    identities: Sequence[SandboxIdentity],
    back: RestorePoint | None,
    kept: SandboxStore,
    settings: Settings,
    directory: Path,
    beginning: Callable[[], None],
) -> "subprocess.Popen[bytes]":
    """Its supervisor. `beginning` is called when all is prepared. SandboxRefused when it cannot be; what was
    kept of it before stays."""
    new = kept.record(sandbox.id) is None
    try:
        record = kept.begin(sandbox, admitted.wanted, identities, back)
        open_private_directory(directory.parent)
        if admitted.wanted.volumes:
            open_private_directory(volumes(settings))
        directory.mkdir(mode=0o700)
        run_directory.describe(directory, sandbox)
        lock = run_directory.lock(directory)
        try:
            spec = spec_of(sandbox, admitted, identities, settings, directory, lock)
            if record is not None:
                spec = kept.spec(spec, record, back)
            beginning()
            return spawn(spec)
        finally:
            os.close(lock)  # the supervisor has its own copy, and the lock lives as long as that
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if new:
            kept.forget(sandbox.id)
        if not isinstance(error, OSError):
            raise
        raise SandboxRefused(
            SandboxProblem.NOT_STARTED,
            f"the sandbox's supervisor could not be started: {error.strerror or error}",
            "See the daemon's log; it may be out of memory, processes or disk.",
        ) from None


def claim(
    unclaimed: WarmMachine,
    sandbox: Sandbox,
    admitted: Admitted,
    identities: Sequence[SandboxIdentity],
    kept: SandboxStore,
    settings: Settings,
    beginning: Callable[[], None],
) -> None:
    """`start`, of a machine that has booted: it runs when this returns. `beginning` is called when all is
    prepared. ClaimError after that. Before it SandboxRefused or OSError, its directory's end among them: it
    has died, or there is no space; then the machine is to be ended."""
    try:
        record = kept.begin(sandbox, admitted.wanted, identities, None)
        run_directory.describe(unclaimed.directory, sandbox)
        spec = spec_of(sandbox, admitted, identities, settings, unclaimed.directory, unclaimed.lock)
        if record is not None:
            spec = kept.spec(spec, record, None)
        beginning()
    except BaseException:
        kept.forget(sandbox.id)
        raise
    unclaimed.claim(spec)


def first_event(sandbox: Sandbox, back: RestorePoint | None, detail: str) -> tuple[SandboxChange, str] | None:
    """What is told when it starts; None of one that comes back, which is told when it runs. `detail`: of a
    new one."""
    if back is None:
        return SandboxChange.CREATED, detail
    if back.sandbox != sandbox.id:
        return SandboxChange.FORKED, f"from {back.sandbox}, generation {back.generation}"
    return None


def event_of(sandbox: Sandbox, change: SandboxChange, detail: str) -> SandboxEvent:
    return SandboxEvent(
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


def refusal_of(wanted: WantedSandbox, sandbox_id: str, why: SandboxRefused) -> SandboxEvent:
    """For those that follow what happens: somebody could not have one. `sandbox_id`: "" of a new one."""
    return SandboxEvent(
        at=time.time(),
        change=SandboxChange.REFUSED,
        sandbox=sandbox_id,
        sessions=(),
        tenant=wanted.tenant,
        subject=wanted.subject,
        policy=wanted.policy,
        caller=wanted.opened_by,
        backend=wanted.choice.backend,
        isolation=wanted.choice.isolation,
        ending=why.problem,
        detail=why.message,
    )
