"""In the daemon: keeps a sandbox's directory on the host: what the sandbox is, and whether its supervisor
is alive.

Its supervisor holds a lock for as long as it lives. The daemon takes it first and hands it down, so that
there is no moment in which a directory that is in use looks like one that was left behind.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from coatcheck.durable.sandbox import Sandbox, StoredSandbox
from coatcheck.platform.private_files import write_atomically

DESCRIPTION = "sandbox.json"
LOCK = "lock"


_SANDBOXES: Final = TypeAdapter[Sandbox](StoredSandbox)


def describe(directory: Path, sandbox: Sandbox) -> None:
    """Write what a daemon must know that comes after this one. No handle is in it."""
    write_atomically(directory / DESCRIPTION, _SANDBOXES.dump_json(sandbox), overwrite=True)


def read(directory: Path) -> Sandbox:
    """OSError or ValueError when it is no sandbox's directory."""
    return _SANDBOXES.validate_json((directory / DESCRIPTION).read_bytes())


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
