"""The daemon's log in its state directory, beside standard error: two files of a bounded size."""

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

LOG_FILE: Final = "daemon.log"
MAX_BYTES: Final = 4 * 1024 * 1024
"""Of one file; with the one before it, weeks of a quiet daemon."""
LOOK_SECONDS: Final = 0.2
"""How often a follower looks for more."""


class LogFile(RotatingFileHandler):
    """Private to the daemon's user. A disk that is full costs lines here, and nothing else."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True)

    def _open(self) -> "logging._stream":  # type: ignore[name-defined]
        descriptor = os.open(
            self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        return open(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Nothing: the line is on standard error."""


def last_lines(path: Path, last: int | None, *, follow: bool = False) -> Iterator[str]:
    """The newest lines of the log, then with `follow` those that come, across rotations. None: all lines."""
    kept: deque[str] = deque(maxlen=last)
    before = path.with_name(f"{path.name}.1")
    file = path.open(encoding="utf-8", errors="replace")
    try:
        if before.is_file():
            with before.open(encoding="utf-8", errors="replace") as older:
                kept.extend(older)
        kept.extend(file)
        yield from kept
        while follow:
            if line := file.readline():
                yield line
                continue
            time.sleep(LOOK_SECONDS)
            try:
                replaced = path.stat().st_ino != os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                continue
            if replaced:
                yield from file
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
    finally:
        file.close()
