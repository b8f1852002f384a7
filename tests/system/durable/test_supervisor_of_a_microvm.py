"""A real microVM, its supervisor, and its forks: what only a guest that was really loaded can show. One boot
serves all tests."""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coatcheck.decision.session import Isolation
from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.spec import Saving
from coatcheck.durable.supervisor import DurableSupervisor
from coatcheck.images.build import build
from coatcheck.images.cache import find
from coatcheck.images.parts import Source
from coatcheck.images.problem import ImageError
from coatcheck.launcher.supervisor import Supervisor
from coatcheck.metadata.service import MetadataService
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.resources import Resources
from coatcheck.sandbox.sandbox import Backend, Ending, SandboxState
from coatcheck.settings.daemon import Settings
from tests.durable.lives import durable_spec
from tests.launcher.guest.inhabited import Inhabited, Output
from tests.launcher.scripted import Reports, identity
from tests.launcher.test_supervisor import Nobody

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
]
SECONDS = 120.0
"""On a machine that many share, without KVM."""
LOOP = """
import os, socket
while True:
    with open("/tmp/chance", "wb") as chance:
        chance.write(os.urandom(16))
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", 3128)) as way_out:
            way_out.sendall(b"the same string\\n")
            while piece := way_out.recv(4096):
                answer += piece
    except ConnectionError:
        answer = b"again"  # as every client of an API does
    with open("/tmp/answers", "ab") as answers:
        answers.write(answer + b"\\n")
"""
"""An agent's loop: it holds a string, calls out with it, and knows nothing of what happens around it."""


class Session:
    """What a session's proxy socket would be: it tells who called, and answers when a test says so."""

    def __init__(self) -> None:
        self.calls = self.waiting = 0
        self.open = asyncio.Event()
        self.open.set()
        self.states: list[SandboxState] = []
        self.sandbox: Supervisor | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        if self.sandbox is not None:
            self.states.append(self.sandbox.state)
        with contextlib.suppress(OSError):
            await reader.readline()
            self.waiting += 1
            await self.open.wait()
            self.waiting -= 1
            writer.write(b"an answer")
            writer.close()


class Place:
    """Where the sandboxes of this module live."""

    def __init__(self, root: Path, image: Path) -> None:
        self.root, self.image = root, image
        self.store = root / "store"
        for each in (self.store, self.store / "snapshots", self.store / "forks"):
            each.mkdir(mode=0o700)
        self._point: Path | None = None

    async def point(self, sandbox: DurableSupervisor) -> Path:
        """Where its forks begin from; taken once."""
        if self._point is None:
            self._point = await sandbox.fork_point()
        return self._point

    @contextlib.asynccontextmanager
    async def life(
        self, restore: Path | None = None, generation: int = 1, **different: Any
    ) -> AsyncIterator[tuple[DurableSupervisor, Session, Reports, "asyncio.Task[Any]"]]:
        own = self.root / secrets.token_hex(8)
        own.mkdir(mode=0o700)
        directory = own / secrets.token_hex(8)
        directory.mkdir(mode=0o700)
        built = MachineSpec(
            *(Isolation.EMULATED, self.image, Resources(192, 1, 32, 64)),
            generation=generation,
            boot_seconds=SECONDS,
        )
        saving = Saving(restore, snapshot_key=self.root / "snapshots.key")
        told = durable_spec(
            directory,
            [identity(own)],
            id=f"sbx_{directory.name}",
            machine=built,
            backend=Backend.MICROVM,
            store=self.store,
            saving=saving,
            rebind_seconds=SECONDS,
            **different,
        )
        session, reports = Session(), Reports()
        machine = DurableMicroVM(built, saving, directory)
        metadata = MetadataService(Nobody(), told.sandbox.id)
        sandbox = DurableSupervisor(told, machine, reports, metadata)
        session.sandbox = sandbox.sandbox
        running = asyncio.create_task(sandbox.run())
        async with await asyncio.start_unix_server(session.serve, told.sandbox.identities[0].socket):
            try:
                yield sandbox, session, reports, running
            finally:
                session.open.set()
                sandbox.sandbox.end(Ending.KILLED, "the test is over")
                await running


async def usable(sandbox: DurableSupervisor) -> Inhabited:
    async with asyncio.timeout(SECONDS):
        return Inhabited(await sandbox.sandbox.channel())


