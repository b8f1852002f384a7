"""What stays of a daemon that lived for one command: its audit log, and the public key that verifies it."""

import contextlib
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coatcheck.platform.private_files import PrivateFileError, open_private_directory
from coatcheck.settings.daemon import runs_directory

KEPT: Final = 100
"""Runs whose logs are kept. One has a few KiB."""


def keep_log(state: Path) -> Path | None:
    """Move the log out of a state directory that will be removed; where it is now. None: it cannot be."""
    if not (state / "audit/audit.jsonl").is_file():
        return None
    home = runs_directory()
    made = home / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"
    try:
        open_private_directory(home)
        made.mkdir(mode=0o700)
        shutil.move(state / "audit", made / "audit")
        with contextlib.suppress(FileNotFoundError):
            shutil.move(state / "checkpoint-key.pem.pub", made)
        for old in sorted(path for path in home.iterdir() if path.is_dir())[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    except (OSError, PrivateFileError):
        return None
    return made / "audit/audit.jsonl"
