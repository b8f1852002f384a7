"""Runs the real command as a person would, and keeps what it said."""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

COATCHECK = str(Path(sys.executable).parent / "coatcheck")


@dataclass(frozen=True, slots=True)
class Said:
    """What one command answered."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Standard error, after checking that it is in our style: labelled, lower-case, no period."""
        for line in self.err.splitlines():
            assert re.match(r"(error|hint|note|warning): |  ", line), self.err
            assert "Traceback" not in line and not line.endswith("."), self.err
        return self.err


def environment(**variables: str) -> dict[str, str]:
    """A person's plain environment: no setting of this machine's gets in."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "XDG_STATE_HOME": _state_home(),
        "LANG": "C.UTF-8",
    } | variables


@cache
def _state_home() -> str:
    """This process's own: no daemon of the machine's user is found, and none of its files is changed."""
    made = tempfile.mkdtemp(prefix="cch-st-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def coatcheck(
    *arguments: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = 60,
) -> Said:
    """`coatcheck ARGUMENTS…`, to its end."""
    ran = subprocess.run(
        [COATCHECK, *map(str, arguments)],
        cwd=cwd,
        env=environment(**(env or {})),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Said(ran.returncode, ran.stdout, ran.stderr)
