"""`python forking_daemon.py PYTHON -m coatcheck serve`: one daemon after the other, each killed at one step.

What a daemon imports is imported once: a life begins in a fraction of a second. The first one begins at once.
Over the Unix socket LIVES comes the name of a step, and the next life begins; when it is over, the connection
ends. What a daemon left running goes on meanwhile, and has the next one.
"""

import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping
from importlib import import_module

from coatcheck.control import opening, sandbox_opening
from coatcheck.control.resources import sandbox_returning, sandbox_snapshots
from coatcheck.durable import snapshotting, spawning, starting
from coatcheck.durable.incarnations import Incarnations
from coatcheck.durable.store import SandboxStore
from coatcheck.platform.process_memory import die_with_parent
from tests.launcher.steps import Step, Work, calls_of, private, right_before, steps_of

SAVE: tuple[Work, ...] = (sandbox_snapshots.take, snapshotting.save)
FORK: tuple[Work, ...] = (
    sandbox_returning.fork,
    Incarnations.fork,
    *private(Incarnations, "_clones", "_admit", "_begin", "_start"),
    sandbox_opening.open_identity,
)
OPENING: tuple[Work, ...] = (opening.open_session, *private(opening, "_url"))
RESTORE: tuple[Work, ...] = (
    sandbox_returning.restore,
    Incarnations.restore,
    Incarnations.begin_again,
)
AT_ONCE: tuple[Work, ...] = (starting.start, spawning.spawn)
"""In one go, in a thread."""
AFTER_A_FAILURE = {
    "await self._take(partial(self._state.end, made.session, maker))",
    "await context.take(lambda: state.end(session.id, caller))",
}
ELSEWHERE = {
    *AFTER_A_FAILURE,
    "saved = await asyncio.to_thread(self._kept.saved, sandbox.id, name)",  # of a named snapshot
    "return await self._start(admitted, identities, back, boots=True)",  # of the warm pool
    "await context.give(lambda: context.backend.state.note_listener(session.id, port))",  # of no sandbox
    "open_private_directory(volumes(settings))",  # it has none
    "await asyncio.to_thread(partial(kept.remove, sandbox.id, each))",  # nobody lowered a limit
    "new = kept.record(sandbox.id) is None",  # nothing was done since the step before, as with the next two
    "spec = spec_of(sandbox, admitted, identities, settings, directory, lock)",
    "spec = kept.spec(spec, record, back)",
}


def _by_name(*steps: Step) -> Mapping[str, Step]:
    return {str(step): step for step in steps if step.text not in ELSEWHERE}


SAVING = _by_name(*steps_of(SAVE, SAVE))
FORKING = _by_name(
    *steps_of((*FORK, *OPENING), (*FORK, *OPENING)),
    *(each for each in calls_of((SandboxStore.begin,)) if each.text == "self._write(record)"),
    *calls_of(AT_ONCE),
)
RESTORING = _by_name(*steps_of(RESTORE, (*RESTORE, *FORK)))
STEPS: Mapping[str, Step] = {**SAVING, **FORKING, **RESTORING}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def live(dies_at: str) -> None:
    """Until it is over."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    die_with_parent()
    sys.argv = ["coatcheck", *sys.argv[4:]]
    if dies_at == "-":
        runpy.run_module("coatcheck", run_name="__main__")
    with right_before(STEPS[dies_at], die):
        runpy.run_module("coatcheck", run_name="__main__")


def main() -> None:
    die_with_parent()  # also when a test is killed
    import_module("coatcheck.daemon")  # with all that a daemon needs
    with socket.socket(socket.AF_UNIX) as lives:
        lives.bind(os.environ["LIVES"])
        lives.listen()
        live("-")
        while True:
            asked, _ = lives.accept()
            with asked:
                live(asked.recv(4096).decode())  # at its first word; "-": at none


if __name__ == "__main__":
    main()
