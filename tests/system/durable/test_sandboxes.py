"""The end of a sandbox when nobody is left to bring it about: supervisors and daemons that are killed."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Sandbox
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.sandbox.sandbox import Backend, SandboxRefused, SandboxState
from coatcheck.settings.daemon import Settings
from coatcheck.state.sessions import OWN_SANDBOX, SANDBOX_SOCKETS
from coatcheck.telemetry.events import SandboxEvent
from tests.durable.test_store import WANTED as KEPT
from tests.sandboxes import (
    SECONDS,
    WANTED,
    Place,
    family,
    nothing_left,
    place,
    sandbox_in,
    supervisors,
    until,
)
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls) as running:
        yield running


def supervisor_of(where: Place, sandbox: Sandbox) -> int:
    process = where.daemon.sandboxes.supervisor(sandbox.id)
    assert process is not None
    return process.pid


async def test_a_supervisor_that_is_killed_leaves_nothing(where: Place) -> None:
    """SIGKILL: its machine dies with it, the daemon ends the session and removes the rest; others live on."""
    async with sandbox_in(where) as neighbour, where.client() as client:
        sandbox = await client.create(**WANTED)
        directory = where.directory(sandbox.id)
        process = await sandbox.start(["sleep", "1000"])
        pid = supervisor_of(where, sandbox)

        def killed() -> None:
            with nothing_left(directory) as processes:
                processes |= family(pid)
                assert len(processes) > 2  # the supervisor, bubblewrap, what runs inside
                os.kill(pid, signal.SIGKILL)

        await asyncio.to_thread(killed)
        with pytest.raises(ControlError):
            await process.wait()
        await process.close()
        shown = await sandbox.refresh()
        assert (shown["state"], shown["ending"]) == ("ended", "supervisor_gone")
        (session,) = shown["sessions"].values()
        assert where.control().show(session)["session"]["status"] == "ended"
        assert where.ended(sandbox.id)["ending"] == "supervisor_gone"
        assert (await neighbour.run(["true"])).exit_code == 0


async def test_a_supervisor_that_is_killed_while_bubblewrap_begins_leaves_nothing(where: Place) -> None:
    """bubblewrap's own child waits for bubblewrap, is bound to nobody's life yet, and would wait for ever."""
    async with where.client() as client:
        sandbox = await client.create(wait=False, **WANTED)
        supervisor = psutil.Process(supervisor_of(where, sandbox))

        def killed() -> None:
            with nothing_left(where.directory(sandbox.id)) as processes:
                until(lambda: len(supervisor.children(recursive=True)) > 1)
                supervisor.suspend()
                processes |= family(supervisor.pid)
                bubblewrap = supervisor.children()[0]
                bubblewrap.kill()  # as its binding to the supervisor does; here for certain
                supervisor.kill()

        await asyncio.to_thread(killed)
        assert (await sandbox.refresh())["ending"] in ("supervisor_gone", "start_failed")


@pytest.mark.needs_debian("runsc")
async def test_a_sandbox_of_gvisor_is_asked_for_by_name(where: Place) -> None:
    """With the isolation that policy sees, the proxy in its variables, a pause, and nothing left."""
    async with sandbox_in(where, backend="gvisor") as sandbox:
        assert (sandbox.shown["backend"], sandbox.shown["isolation"]) == ("gvisor", "gvisor")
        (session,) = sandbox.shown["sessions"].values()
        assert where.control().show(session)["session"]["isolation"] == "gvisor"
        ran = await sandbox.run(["sh", "-c", "dmesg | head -1; echo $HTTPS_PROXY"])
        assert b"Starting gVisor" in ran.stdout and b"3128" in ran.stdout
        await sandbox.pause()
        await sandbox.resume()
        await sandbox.write_file("/home/agent/file", b"written")
        assert (await sandbox.run(["cat", "/home/agent/file"])).stdout == b"written"
        pid, directory = supervisor_of(where, sandbox), where.directory(sandbox.id)

        def killed() -> None:
            with nothing_left(directory) as processes:
                processes |= family(pid)
                os.kill(pid, signal.SIGKILL)

        await asyncio.to_thread(killed)


async def test_a_machine_that_is_killed_ends_its_sandbox(where: Place) -> None:
    """As a crash of QEMU would: the supervisor sees it, says so, and cleans up."""
    async with where.client() as client:
        sandbox = await client.create(**WANTED)
        pid = supervisor_of(where, sandbox)

        def killed() -> None:
            with nothing_left(where.directory(sandbox.id)) as processes:
                processes |= family(pid)
                for child in psutil.Process(pid).children():
                    child.kill()

        await asyncio.to_thread(killed)
        await asyncio.to_thread(
            until, lambda: where.control().sandbox(sandbox.id)["ending"] == "machine_ended"
        )
        assert "signal 9" in (await sandbox.refresh())["detail"]


async def test_a_daemon_that_comes_back_finds_its_sandboxes(where: Place) -> None:
    """After a crash: those that live are known again and can be ended; of the others nothing is left."""
    events: list[SandboxEvent] = []
    ended: list[str] = []
    async with sandbox_in(where) as sandbox:
        left = where.directory("sbx_00000000000000ff")
        left.mkdir(mode=0o700)
        (left / "sandbox.json").write_bytes((where.directory(sandbox.id) / "sandbox.json").read_bytes())
        (left / "lock").touch()
        settings = where.daemon.settings
        after = Sandboxes(settings, events.append, lambda session, why: ended.append(session))
        (left / "sandbox.json").write_text(
            (left / "sandbox.json").read_text().replace(sandbox.id, "sbx_00000000000000ff")
        )
        listeners = {"ses_nobodys": OWN_SANDBOX, "ses_of_others": SANDBOX_SOCKETS, "ses_on_a_port": 40_001}
        await asyncio.to_thread(after.adopt, listeners)
        assert not left.exists()
        assert (found := after.get("sbx_00000000000000ff")) is not None
        assert (found.state, str(found.ending)) == (SandboxState.ENDED, "supervisor_gone")
        assert ended == [*sandbox.shown["sessions"].values(), "ses_nobodys"]
        assert (found := after.get(sandbox.id)) is not None and not found.over
        assert (await sandbox.run(["true"])).exit_code == 0
        await asyncio.to_thread(after.close)
        assert (found := after.get(sandbox.id)) is not None and found.state is SandboxState.ENDED


async def test_a_daemon_that_stops_ends_them_all(all_output: Path, upstream_tls: UpstreamTls) -> None:
    """Also one that is only starting."""
    async with place(all_output, upstream_tls) as where, where.client() as client:
        running = await client.create(**WANTED)
        starting = await client.create(**WANTED, wait=False)
        directories = [where.directory(each.id) for each in (running, starting)]
        mine = {supervisor_of(where, each) for each in (running, starting)}
        processes = {pid for each in mine for pid in family(each)}
    for directory in directories:
        with nothing_left(directory) as left:
            left |= processes
    assert not supervisors() & mine


async def test_a_daemon_that_is_gone_is_outlived_by_one_lease(
    all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """Nobody sweeps then: the supervisor itself ends everything."""
    async with place(all_output, upstream_tls) as where, where.client() as client:
        sandbox = await client.create(**WANTED, lease_seconds=4.0)
        directory = where.directory(sandbox.id)
        processes = family(supervisor_of(where, sandbox))
        assert where.daemon.control is not None
        begun = time.monotonic()
        await asyncio.to_thread(where.daemon.control.stop)  # as after a crash: the socket is dead

        def gone() -> None:
            with nothing_left(directory) as left:
                left |= processes

        await asyncio.to_thread(gone)
        assert 1.0 < time.monotonic() - begun < SECONDS


async def test_a_place_among_those_that_are_kept_is_promised_once(tmp_path: Path) -> None:
    """Before anything is opened, taken or started for a caller that could not have it; namespaces need
    none."""
    settings = Settings(state_dir=tmp_path, runtime_dir=tmp_path / "run", max_kept_sandboxes=1)
    sandboxes = Sandboxes(settings, lambda event: None, lambda session, why: None)
    first = sandboxes.admit(KEPT)
    with pytest.raises(SandboxRefused, match="1 sandboxes are kept already"):
        sandboxes.admit(KEPT)
    sandboxes.admit(replace(KEPT, choice=replace(KEPT.choice, backend=Backend.NAMESPACE)))
    sandboxes.withdraw(first)
    assert sandboxes.admit(KEPT).id != first.id


async def test_one_that_nobody_connects_to_ends(where: Place) -> None:
    """Its supervisor was killed before it could say anything else."""
    async with where.client() as client:
        sandbox = await client.create(**WANTED, idle_seconds=1.0)
        await asyncio.to_thread(until, lambda: where.control().sandbox(sandbox.id)["state"] == "ended")
        assert (await sandbox.refresh())["ending"] == "idle"
