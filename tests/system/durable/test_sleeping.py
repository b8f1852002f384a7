"""A sandbox sleeps and wakes: as it was, with its connections, by whatever wants something of it."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.control import ControlError
from coatcheck.durable import sleeping
from coatcheck.durable.api import posts
from coatcheck.durable.asking import ask_supervisor
from coatcheck.durable.spec import IdleAction, Saving
from coatcheck.launcher.api import serving
from coatcheck.launcher.channel import ChannelBroken
from coatcheck.launcher.mux import Data, Event
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState
from tests.durable.lives import COPY, life
from tests.durable.scripted import DurableMachine
from tests.durable.test_saving import kept, left
from tests.launcher.guest.inhabited import AS_ROOT, Inhabited, read_until, started
from tests.launcher.test_supervisor import SECONDS, trust, until

__all__ = ("trust",)


class Calling(DurableMachine):
    """Its guest opens connections, and keeps what they bring."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: dict[int, bytes] = {}

    async def call(self, identity: str = "agent") -> int:
        number, opened = self.mux.open("proxy", [("identity", identity)])
        self.brought[number] = b""
        await self.say(opened, self.mux.data(number, b"a question"))
        return number

    async def _answer(self, event: Event) -> None:
        if isinstance(event, Data) and event.stream in self.brought:
            self.brought[event.stream] += event.data
        await super()._answer(event)


class Upstream:
    """What listens at a session's socket, and answers when a test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(b"a question"))
        self.asked.put_nowait(writer)

    async def question(self) -> asyncio.StreamWriter:
        async with asyncio.timeout(SECONDS):
            return await self.asked.get()


@contextlib.asynccontextmanager
async def upstream(trust: Path) -> AsyncIterator[Upstream]:
    made = Upstream()
    async with await asyncio.start_unix_server(made.serve, trust / "agent"):
        yield made


async def test_with_nothing_to_wait_for_only_what_was_saved_is_left(tmp_path: Path, trust: Path) -> None:
    """No supervisor, no machine, no session: another one wakes it."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it:
        machine.orders.clear()
        assert await it.durable.sleep() == 0
        assert (await it.ended())[0] is None
        assert machine.orders == ["freeze", "sync"] and machine.did == ["save", "finish", "sleep"]
        assert left(tmp_path) == [] and (tmp_path / "store/asleep").is_dir()
        assert it.reports.said[-1] == ("sleeping", None, "it sleeps")
        for ask in (it.durable.sleep, it.durable.wake, it.supervisor.channel):
            with pytest.raises(ChannelBroken):
                await ask()


async def test_an_answer_that_arrives_wakes_it(tmp_path: Path, trust: Path) -> None:
    """Not a byte is lost; its clock is set before anything in it runs."""
    machine = Calling()
    async with upstream(trust) as outside, kept(tmp_path, trust, machine) as it:
        number = await machine.call()
        writer = await outside.question()
        machine.orders.clear()
        assert await it.durable.sleep() == 1 and it.supervisor.state is SandboxState.SLEEPING
        await until(lambda: ("sleeping", None, "") in it.reports.said)
        writer.write(b"an answer")
        await until(lambda: machine.brought[number] == b"an answer")
        await until(lambda: it.supervisor.state is SandboxState.RUNNING)
        assert machine.orders == ["freeze", "sync", "configure", "thaw"]
        assert machine.did == ["save", "finish", "sleep", "wake", "resume"]
        assert not (tmp_path / "store/asleep").exists()
        writer.close()


async def test_an_answer_that_never_comes_is_told_too(tmp_path: Path, trust: Path) -> None:
    """A proxy that goes away: who waits for it would sleep for ever."""
    machine = Calling()
    async with upstream(trust) as outside, kept(tmp_path, trust, machine) as it:
        await machine.call()
        writer = await outside.question()
        await it.durable.sleep()
        writer.transport.abort()
        await until(lambda: it.supervisor.state is SandboxState.RUNNING)


@pytest.mark.parametrize("who", ["an answer", "a command"])
async def test_who_comes_while_it_falls_asleep_wakes_it(tmp_path: Path, trust: Path, who: str) -> None:
    """A gigabyte is saved for seconds: nobody may be left waiting for one that sleeps by then."""
    machine = Calling()
    async with upstream(trust) as outside, kept(tmp_path, trust, machine) as it:
        number = await machine.call()
        writer = await outside.question()
        channel = await it.supervisor.channel()
        saved = machine.waits_at["save"] = asyncio.Event()
        falling = asyncio.create_task(it.durable.sleep())
        await until(lambda: "save" in machine.did)
        commands = []
        if who == "an answer":
            writer.write(b"an answer")
        else:
            commands.append(asyncio.create_task(channel.open("exec", [("arg", "true")])))
        await until(lambda: channel.wanted)
        assert it.supervisor.state is SandboxState.RUNNING
        saved.set()
        await falling
        await until(lambda: machine.did[-1] == "resume" and it.supervisor.state is SandboxState.RUNNING)
        if who == "an answer":
            await until(lambda: machine.brought[number] == b"an answer")
        for command in commands:
            await until(lambda: machine.opened[-1].kind == "exec")
            (await command).reset("cancelled")
        writer.close()


