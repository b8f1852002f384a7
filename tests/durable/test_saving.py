"""A running sandbox is saved: it stands still meanwhile, and goes on whatever fails, or is gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coatcheck.durable.spec import Saving
from coatcheck.launcher.channel import ChannelBroken
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState
from tests.durable.lives import DurableLife, life
from tests.durable.scripted import DurableMachine
from tests.launcher.scripted import ScriptedMachine
from tests.launcher.test_supervisor import SECONDS, trust, until

__all__ = ("trust",)


@asynccontextmanager
async def kept(
    tmp_path: Path, trust: Path, machine: ScriptedMachine | None = None, **different: Any
) -> AsyncIterator[DurableLife]:
    """A sandbox that runs, and that can be saved below `tmp_path / "store"`."""
    store = tmp_path / "store"
    (store / "snapshots").mkdir(parents=True, mode=0o700, exist_ok=True)
    saving = Saving(snapshot_key=tmp_path / "key")
    async with life(
        tmp_path, trust, machine or DurableMachine(), saving=saving, store=store, **different
    ) as it:
        await it.running()
        yield it
        it.supervisor.end(Ending.KILLED, "the test is over")


def left(tmp_path: Path) -> list[str]:
    """All that lies in its store."""
    return sorted(str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").glob("*/*"))


async def test_it_stands_still_is_copied_goes_on_and_then_the_copy_is_finished(
    tmp_path: Path, trust: Path
) -> None:
    """The digests of a gigabyte take a second: nobody waits for them inside."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine, ancestors=("ses_before",)) as it:
        machine.orders.clear()
        finished = machine.waits_at["finish"] = asyncio.Event()
        saving = asyncio.create_task(it.durable.snapshot("one"))
        await until(lambda: "finish" in machine.did)
        assert machine.orders == ["freeze", "sync", "thaw"] and machine.did == ["save", "resume", "finish"]
        assert it.supervisor.state is SandboxState.RUNNING and left(tmp_path) == ["snapshots/.unfinished-one"]
        finished.set()
        assert await saving == tmp_path / "store/snapshots/one"
        assert machine.origins[0].sessions == ("ses_agent", "ses_tool", "ses_before")
        assert left(tmp_path) == ["snapshots/one"]


@pytest.mark.parametrize("step", ["save", "finish"])
async def test_what_fails_leaves_nothing_and_it_goes_on(tmp_path: Path, trust: Path, step: str) -> None:
    """No room, a disk that broke: said with the way out; the next one works."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it:
        machine.fails_at.add(step)
        for save in (lambda: it.durable.snapshot("one"), it.durable.fork_point, it.durable.sleep):
            machine.orders.clear()
            with pytest.raises(SandboxRefused, match=f"{step} did not work") as refused:
                await save()
            assert refused.value.problem is SandboxProblem.NOT_SAVED
            assert refused.value.hint == "do something else"
            assert machine.orders == ["freeze", "sync", "thaw"] and machine.did[-1] in ("resume", "finish")
            assert not left(tmp_path) and it.supervisor.state is SandboxState.RUNNING
        machine.fails_at.clear()
        await it.durable.snapshot("one")
        assert left(tmp_path) == ["snapshots/one"]


@pytest.mark.parametrize("order", ["freeze", "sync", "thaw"])
@pytest.mark.parametrize("how", ["dies", "lies"])
async def test_a_guest_that_fails_while_it_is_saved(
    tmp_path: Path, trust: Path, order: str, how: str
) -> None:
    """At every order: it goes on, or it is gone; and no copy is left of half of it."""
    machine = DurableMachine(replies={order: ()} if how == "lies" else {})
    async with kept(tmp_path, trust, machine) as it:

        async def die(op: str) -> None:
            if op == order and how == "dies":
                machine.unplug()

        machine.on_order = die
        if how == "lies" and order == "sync":
            await it.durable.snapshot("one")  # it has nothing to say of it
            return
        with pytest.raises((SandboxRefused, ChannelBroken)):
            await it.durable.snapshot("one")
        if (order, how) != ("freeze", "lies"):
            assert (await it.ended())[0] is Ending.MACHINE_ENDED and not left(tmp_path)
        else:
            assert machine.orders[-1] == "thaw" and not it.run.done() and not left(tmp_path)


async def test_a_machine_that_does_not_go_on_is_gone_and_so_is_its_copy(tmp_path: Path, trust: Path) -> None:
    """QEMU was killed while it stood still."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it:
        machine.fails_at.add("resume")
        with pytest.raises((SandboxRefused, ChannelBroken)):
            await it.durable.snapshot("one")
        ending, detail = await it.ended()
        assert ending is Ending.MACHINE_ENDED and "did not go on" in detail and not left(tmp_path)


