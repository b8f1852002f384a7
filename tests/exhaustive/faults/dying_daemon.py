"""`python dying_daemon.py PYTHON -m coatcheck serve`: a daemon that is killed at one step of a claim.

DIE_AT names the step; without it the daemon lives.
"""

import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from coatcheck.durable import run_directory
from coatcheck.durable.spec import dumps
from coatcheck.durable.warm_machine import WarmMachine


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def tell_and_die(one: Any, spec: Any) -> None:
    one.line.sendall(dumps(spec))
    die()


STEPS: Mapping[str, tuple[object, str, Callable[..., Any]]] = {
    "before it is described": (run_directory, "describe", die),
    "before it is told": (WarmMachine, "claim", die),
    "when it is told": (WarmMachine, "claim", tell_and_die),
}
"""What is called there, and what is done instead."""


if __name__ == "__main__":
    if step := os.environ.get("DIE_AT"):
        setattr(*STEPS[step])
    sys.argv = ["coatcheck", *sys.argv[4:]]
    runpy.run_module("coatcheck", run_name="__main__", alter_sys=True)