async def test_what_comes_while_it_sleeps_is_bounded(tmp_path: Path, trust: Path) -> None:
    """An upstream that sends gigabytes to a machine that cannot be woken is held back by the kernel."""
    machine = Calling()
    async with upstream(trust) as outside, kept(tmp_path, trust, machine) as it:
        numbers = [await machine.call() for _ in range(3)]
        writers = [await outside.question() for _ in numbers]
        machine.fails_at.add("wake")
        await it.durable.sleep()
        for writer in writers:
            writer.write(bytes(8_000_000))
        await until(lambda: "wake" in machine.did)
        channel = await it.supervisor.ready_channel()
        await until(lambda: channel.outbox.waiting > 100_000)
        assert channel.outbox.waiting < 400_000
        assert all(writer.transport.get_write_buffer_size() > 6_000_000 for writer in writers)
        assert it.supervisor.state is SandboxState.SLEEPING
        for writer in writers:
            writer.transport.abort()


async def test_it_is_not_held_for_ever(tmp_path: Path, trust: Path) -> None:
    """Then it sleeps on without its connections, and its session is over."""
    machine = Calling()
    async with upstream(trust) as outside, kept(tmp_path, trust, machine, held_seconds=0.2) as it:
        await machine.call()
        writer = await outside.question()
        assert await it.durable.sleep() == 1
        assert (await it.ended())[0] is None and (tmp_path / "store/asleep").is_dir()
        writer.close()


@pytest.mark.parametrize("asleep", [False, True])
async def test_one_whose_daemon_stops_sleeps_whoever_is_connected_and_whatever_arrives(
    tmp_path: Path, trust: Path, asleep: bool
) -> None:
    """Also one that has slept a while, and is held for an answer: what would wake it comes to nothing."""
    machine = Calling()
    async with upstream(trust) as outside, kept(tmp_path, trust, machine) as it:
        await machine.call()
        writer = await outside.question()
        channel = await it.supervisor.channel()
        with it.supervisor.presence():
            saved = asyncio.Event()
            if asleep:
                assert await it.durable.sleep() == 1
            machine.waits_at["save"] = saved
            leaving = asyncio.create_task(it.durable.sleep(leaves=True))
            if not asleep:
                await until(lambda: "save" in machine.did)
                writer.write(b"an answer")
                await until(lambda: channel.wanted)
                saved.set()
            assert await leaving == 1
            assert (await it.ended())[0] is None
        assert (tmp_path / "store/asleep").is_dir() and "wake" not in machine.did
        writer.transport.abort()


@pytest.mark.parametrize("leaves", [False, True])
async def test_one_that_is_paused_sleeps_when_its_daemon_stops_and_by_no_other_word(
    tmp_path: Path, trust: Path, leaves: bool
) -> None:
    """Only a guest that runs can be saved: it runs for the moment that takes. Else somebody paused it for a
    reason, as an inspection does."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it, serving(it.supervisor, posts(it.durable)):
        await it.supervisor.pause()
        machine.did.clear()
        directory, body = it.supervisor.spec.directory, {"leaves": leaves}
        asked = asyncio.to_thread(ask_supervisor, directory, "POST", "/sleep", body, SECONDS)
        if leaves:
            await asked
            assert (await it.ended())[0] is None and (tmp_path / "store/asleep").is_dir()
            assert machine.did.index("resume") < machine.did.index("save") < machine.did.index("sleep")
        else:
            with pytest.raises(SandboxRefused, match="it is paused"):
                await asked
            assert it.supervisor.state is SandboxState.PAUSED and "resume" not in machine.did


async def test_a_wake_just_as_its_daemon_stops_is_refused(tmp_path: Path, trust: Path) -> None:
    """In the same turn of the loop: half awake it would be lost."""
    machine = Calling()
    async with upstream(trust) as outside, kept(tmp_path, trust, machine) as it:
        await machine.call()
        writer = await outside.question()
        assert await it.durable.sleep() == 1
        leaving = asyncio.create_task(it.durable.sleep(leaves=True))
        waking = asyncio.create_task(it.durable.wake())
        with pytest.raises((SandboxRefused, ChannelBroken)):
            await waking
        await leaving
        assert (await it.ended())[0] is None
        assert (tmp_path / "store/asleep").is_dir() and "wake" not in machine.did
        writer.close()


@pytest.mark.parametrize("by", ["channel", "wake", "resume"])
async def test_whoever_wants_something_of_it_wakes_it(tmp_path: Path, trust: Path, by: str) -> None:
    """A command, a file, a port: all of them ask for its channel."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it:
        with it.supervisor.presence():
            await it.durable.sleep()
            async with asyncio.timeout(SECONDS):
                who = it.durable if by == "wake" else it.supervisor
                await asyncio.gather(*(getattr(who, by)() for _ in range(3)))
            assert it.supervisor.state is SandboxState.RUNNING
            assert machine.did == ["save", "finish", "sleep", "wake", "resume"]
            stream = await (await it.supervisor.channel()).open("exec", [("arg", "true")])
            await until(lambda: machine.opened[-1].kind == "exec")
            stream.reset("cancelled")