async def sh(sandbox: DurableSupervisor, script: str) -> Output:
    return await (await usable(sandbox)).sh(script, identity="agent")


async def until(true: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    cache = Settings().cache
    try:
        find(cache)
    except ImageError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing}: {missing.hint}", pytrace=False)
        pytest.skip(str(missing))
    return Place(tmp_path_factory.mktemp("m"), build(cache, "default", Source(), print))


type Parent = tuple[DurableSupervisor, Session]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parent(place: Place) -> AsyncIterator[Parent]:
    """It runs, and an agent's loop in it, which a client has started and stays connected to."""
    async with place.life() as (sandbox, session, _, _):
        guest = await usable(sandbox)
        stream = await guest.open("python3", "-c", LOOP, identity="agent")
        await until(lambda: session.calls > 2)
        with sandbox.sandbox.presence():
            yield sandbox, session
            stream.reset("cancelled")


async def test_forks_of_a_running_agent_go_on_as_others_and_it_goes_on(place: Place, parent: Parent) -> None:
    """Each calls out on its own session's socket, and not before it is somebody; with chance of its
    own; the one that they came from never knew."""
    sandbox, session = parent
    point = await place.point(sandbox)
    seen: list[bytes] = []
    async with contextlib.AsyncExitStack() as forks:
        lives = [await forks.enter_async_context(place.life(point, generation=2)) for _ in range(2)]
        for clone, theirs, reports, _ in lives:
            await usable(clone)
            await until(lambda theirs=theirs: theirs.calls > 1)
            assert set(theirs.states) <= {SandboxState.RUNNING, SandboxState.STARTING}
            said = await sh(clone, "uname -n; cat /etc/machine-id /proc/sys/kernel/random/uuid; date +%s")
            seen.append(said.out)
            assert said.out.split()[0] == clone.spec.sandbox.id.replace("_", "-").encode()
            assert reports.said[-1][0] == "running"
            chance = (await sh(clone, "od -An -tx1 /tmp/chance")).out
            seen.append(chance)
        before = session.calls
        await until(lambda: session.calls > before + 2)
        own = await sh(sandbox, "uname -n; cat /etc/machine-id /proc/sys/kernel/random/uuid; date +%s")
        first, second, mine = (set(each.split()[:3]) for each in (seen[0], seen[2], own.out))
        assert not first & second and not first & mine and not second & mine
        assert seen[1] != seen[3]


async def test_it_sleeps_through_a_slow_answer_and_is_woken_by_it(place: Place, parent: Parent) -> None:
    """Its machine is gone meanwhile, and its agent's connection is not."""
    sandbox, session = parent
    session.open.clear()
    await until(lambda: session.waiting)
    assert isinstance(sandbox.sandbox.machine, DurableMicroVM)
    before = sandbox.sandbox.machine.pid
    assert await sandbox.sleep() >= 1
    assert sandbox.sandbox.machine.pid == 0
    await until(lambda: not Path(f"/proc/{before}/exe").exists())
    answers = session.calls
    session.open.set()
    await until(lambda: sandbox.sandbox.state is SandboxState.RUNNING)
    await until(lambda: session.calls > answers + 1)
    said = (await sh(sandbox, "sort /tmp/answers | uniq -c")).out.split()
    assert said[1:] == [b"an", b"answer"]  # none of them was torn


async def test_a_machine_that_is_killed_while_it_is_saved_is_gone_and_so_is_the_copy(
    place: Place, parent: Parent
) -> None:
    """kill -9 of QEMU in the middle: said, and nothing is left."""
    point = await place.point(parent[0])
    async with place.life(point, generation=2) as (sandbox, _, reports, running):
        await usable(sandbox)
        assert isinstance(sandbox.sandbox.machine, DurableMicroVM)
        pid = sandbox.sandbox.machine.pid
        saving = asyncio.create_task(sandbox.snapshot("killed"))
        await until(lambda: any(place.store.glob("snapshots/.unfinished-*")) or saving.done())
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(saving, return_exceptions=True)
        ending, _ = await running
        assert ending is Ending.MACHINE_ENDED and reports.said[-1][0] == "ending"
        assert not list(place.store.glob("snapshots/.unfinished-*"))
