"""A sign of life after two seconds, on a terminal only."""

import os
import pty
import subprocess
import sys
from pathlib import Path

CODE = "import time\nfrom coatcheck.cli.progress import progress\nwith progress('verifying'): time.sleep({})"


def shown(seconds: float) -> bytes:
    """What a terminal shows of a step that takes so long."""
    master, slave = pty.openpty()
    subprocess.run([sys.executable, "-c", CODE.format(seconds)], stderr=slave, check=True, cwd=Path.cwd())
    os.close(slave)
    said = b""
    try:
        while part := os.read(master, 4096):
            said += part
    except OSError:
        pass  # the other end is closed
    os.close(master)
    return said


def test_a_long_step_shows_on_a_terminal() -> None:
    """Nobody wonders whether it hangs."""
    assert b"verifying" in shown(2.6)


def test_a_short_step_shows_nothing() -> None:
    """What is quick needs no announcement."""
    assert shown(0.1) == b""


def test_nothing_is_shown_in_a_pipe() -> None:
    """A log is no place for spinners."""
    ran = subprocess.run([sys.executable, "-c", CODE.format(2.2)], capture_output=True, check=True)
    assert ran.stderr == ran.stdout == b""