async def test_one_that_cannot_be_woken_sleeps_on(
    tmp_path: Path, trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host has no room: the caller is told, and it is tried again for an answer that waits."""
    monkeypatch.setattr(sleeping, "RETRY_SECONDS", 0.05)
    machine = Calling()
    async with upstream(trust) as outside, kept(tmp_path, trust, machine) as it:
        number = await machine.call()
        writer = await outside.question()
        await it.durable.sleep()
        machine.fails_at.add("wake")
        with pytest.raises(SandboxRefused, match="wake did not work") as refused:
            await it.durable.wake()
        assert refused.value.problem is SandboxProblem.NOT_WOKEN
        with pytest.raises(ChannelBroken, match="wake did not work"):
            await it.supervisor.channel()
        writer.write(b"an answer")
        await until(lambda: machine.did.count("wake") > 3)
        assert it.supervisor.state is SandboxState.SLEEPING and (tmp_path / "store/asleep").is_dir()
        machine.fails_at.clear()
        await until(lambda: machine.brought[number] == b"an answer")
        writer.close()


@pytest.mark.parametrize("step", ["resume", "configure", "thaw"])
async def test_one_that_stands_still_after_its_sleep_is_gone(tmp_path: Path, trust: Path, step: str) -> None:
    """Half awake is no state."""
    machine = DurableMachine()
    async with kept(tmp_path, trust, machine) as it:
        with it.supervisor.presence():
            await it.durable.sleep()
            machine.fails_at.add(step)

            async def die(op: str) -> None:
                if op == step:
                    machine.unplug()

            machine.on_order = die
            with pytest.raises((SandboxRefused, ChannelBroken)):
                await it.durable.wake()
            assert (await it.ended())[0] is Ending.MACHINE_ENDED


@pytest.mark.parametrize(
    ("ending", "stays"),
    [
        (Ending.KILLED, False),
        (Ending.TIME_LIMIT, False),
        (Ending.DAEMON_GONE, True),
        (Ending.SESSION_OVER, True),
    ],
)
async def test_what_was_saved_stays_unless_the_sandbox_itself_is_over(
    tmp_path: Path, trust: Path, ending: Ending, stays: bool
) -> None:
    """A daemon that restarts, or a session whose age is over, ends a supervisor; not one that sleeps."""
    async with kept(tmp_path, trust) as it:
        with it.supervisor.presence():
            await it.durable.sleep()
            it.supervisor.end(ending, "a test")
            assert (await it.ended())[0] is (None if stays else ending)
            assert (tmp_path / "store/asleep").is_dir() is stays


async def test_an_idle_one_sleeps_and_one_that_works_does_not(tmp_path: Path, trust: Path) -> None:
    """Nobody is connected, and nothing in it calls out."""
    machine = Calling()
    idle = {"idle_seconds": 0.3, "idle_action": IdleAction.SLEEP}
    async with upstream(trust), kept(tmp_path, trust, machine, **idle) as it:
        with it.supervisor.presence():
            await asyncio.sleep(0.5)
            assert not machine.did
        machine.fails_at.add("save")
        await until(lambda: "save" in machine.did)  # it could not, and is awake
        await until(lambda: it.supervisor.state is SandboxState.RUNNING)
        machine.fails_at.clear()
        begun = len(machine.did)
        for _ in range(30):
            await machine.say(machine.mux.open("dns", [("identity", "nobody")])[1])
            await asyncio.sleep(0.02)
        assert "sleep" not in machine.did[begun:]
        assert (await it.ended())[0] is None and "sleep" in machine.did


async def test_an_idle_one_asks_whether_it_may_be_saved(tmp_path: Path, trust: Path) -> None:
    """Policy may say by now that its handles must not be in a snapshot; without an answer it stays awake."""
    machine = DurableMachine()
    idle = {"idle_seconds": 0.05, "idle_action": IdleAction.SLEEP}
    async with kept(tmp_path, trust, machine, **idle) as it:
        it.reports.holds_back = ControlError("it holds handles", "Leave them out.", "unsavable", 409)
        before = it.reports.asked
        await until(lambda: it.reports.asked > before + 2)
        assert not machine.did and it.supervisor.state is SandboxState.RUNNING
        it.reports.holds_back = None
        assert (await it.ended())[0] is None and "sleep" in machine.did


async def test_one_that_is_saved_more_often_than_it_would_be_idle_sleeps_all_the_same(
    tmp_path: Path, trust: Path
) -> None:
    """What its guest answers to our orders is no work of its own."""
    idle = {"idle_seconds": 0.5, "idle_action": IdleAction.SLEEP}
    async with kept(tmp_path, trust, DurableMachine(), **idle) as it:
        with contextlib.suppress(SandboxRefused, ChannelBroken):  # it falls asleep, or is gone
            async with asyncio.timeout(SECONDS):
                while it.supervisor.state is SandboxState.RUNNING:
                    await it.durable.fork_point()
        assert (await it.ended())[0] is None and (tmp_path / "store/asleep").is_dir()


async def test_one_that_was_woken_by_another_supervisor_forgets_its_sleep(
    tmp_path: Path, trust: Path
) -> None:
    """Once it runs: a later wake must not begin from there again."""
    store = tmp_path / "store"
    (store / "asleep").mkdir(parents=True)
    saving = Saving(restore=store / "asleep")
    async with life(tmp_path, trust, DurableMachine(saved=True), COPY, saving, store=store) as it:
        await it.running()
        assert not (store / "asleep").exists()
        it.supervisor.end(Ending.KILLED, "done")
    (store / "asleep").mkdir(parents=True)
    (tmp_path / "second").mkdir()
    silent = DurableMachine(saved=True, replies={"rebind": ()})
    async with life(tmp_path / "second", trust, silent, COPY, saving, store=store) as it:
        assert (await it.ended())[0] is Ending.REBIND_FAILED


@pytest.mark.parametrize("how", ["it is not loaded", "it is not rebound"])
async def test_one_that_could_not_be_woken_sleeps_on(tmp_path: Path, trust: Path, how: str) -> None:
    """There was no room for it, or its host was too busy: it must not be lost by that."""
    store = tmp_path / "store"
    (store / "asleep").mkdir(parents=True)
    saving = Saving(restore=store / "asleep")
    no_room = MachineError("there is no memory for it") if how == "it is not loaded" else None
    machine = DurableMachine(saved=True, fails=no_room, replies={"rebind": ()})
    async with life(tmp_path, trust, machine, COPY, saving, store=store) as it:
        ending = (await it.ended())[0]
        assert ending is (Ending.START_FAILED if no_room else Ending.REBIND_FAILED)
    assert (store / "asleep").is_dir()


class Agent(DurableMachine):
    """The real agent, in namespaces, which stands still while it is said to sleep."""

    def __init__(self, program: Path) -> None:
        super().__init__()
        self._program = program
        self._left = contextlib.AsyncExitStack()

    async def start(self) -> Any:
        ours, _ = await self._left.enter_async_context(started(self._program))
        copy = ours.dup()
        copy.setblocking(False)
        return copy

    async def stop(self) -> None:
        await super().stop()
        await self._left.aclose()


@pytest.mark.skipif(not AS_ROOT, reason="a second identity needs a second uid")
async def test_a_program_sleeps_through_its_answer_again_and_again(
    tmp_path: Path, trust: Path, agent_program: Path
) -> None:
    """With the real agent: what it asked and what it is told come whole, and it never knew."""
    pieces = [secrets.token_bytes(100_000) for _ in range(12)]

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        with contextlib.closing(writer):  # also after a failure: its server waits for it
            for piece in pieces:
                async with asyncio.timeout(SECONDS):
                    await may_send.acquire()
                writer.write(piece)

    asked, may_send = asyncio.Event(), asyncio.Semaphore(0)
    async with (
        await asyncio.start_unix_server(slow, trust / "agent"),
        kept(tmp_path, trust, Agent(agent_program)) as it,
    ):
        guest = Inhabited(await it.supervisor.channel())
        script = (
            "exec 3<>/dev/tcp/127.0.0.1/3128; echo please >&3; while head -c 100000 <&3 | md5sum; do :; done"
        )
        with it.supervisor.presence():
            async with await guest.open("/bin/bash", "-c", script) as command:
                async with asyncio.timeout(SECONDS):
                    await (
                        asked.wait()
                    )  # one that is frozen between its connection and its question never asks
                for piece in pieces:
                    await it.durable.sleep()
                    may_send.release()
                    digest = hashlib.md5(piece, usedforsecurity=False).hexdigest()
                    said = await read_until(command, b"\n")
                    assert said.split()[0] == digest.encode()
                    await until(lambda: it.supervisor.state is SandboxState.RUNNING)
