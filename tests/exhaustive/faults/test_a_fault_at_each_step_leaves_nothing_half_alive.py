"""A failure right before every single step of a save, a sleep, a wake and a rebind, and a daemon that is gone
from there on. The steps are found in the code, so that a new one is in here by itself. With a scripted guest;
machines that are killed at each step are in tests/system/durable/snapshots/test_machine_faults.py,
supervisors and real daemons beside this."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coatcheck.client.control import ControlError
from coatcheck.durable import freeze as standing_still
from coatcheck.durable import rebinding, saving, sleeping
from coatcheck.durable.freeze import freeze, thaw
from coatcheck.durable.rebinding import Rebind
from coatcheck.durable.saving import Saver
from coatcheck.durable.sleeping import Sleeper
from coatcheck.durable.spec import Saving
from coatcheck.launcher import agent
from coatcheck.launcher.channel import ChannelBroken
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.sandbox import Ending, SandboxRefused, SandboxState
from tests.durable.lives import COPY, DurableLife, life
from tests.durable.scripted import DurableMachine
from tests.durable.test_saving import kept, left
from tests.launcher.steps import Step, Work, private, right_before, steps_of, works_of
from tests.launcher.test_supervisor import trust, until

__all__ = ("trust",)

SAVING: tuple[Work, ...] = (
    Saver.snapshot, Saver.fork_point, *private(Saver, "_save", "_go_on"), freeze, thaw, agent.obeyed
)  # fmt: skip
SLEEPING: tuple[Work, ...] = (*private(Sleeper, "_sleep"), Saver.sleep)
WAKING: tuple[Work, ...] = (*private(Sleeper, "_wake"), agent.set_clock, thaw)
REBINDING: tuple[Work, ...] = (Rebind.prepare, standing_still.rebind, thaw, agent.obeyed)
KNOWN: tuple[Work, ...] = (*SAVING, *SLEEPING, *WAKING, *REBINDING)
ELSEWHERE = {
    "Sleeper.sleep", "Sleeper.wake",  # one line, of which all else is here
    "Sleeper._doze",  # asks its daemon before anything is done: tests/system/durable/test_sleeping.py
    "Rebind.connect", "Rebind._trust",  # before anything of it runs: tests/durable/test_freeze.py
    "forget_sleep",  # a file that stays is removed by the next life
    "configure",  # at the start and when memory grew: tests/launcher/test_supervisor.py
    "Saver.drop",  # nobody waits for it any more
}  # fmt: skip
FAILURES: dict[str, Callable[[], Exception]] = {
    "the machine": lambda: MachineError("a test", "do something else"),
    "the channel": lambda: ChannelBroken("a test"),
    "the disk": lambda: OSError(28, "No space left on device"),
    "the time": TimeoutError,
}
EXPECTED = (SandboxRefused, MachineError, ChannelBroken, OSError)  # a TimeoutError is an OSError


def test_no_step_is_left_out() -> None:
    """Whatever waits for a guest, a machine or a disk while it is saved or woken is among these."""
    here = {each.__qualname__ for each in KNOWN}
    assert works_of(saving, sleeping, standing_still, agent, rebinding) - here - ELSEWHERE == set()


def raising(failure: str) -> Callable[[], None]:
    def fail() -> None:
        error = FAILURES[failure]()
        raise error

    return fail


async def is_whole(tmp_path: Path, it: DurableLife) -> None:
    """It runs with all that is in it, or it has ended; nothing that was saved by halves lies about."""
    await until(lambda: it.run.done() or it.supervisor.state is SandboxState.RUNNING)
    if it.supervisor.state is SandboxState.RUNNING:
        orders = [each for each in it.machine.orders if each in ("freeze", "thaw")]
        assert orders[-1:] in ([], ["thaw"]), "it says that it runs, and stands still"
        with_commands = await it.supervisor.channel()
        stream = await with_commands.open("exec", [("arg", "true")])
        await until(lambda: it.machine.opened[-1].kind == "exec")
        stream.reset("cancelled")
    else:
        assert (await it.ended())[0] in (Ending.MACHINE_ENDED, Ending.KILLED)
    await until(lambda: not [name for name in left(tmp_path) if "unfinished" in name])


def of(*works: Work) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("step", steps_of(works, KNOWN), ids=str)


@pytest.mark.parametrize("failure", FAILURES)
@of(*SAVING)
async def test_of_a_save(tmp_path: Path, trust: Path, step: Step, failure: str) -> None:
    """It goes on with all that is in it, or it is gone; a snapshot is there as a whole, or not, and the one
    that it was to replace is not lost before that."""
    async with kept(tmp_path, trust, DurableMachine()) as it:
        await it.durable.snapshot("old")
        with right_before(step, raising(failure)) as reached:
            with contextlib.suppress(*EXPECTED):
                await it.durable.snapshot("new", replaces="old")
                assert "snapshots/new" in left(tmp_path)
            assert reached
        await is_whole(tmp_path, it)
        assert {"snapshots/old", "snapshots/new"} & set(left(tmp_path))


@pytest.mark.parametrize("failure", FAILURES)
@of(*SLEEPING)
async def test_of_falling_asleep(tmp_path: Path, trust: Path, step: Step, failure: str) -> None:
    """It is awake afterwards, or gone."""
    async with kept(tmp_path, trust, DurableMachine()) as it:
        with it.supervisor.presence(), right_before(step, raising(failure)) as reached:
            with pytest.raises((SandboxRefused, ChannelBroken)):
                await it.durable.sleep()
            assert reached
        await is_whole(tmp_path, it)


@pytest.mark.parametrize("failure", FAILURES)
@of(*WAKING)
async def test_of_waking(tmp_path: Path, trust: Path, step: Step, failure: str) -> None:
    """It sleeps on and can be woken, or it is awake, or gone."""
    async with kept(tmp_path, trust, DurableMachine()) as it:
        with it.supervisor.presence():
            await it.durable.sleep()
            with right_before(step, raising(failure)) as reached:
                with contextlib.suppress(*EXPECTED):
                    await it.durable.wake()
                assert reached
            if it.supervisor.state is SandboxState.SLEEPING and not it.supervisor.over.done():
                assert (tmp_path / "store/asleep").is_dir()
                await it.durable.wake()
            await is_whole(tmp_path, it)


@pytest.mark.parametrize("failure", FAILURES)
@of(*REBINDING)
async def test_of_a_rebind(tmp_path: Path, trust: Path, step: Step, failure: str) -> None:
    """It never runs, and nothing of it leads anywhere: a copy that is half somebody is nobody."""
    (tmp_path / "store").mkdir()
    saving = Saving(restore=tmp_path / "store/point")
    machine = DurableMachine(saved=True)
    with right_before(step, raising(failure)) as reached:
        async with life(tmp_path, trust, machine, COPY, saving, store=tmp_path / "store") as it:
            ending, detail = await it.ended()
            assert reached and ending in (Ending.REBIND_FAILED, Ending.START_FAILED) and detail
            assert SandboxState.RUNNING not in [state for state, *_ in it.reports.said]
            assert "thaw" not in machine.orders or "rebind" in machine.orders


# --- the daemon alone ------------------------------------------------------------------------------------


def nobody_listens(it: DurableLife) -> None:
    it.reports.refuses = ControlError("nobody listens", "")


async def asked_by_one_that_dies(it: DurableLife, step: Step, ask: Callable[[], Awaitable[object]]) -> None:
    """Its connection breaks, and no report is heard any more, from right before that step on."""
    asking = asyncio.ensure_future(ask())

    def die() -> None:
        nobody_listens(it)
        asking.cancel()

    with right_before(step, die) as reached:
        await asyncio.wait([asking])
        await it.supervisor.operations.take(nothing)  # what was begun is done to its end
        assert reached and asking.cancelled()


async def nothing() -> None: ...


async def runs_under_the_next(tmp_path: Path, it: DurableLife) -> None:
    """As if nothing had happened."""
    it.reports.refuses = None
    await it.supervisor.reporter.report()
    assert it.reports.said[-1][0] == SandboxState.RUNNING and it.machine.orders[-1:] in ([], ["thaw"])
    await is_whole(tmp_path, it)
    assert not it.run.done()


@of(*SAVING)
async def test_of_a_save_whose_daemon_dies(tmp_path: Path, trust: Path, step: Step) -> None:
    """It is finished without anybody, and there as a whole; the one that it replaces is not."""
    async with kept(tmp_path, trust, DurableMachine()) as it:
        await it.durable.snapshot("old")
        await asked_by_one_that_dies(it, step, lambda: it.durable.snapshot("new", replaces="old"))
        await runs_under_the_next(tmp_path, it)
        assert left(tmp_path) == ["snapshots/new"]


@of(*(each for each in SAVING if each is not Saver.snapshot))
async def test_of_a_fork_point_whose_daemon_dies(tmp_path: Path, trust: Path, step: Step) -> None:
    """Nobody is left who would begin from it, or remove it."""
    async with kept(tmp_path, trust, DurableMachine()) as it:
        await asked_by_one_that_dies(it, step, it.durable.fork_point)
        await runs_under_the_next(tmp_path, it)
        await until(lambda: not left(tmp_path))


@of(*SLEEPING)
async def test_of_falling_asleep_whose_daemon_dies(tmp_path: Path, trust: Path, step: Step) -> None:
    """It sleeps, and wakes for the next one."""
    async with kept(tmp_path, trust, DurableMachine()) as it:
        with it.supervisor.presence():
            await asked_by_one_that_dies(it, step, it.durable.sleep)
            assert it.supervisor.state is SandboxState.SLEEPING and (tmp_path / "store/asleep").is_dir()
            it.reports.refuses = None
            await it.durable.wake()
            await runs_under_the_next(tmp_path, it)


@of(*WAKING)
async def test_of_waking_whose_daemon_dies(tmp_path: Path, trust: Path, step: Step) -> None:
    """It is awake."""
    async with kept(tmp_path, trust, DurableMachine()) as it:
        with it.supervisor.presence():
            await it.durable.sleep()
            await asked_by_one_that_dies(it, step, it.durable.wake)
            await runs_under_the_next(tmp_path, it)
            assert not (tmp_path / "store/asleep").exists()


@of(*REBINDING)
async def test_of_a_rebind_whose_daemon_dies(tmp_path: Path, trust: Path, step: Step) -> None:
    """It becomes who it was told to be, and nobody else; the next daemon hears of it."""
    (tmp_path / "store").mkdir()
    saving = Saving(restore=tmp_path / "store/point")
    machine = DurableMachine(saved=True)
    begun: list[DurableLife] = []
    with right_before(step, lambda: nobody_listens(begun[0])) as reached:
        async with life(tmp_path, trust, machine, COPY, saving, store=tmp_path / "store") as it:
            begun.append(it)
            await it.running()
            assert reached and [each for each in machine.orders if each == "rebind"] == ["rebind"]
            assert machine.orders.index("rebind") < machine.orders.index("thaw")
            await runs_under_the_next(tmp_path, it)
            it.supervisor.end(Ending.KILLED, "the test is over")
