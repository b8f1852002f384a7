"""A failure, or the daemon's end, before each step of the reconcile loop: what was due is still done, once.

Entries, records, sessions and incarnations are real. A supervisor is a locked directory here, which is how a
daemon knows one. Daemons that are killed as processes: tests/exhaustive/faults.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coatcheck.durable import reconcile, recovery, run_directory
from coatcheck.durable.durability import Durability
from coatcheck.durable.incarnations import Incarnations, Maker
from coatcheck.durable.reconcile import Reconciler
from coatcheck.durable.sandbox import Admitted, Sandbox, SandboxIdentity
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.durable.store import ASLEEP, SNAPSHOTS, SandboxStore
from coatcheck.launcher.spec import SOCKET
from coatcheck.sandbox.sandbox import Ending, SandboxState
from coatcheck.settings.daemon import Settings
from coatcheck.state import State
from coatcheck.state.database import Status
from tests.durable.test_store import WANTED as KEPT
from tests.durable.test_store import begin, keeper, people, sandbox, save
from tests.launcher.steps import Step, private, right_before, steps_of, works_of
from tests.state.house import WANTED, House

ID = sandbox().id
MAKER = Maker("launcher", lambda wanted, isolation: None)
SECONDS = 30.0
LANES = private(
    Reconciler,
    *("_sweep", "_bring_back", "_wake", "_woken", "_recover", "_try", "_take_snapshot", "_first"),
)
STEPS = steps_of(LANES)
AROUND = {"Reconciler.run", "Reconciler._every_tick"}
"""What calls the lanes: no work of their own."""


class Killed(BaseException):
    """The daemon ends here."""


class Disk:
    """One sandbox on disk, and daemons that come and go."""

    def __init__(self, directory: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state, self.directory, self.patch = state, directory, monkeypatch
        self.kept = keeper(directory)
        self.settings = Settings(state_dir=directory, runtime_dir=directory / "run")
        self.opened = [self.session()]
        self.locks: list[int] = []
        self.taken: list[str] = []
        monkeypatch.setattr(reconcile, "TICK_SECONDS", 0.01)
        monkeypatch.setattr(reconcile, "FIRST_SECONDS", 0.0)
        for module in (reconcile, recovery):
            monkeypatch.setattr(module, "PAUSES", (0.0, 0.0, 0.0))
        monkeypatch.setattr("coatcheck.durable.sandboxes.start", self.starts)

    def session(self) -> str:
        return self.state.open_session(replace(WANTED), "launcher")[0].id

    def lives(self, **different: Any) -> Sandbox:
        """A record of it, as its daemon made it when it began."""
        made = replace(sandbox(), sessions={"agent": self.opened[0]}, **different)
        begin(self.kept, self.opened[0], of=made)
        return made

    def there(self, sandbox: Sandbox) -> None:
        """Its supervisor."""
        directory = self.directory / "run/sandboxes" / sandbox.id.removeprefix("sbx_")
        directory.mkdir(parents=True, mode=0o700)
        self.locks.append(run_directory.lock(directory))
        (directory / SOCKET).touch()
        run_directory.describe(directory, sandbox)

    def starts(self, sandbox: Sandbox, *about: Any) -> Any:
        self.there(sandbox)
        return SimpleNamespace(poll=lambda: None, wait=lambda *_: None, pid=0)

    async def opens(self, admitted: Admitted, wanted: Any, generation: int) -> SandboxIdentity:
        self.opened.append(self.session())
        (identity,) = people(self.opened[-1], generation=generation)
        return identity

    async def take(self, work: Callable[[], object]) -> object:
        return work()

    async def save(self, sandbox: Sandbox, name: str) -> None:
        self.taken.append(name)

    def daemon(self) -> Reconciler:
        """The next one begins."""

        def ends(session: str, why: str) -> None:
            self.state.end(session, "daemon")

        self.sandboxes = Sandboxes(self.settings, lambda _: None, ends)
        self.patch.setattr(self.sandboxes, "choose", lambda *_: KEPT.choice)
        self.sandboxes.adopt({})
        return Reconciler(
            self.sandboxes,
            Incarnations(self.sandboxes, self.state, self.opens, self.take),
            self.save,
            lambda name: MAKER,
            lambda: True,
            brings_back=True,
        )

    @property
    def known(self) -> Sandbox:
        found = self.sandboxes.get(ID)
        assert found is not None
        return found

    def close(self) -> None:
        for each in self.locks:
            os.close(each)


@dataclass(frozen=True)
class Due:
    """What is due, how a daemon finds it, and whether it was done."""

    name: str
    lanes: tuple[str, ...]
    before: Callable[[Disk], None]
    done: Callable[[Disk], bool]
    starts: int = 0


def died(disk: Disk) -> None:
    made = disk.lives(keeping=Durability(recovers=True))
    save(disk.kept, disk.kept.place(ID) / SNAPSHOTS / "one", 2)
    disk.kept.ended(replace(made, state=SandboxState.ENDED, ending=Ending.MACHINE_ENDED, detail="a test"))


def was_revoked(disk: Disk) -> None:
    died(disk)
    disk.state.revoke(disk.opened[0], "operator")


def dies_always(disk: Disk) -> None:
    died(disk)
    for _ in range(recovery.ATTEMPTS):
        disk.kept.recovering(ID, time.time())


def was_put_to_sleep(disk: Disk) -> None:
    disk.lives(state=SandboxState.SLEEPING)
    save(disk.kept, disk.kept.place(ID) / ASLEEP, 2)
    disk.kept.interrupt(ID)


def runs(disk: Disk) -> None:
    made = disk.lives(state=SandboxState.RUNNING, keeping=Durability(every_seconds=0.05))
    disk.there(made)


def is_killed_alone(disk: Disk) -> None:
    """Its supervisor, after the daemon has found it running: when it is looked at for the first time."""
    disk.there(disk.lives(state=SandboxState.RUNNING))
    adopt = Sandboxes.adopt

    def then_dies(sandboxes: Sandboxes, listeners: Any) -> None:
        adopt(sandboxes, listeners)
        while disk.locks:
            os.close(disk.locks.pop())

    disk.patch.setattr(Sandboxes, "adopt", then_dies)


def is_back(disk: Disk) -> bool:
    return disk.known.state is SandboxState.STARTING


def is_recovered(disk: Disk) -> bool:
    """The attempt is on disk: no crash of the daemon forgets how often it was tried."""
    return is_back(disk) and bool(keeper_of(disk).recoveries(ID))


def keeper_of(disk: Disk) -> SandboxStore:
    """As the next daemon would read it."""
    found = keeper(disk.directory)
    found.read_all()
    return found


def is_given_up(disk: Disk, why: Ending) -> bool:
    return disk.known.ending is why and disk.known.recoverable


ALL = (
    Due("it died", ("_bring_back", "_recover", "_try"), died, is_recovered, 1),
    Due("it was revoked", ("_recover",), was_revoked, partial(is_given_up, why=Ending.SESSION_OVER)),
    Due("it dies always", ("_recover",), dies_always, partial(is_given_up, why=Ending.CRASH_LOOP)),
    Due("it sleeps", ("_bring_back", "_wake", "_woken"), was_put_to_sleep, is_back, 1),
    Due("it runs", ("_take_snapshot", "_first"), runs, lambda disk: len(disk.taken) > 1),
    Due("its supervisor is gone", ("_sweep",), is_killed_alone, lambda disk: disk.known.over),
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = House(tmp_path / "sessions").open()
    yield opened
    opened.close()


def test_every_lane_is_here() -> None:
    """All asynchronous work of the module, and for each step a case in which it may be taken."""
    assert {f"Reconciler.{work.__name__}" for work in LANES} == works_of(reconcile) - AROUND
    assert {work.__name__ for work in LANES} == {lane for due in ALL for lane in due.lanes}


@pytest.mark.parametrize("failure", [RuntimeError, Killed])
@pytest.mark.parametrize("step", STEPS, ids=str)
async def test_before_each_step(
    step: Step,
    failure: type[BaseException],
    tmp_path: Path,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failure the loop goes on, after its end the next daemon does: what was due is done, at most one
    supervisor was started, and no session but that one's is alive."""
    tried = []
    for due in ALL:
        if step.work.removeprefix("Reconciler.") not in due.lanes:
            continue
        with monkeypatch.context() as patch:
            disk = Disk(tmp_path / due.name.replace(" ", "-"), state, patch)
            try:
                due.before(disk)
                if await taken(disk, due, step, failure):
                    tried.append(due.name)
            finally:
                disk.close()
    assert tried, "no case takes this step"


async def taken(disk: Disk, due: Due, step: Step, failure: type[BaseException]) -> bool:
    def fails() -> None:
        raise failure("a test")

    with right_before(step, fails) as reached:
        running = asyncio.create_task(disk.daemon().run())
        await until(lambda: running.done() or due.done(disk))
        if running.done():
            assert reached and failure is Killed
            await asyncio.gather(running, return_exceptions=True)
            running = asyncio.create_task(disk.daemon().run())
            await until(lambda: running.done() or due.done(disk))
        await asyncio.sleep(0.05)  # for some more ticks: nothing is done twice
        assert not running.done() and due.done(disk)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if reached:
        began = len(disk.locks) if due.starts else 0
        assert began == due.starts
        live = [each for each in disk.opened if disk.state.status(each) is Status.LIVE]
        assert set(live) <= set(disk.known.sessions.values()) and len(live) <= 1
        assert not disk.sandboxes.admitted()
    return bool(reached)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.005)