async def test_whoever_asked_may_go_away(tmp_path: Path, trust: Path) -> None:
    """A caller that hangs up must not leave a machine that stands still."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it:
        saved = machine.waits_at["save"] = asyncio.Event()
        saving = asyncio.create_task(it.durable.snapshot("one"))
        await until(lambda: "save" in machine.did)
        saving.cancel()
        saved.set()
        await until(lambda: left(tmp_path) == ["snapshots/one"])
        assert machine.orders[-1] == "thaw"


async def test_a_sandbox_that_ends_while_it_is_saved_leaves_no_copy(tmp_path: Path, trust: Path) -> None:
    """Killed by its owner, at each step."""
    for number, step in enumerate(("save", "resume", "finish")):
        machine = DurableMachine()
        directory = tmp_path / str(number)
        directory.mkdir()
        async with kept(directory, trust, machine) as it:
            machine.waits_at[step] = asyncio.Event()
            saving = asyncio.create_task(it.durable.snapshot("one"))
            await until(lambda machine=machine, step=step: step in machine.did)  # type: ignore[misc]
            it.supervisor.end(Ending.KILLED, "now")
            async with asyncio.timeout(SECONDS):
                await it.ended()
            with pytest.raises(ChannelBroken, match="ended"):
                await saving
            assert not left(directory)


async def test_what_is_asked_at_once_is_done_in_turn(tmp_path: Path, trust: Path) -> None:
    """Two snapshots, a pause and a resume: none in the middle of another."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it:
        one, two = it.durable.snapshot("one"), it.durable.snapshot("two")
        await asyncio.gather(one, it.supervisor.pause(), it.supervisor.resume(), two)
        steps = [each for each in machine.did if each != "page_out"]
        assert steps == ["save", "resume", "finish", "pause", "resume", "save", "resume", "finish"]


async def test_what_a_supervisor_left_half_written_is_gone_with_the_next_one(
    tmp_path: Path, trust: Path
) -> None:
    """It was killed while it saved: gigabytes that nobody could use."""
    for name in (
        ".unfinished-asleep-1",
        "snapshots/.unfinished-one-2",
        "forks/.unfinished-3",
        "snapshots/two",
    ):
        (tmp_path / "store" / name).mkdir(parents=True)
    async with kept(tmp_path, trust):
        assert left(tmp_path) == ["snapshots/two"]
        assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["forks", "snapshots"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "x" * 65])
async def test_a_name_is_no_path(tmp_path: Path, trust: Path, name: str) -> None:
    """It comes from a caller."""
    async with kept(tmp_path, trust) as it:
        with pytest.raises(SandboxRefused, match="not a snapshot name"):
            await it.durable.snapshot(name)


async def test_an_eleventh_is_refused_with_what_to_remove(tmp_path: Path, trust: Path) -> None:
    """The oldest is never lost silently."""
    async with kept(tmp_path, trust) as it:
        for name in ("one", "two"):
            await it.durable.snapshot(name)
        with pytest.raises(SandboxRefused, match="may have 2") as refused:
            await it.durable.snapshot("three", limit=2)
        assert "remove" in refused.value.hint
        assert left(tmp_path) == ["snapshots/one", "snapshots/two"]


async def test_one_is_replaced_once_the_other_is_there_and_not_before(tmp_path: Path, trust: Path) -> None:
    """What fails loses nothing; of two who would replace the same one the second is refused."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it:
        for name in ("auto-1", "mine"):
            await it.durable.snapshot(name)
        machine.fails_at.add("finish")
        with pytest.raises(SandboxRefused, match="finish did not work"):
            await it.durable.snapshot("auto-2", "auto-1", limit=2)
        assert left(tmp_path) == ["snapshots/auto-1", "snapshots/mine"]
        machine.fails_at.clear()
        both = (it.durable.snapshot(name, "auto-1", limit=2) for name in ("auto-2", "auto-3"))
        done, refused = await asyncio.gather(*both, return_exceptions=True)
        assert done == tmp_path / "store/snapshots/auto-2" and "may have 2" in str(refused)
        assert left(tmp_path) == ["snapshots/auto-2", "snapshots/mine"]


async def test_what_cannot_be_saved_says_so(tmp_path: Path, trust: Path) -> None:
    """A namespace; one that nobody keeps anything of; one that is paused."""
    async with kept(tmp_path, trust, ScriptedMachine()) as it:
        with pytest.raises(SandboxRefused) as refused:
            await it.durable.snapshot("one")
        assert refused.value.problem is SandboxProblem.UNSAVABLE
    (tmp_path / "second").mkdir()
    async with kept(tmp_path / "second", trust) as it:
        await it.supervisor.pause()
        with pytest.raises(SandboxRefused, match="paused") as refused:
            await it.durable.snapshot("one")
        assert refused.value.problem is SandboxProblem.NOT_RUNNING
