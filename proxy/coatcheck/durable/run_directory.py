"""A sandbox's own directory on the host: what it is, and whether anybody still cares for it.

Its supervisor holds a lock for as long as it lives. The daemon takes it first and hands it down, so that
there is no moment in which a directory that is in use looks like one that was left behind.
"""

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coatcheck.decision.session import Isolation
from coatcheck.durable.autoscale import Autoscale
from coatcheck.durable.durability import Durability, Lifecycle
from coatcheck.durable.elastic import Elastic, Scaling
from coatcheck.durable.sandbox import Sandbox
from coatcheck.launcher.sandbox import Backend, SandboxState
from coatcheck.platform.private_files import write_atomically

DESCRIPTION = "sandbox.json"
LOCK = "lock"


def describe(directory: Path, sandbox: Sandbox) -> None:
    """Write what a daemon must know that comes after this one. No handle is in it."""
    write_atomically(directory / DESCRIPTION, json.dumps(asdict(sandbox)).encode(), overwrite=True)


def read(directory: Path) -> Sandbox:
    """OSError, ValueError, KeyError or TypeError when it is no sandbox's directory."""
    given = json.loads((directory / DESCRIPTION).read_bytes())
    return Sandbox(
        **given
        | {
            "backend": Backend(given["backend"]),
            "isolation": Isolation(given["isolation"]),
            "state": SandboxState(given["state"]),
            "elastic": read_elastic(given["elastic"]),
            "keeping": _read_keeping(given.get("keeping", {})),
        }
    )


def read_elastic(given: dict[str, Any] | None) -> Elastic | None:
    """As `dataclasses.asdict` and JSON left it."""
    if given is None:
        return None
    rule = given["autoscale"]
    return Elastic(
        **given | {"scaling": Scaling(given["scaling"]), "autoscale": Autoscale(**rule) if rule else None}
    )


def _read_keeping(given: dict[str, Any]) -> Durability:
    lifecycle = given.get("lifecycle")
    return Durability(**given | {"lifecycle": Lifecycle(lifecycle) if lifecycle else None})


def lock(directory: Path) -> int:
    """Taken here, before there is a supervisor: a directory whose lock is free is nobody's."""
    held = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return held


def is_locked(directory: Path) -> bool:
    try:
        probe = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(probe)
