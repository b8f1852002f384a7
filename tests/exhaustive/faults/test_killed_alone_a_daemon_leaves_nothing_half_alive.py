"""`kill -9` of the daemon alone, right before each of its steps of a save, a fork and a restore. Supervisors
and machines go on. The next daemon, which is the next victim, finds what is whole, and ends the rest.

What supervisors do meanwhile is in test_a_fault_at_each_step_leaves_nothing_half_alive.py.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.client.sandbox import SandboxClient
from tests.exhaustive.faults.daemon_and_origin import daemon_and_origin
from tests.exhaustive.faults.forking_daemon import FORKING, RESTORING, SAVING
from tests.exhaustive.faults.test_a_host_that_crashed_brings_its_sandboxes_back import WANTED
from tests.known_secrets import known_secret
from tests.sandboxes import _groups, image_cache
from tests.system.e2e.daemon_process import DaemonProcess
from tests.system.e2e.story import until
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs")
SECONDS = 120.0


@dataclass
class World:
    """One sandbox, and the daemons that it outlives."""

    daemon: DaemonProcess
    sandbox: str = ""
    machine_id: bytes = b""

    @property
    def socket(self) -> Path:
        return self.daemon.directory / "run/control.sock"

    @property
    def control(self) -> ControlClient:
        return ControlClient(self.socket)

    def client(self) -> SandboxClient:
        return SandboxClient(self.socket)

    def kill(self) -> None:
        """The daemon that lives now, and nothing else."""
        assert self.daemon.process is not None
        for each in psutil.Process(self.daemon.process.pid).children():
            os.kill(each.pid, signal.SIGKILL)

    async def begin(self, dies_at: str) -> asyncio.StreamReader:
        """Another daemon is ready, `-`: for good. What is answered ends when it does."""
        over, asking = await asyncio.open_unix_connection(self.daemon.directory / "lives")
        asking.write(dies_at.encode())
        await until(self.answers, lambda answers: answers, patience=SECONDS)
        return over

    async def answers(self) -> bool:
        try:
            return bool(self.control.sandboxes())
        except ControlError:
            return False

    async def dies_at(self, step: str, ask: Callable[[SandboxClient], Awaitable[object]]) -> None:
        """A daemon that sees to what the last one left, and ends at this step of what it is asked for."""
        over = await self.begin(step)
        await self.is_settled()
        async with self.client() as client, asyncio.timeout(SECONDS):
            with pytest.raises(ControlError):
                await ask(client)
            assert await over.read() == b"", step

    # --- what is left ----------------------------------------------------------------------------------

    async def is_settled(self) -> None:
        """It runs, or waits for a restore. Of its copies there are whole ones, which go now, and no other."""
        async with self.client() as client, asyncio.timeout(SECONDS):
            shown = await self.down_or_up(self.sandbox)
            if shown["state"] == "ended":
                assert shown["recoverable"] and shown["ending"] in ("restored", "supervisor_gone"), shown
            else:
                self.machine_id = await self.said(client, self.sandbox)
            for each in self.control.sandboxes():
                if each["id"] != self.sandbox and (await self.down_or_up(each["id"]))["state"] == "running":
                    assert not {*each["sessions"].values()} & {*shown["sessions"].values()}
                    assert await self.said(client, each["id"]) != self.machine_id, "it was never rebound"
                    await (await client.get(each["id"])).kill()
            live = {*shown["sessions"].values()} if shown["state"] == "running" else set()
            await until(self.sessions, lambda found: found == live, patience=SECONDS)
        ours = {self.sandbox.removeprefix("sbx_")}
        places = [self.daemon.directory / each for each in ("run/sandboxes", "state/sandboxes")]
        await until(self.processes, lambda found: found <= ours, patience=SECONDS)

        async def left() -> set[str]:
            return {each.name for place in places for each in place.iterdir()}

        await until(left, lambda found: found <= ours, patience=SECONDS)
        (kept,) = places[1].iterdir()
        assert not [*(kept / "forks").iterdir(), *kept.glob("snapshots/.*")]
        assert shown["state"] == "running" or not _groups(kept.name)

    async def down_or_up(self, sandbox: str) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            return self.control.sandbox(sandbox)

        return await until(look, lambda now: now["state"] in ("running", "ended"), patience=SECONDS)

    async def said(self, client: SandboxClient, sandbox: str) -> bytes:
        """By one of its commands, so that it is known to run: who it is."""
        done = await (await client.get(sandbox)).run(["cat", "/etc/machine-id"])
        assert done.exit_code == 0
        return done.stdout

    async def sessions(self) -> set[str]:
        return {each["id"] for each in self.control.list(status="live")}

    async def processes(self) -> set[str]:
        """Names of sandboxes whose directories anybody has a file open in."""
        found, place = set(), self.daemon.directory / "run/sandboxes"
        for each in psutil.process_iter():
            try:
                found |= {
                    Path(file.path).parent.name for file in each.open_files() if str(place) in file.path
                }
            except psutil.Error:
                continue
        return found


async def test_killed_alone_a_daemon_leaves_nothing_half_alive(
    all_output: Path, tmp_path: Path, upstream_tls: UpstreamTls
) -> None:
    """No process, group, directory, session or fork point of what did not come to be; what was copied goes
    on, and what was to be restored is, or can be; a copy that runs is somebody of its own."""
    directory = all_output / "alone"
    async with daemon_and_origin(
        directory,
        tmp_path / "secrets",
        upstream_tls,
        known_secret("a daemon that dies alone", prefix="sk-proj-"),
        wrapper=(sys.executable, str(Path(__file__).with_name("forking_daemon.py"))),
        environment={"LIVES": str(directory / "lives"), "PYTHONPATH": os.pathsep.join(sys.path)},
        cache_dir=str(image_cache()),
    ) as (daemon, _):
        world = World(daemon)
        async with world.client() as client:
            made = await client.create(**WANTED)
            world.sandbox = made.id
            await made.write_file("/home/agent/note", b"before")
            await made.snapshot("good")
            await made.write_file("/home/agent/note", b"after")
        world.kill()

        for number, step in enumerate(SAVING):
            await world.dies_at(step, partial(snapshot, sandbox=made.id, name=f"s{number}"))
        for step in FORKING:
            await world.dies_at(step, lambda client: client.fork(made.id, 2))
        for step in RESTORING:
            await world.dies_at(step, lambda client: restore(client, made.id))

        over = await world.begin("-")
        await world.is_settled()
        async with world.client() as client:
            await restore(client, made.id)
            back = await client.get(made.id)
            async with back.read_file("/home/agent/note") as chunks:
                assert b"".join([chunk async for chunk in chunks]) == b"before"
            taken = {each["name"] for each in await back.snapshots()}
            assert "good" in taken <= {"good", "s0", "s1", "s2"}
            await back.kill()
        assert not any((directory / "state/sandboxes").iterdir())
        world.kill()
        await over.read()


async def snapshot(client: SandboxClient, sandbox: str, name: str) -> None:
    await (await client.get(sandbox)).snapshot(name)


async def restore(client: SandboxClient, sandbox: str) -> None:
    await (await client.get(sandbox)).restore("good")
